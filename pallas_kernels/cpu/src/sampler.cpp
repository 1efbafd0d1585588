#include "sampler.h"

#include <memory>
#include <new>

#include "instruction_set.h"
#include "parallel.h"
#include "targets.h"

namespace pallas_kernels {
namespace {

namespace ffi = ::xla::ffi;

using Logits = ffi::Buffer<ffi::F32, 2>;
template <ffi::DataType kType>
using Column = ffi::Buffer<kType, 1>;
template <ffi::DataType kType>
using List = ffi::Buffer<kType, 2>;
template <ffi::DataType kType>
using Columns = ffi::Result<Column<kType>>;
template <ffi::DataType kType>
using Lists = ffi::Result<List<kType>>;

constexpr int64_t kLargestVocabulary = int64_t{1} << 23;  // beyond, sums of weights could overflow

struct AlignedDelete {
  void operator()(char* memory) const { operator delete[](memory, std::align_val_t{64}); }
};

// This thread's memory, kept between calls: a row's is as large as its logits are.
void* scratch_of(size_t bytes) {
  thread_local std::unique_ptr<char[], AlignedDelete> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    memory.reset(new (std::align_val_t{64}) char[bytes]);
    size = bytes;
  }
  return memory.get();
}

// Why these logits cannot be taken, where they cannot.
ffi::Error check(const Logits& logits) {
  if (logits.dimensions()[1] < 1 || logits.dimensions()[1] > kLargestVocabulary)
    return ffi::Error::InvalidArgument("logits must be of 1 to 2^23 tokens");
  if (instruction_set() == InstructionSet::kNone)
    return ffi::Error(ffi::ErrorCode::kUnimplemented, "the sampler: this processor has none of the instruction sets");
  return ffi::Error::Success();
}

template <class... Buffers>
bool have_rows(int64_t rows, const Buffers&... buffers) {
  return ((buffers.dimensions()[0] == rows) && ...);
}

template <class Body>
void for_rows(ffi::ThreadPool& pool, const Logits& logits, const Body& body) {
  const size_t bytes = PALLAS_KERNELS_CHOSEN(sampler_scratch_bytes)(logits.dimensions()[1]);
  parallel_for(pool, logits.dimensions()[0], [&](int64_t row) { body(row, scratch_of(bytes)); });
}

ffi::Error sample_rows(ffi::ThreadPool pool, Logits logits, Logits raw, Column<ffi::F32> temperature,
                       Column<ffi::F32> top_p, Column<ffi::F32> log_min_p, Column<ffi::S32> top_k,
                       Column<ffi::PRED> greedy, Column<ffi::U32> seed_high, Column<ffi::U32> seed_low,
                       Column<ffi::U32> sample_index, Column<ffi::U32> position, Column<ffi::PRED> wants_logprobs,
                       Column<ffi::PRED> wants_limit, Columns<ffi::S32> token, Columns<ffi::F32> limit_value,
                       Columns<ffi::S32> limit_token, Columns<ffi::F32> logprob, Columns<ffi::S32> rank,
                       Lists<ffi::S32> top_ids, Lists<ffi::F32> top_logprobs) {
  if (ffi::Error error = check(logits); error.failure()) return error;
  const int64_t rows = logits.dimensions()[0], vocab = logits.dimensions()[1], k = top_ids->dimensions()[1];
  if (!have_rows(rows, raw, temperature, top_p, log_min_p, top_k, greedy, seed_high, seed_low, sample_index, position,
                 wants_logprobs, wants_limit, *token, *limit_value, *limit_token, *logprob, *rank, *top_ids,
                 *top_logprobs) ||
      raw.dimensions()[1] != vocab)
    return ffi::Error::InvalidArgument("sample_rows: operands and results must have a row for each row of the logits");
  if (top_logprobs->dimensions()[1] != k || k > vocab)
    return ffi::Error::InvalidArgument("sample_rows: the most likely tokens must be as many as their log-probabilities, "
                                       "and no more than the vocabulary has");
  const auto flags = [](const Column<ffi::PRED>& column) { return reinterpret_cast<const uint8_t*>(column.typed_data()); };
  const SampleRows s{logits.typed_data(),      raw.typed_data(),       rows,
                     vocab,                    temperature.typed_data(), top_p.typed_data(),
                     log_min_p.typed_data(),   top_k.typed_data(),     flags(greedy),
                     seed_high.typed_data(),   seed_low.typed_data(),  sample_index.typed_data(),
                     position.typed_data(),    flags(wants_logprobs),  flags(wants_limit),
                     token->typed_data(),      limit_value->typed_data(), limit_token->typed_data()};
  const TokenLogprobs out{logprob->typed_data(), rank->typed_data(), top_ids->typed_data(), top_logprobs->typed_data(), k};
  const auto sample_row = PALLAS_KERNELS_CHOSEN(sample_row);
  for_rows(pool, logits, [&](int64_t row, void* scratch) { sample_row(s, out, row, scratch); });
  return ffi::Error::Success();
}

ffi::Error token_logprobs(ffi::ThreadPool pool, Logits logits, Column<ffi::S32> targets, Columns<ffi::F32> logprob,
                          Columns<ffi::S32> rank, Lists<ffi::S32> top_ids, Lists<ffi::F32> top_logprobs) {
  if (ffi::Error error = check(logits); error.failure()) return error;
  const int64_t rows = logits.dimensions()[0], vocab = logits.dimensions()[1], k = top_ids->dimensions()[1];
  if (!have_rows(rows, targets, *logprob, *rank, *top_ids, *top_logprobs) || top_logprobs->dimensions()[1] != k || k > vocab)
    return ffi::Error::InvalidArgument("token_logprobs: shapes must be logits[B, V], targets[B] and results[B] or [B, k]");
  const TokenLogprobs out{logprob->typed_data(), rank->typed_data(), top_ids->typed_data(), top_logprobs->typed_data(), k};
  const float* const all = logits.typed_data();
  const int32_t* const wanted = targets.typed_data();
  const auto token_logprobs_row = PALLAS_KERNELS_CHOSEN(token_logprobs_row);
  for_rows(pool, logits, [&](int64_t row, void* scratch) {
    const int32_t target = wanted[row] < vocab ? wanted[row] : -1;
    token_logprobs_row(all + row * vocab, vocab, target, out, row, scratch);
  });
  return ffi::Error::Success();
}

ffi::Error log_normalizer(ffi::ThreadPool pool, Logits logits, Columns<ffi::F32> best, Columns<ffi::F32> log_total) {
  if (ffi::Error error = check(logits); error.failure()) return error;
  const int64_t rows = logits.dimensions()[0], vocab = logits.dimensions()[1];
  if (!have_rows(rows, *best, *log_total))
    return ffi::Error::InvalidArgument("log_normalizer: results must have an element for each row of the logits");
  const float* const all = logits.typed_data();
  float *const bests = best->typed_data(), *const totals = log_total->typed_data();
  const auto log_normalizer_row = PALLAS_KERNELS_CHOSEN(log_normalizer_row);
  for_rows(pool, logits, [&](int64_t row, void* scratch) {
    log_normalizer_row(all + row * vocab, vocab, bests + row, totals + row, scratch);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace pallas_kernels

PALLAS_KERNELS_TARGET(pallas_kernels_sample_rows_v1, pallas_kernels::sample_rows,
                      ::xla::ffi::Ffi::Bind()
                          .Ctx<::xla::ffi::ThreadPool>()
                          .Arg<pallas_kernels::Logits>()
                          .Arg<pallas_kernels::Logits>()
                          .Arg<pallas_kernels::Column<::xla::ffi::F32>>()
                          .Arg<pallas_kernels::Column<::xla::ffi::F32>>()
                          .Arg<pallas_kernels::Column<::xla::ffi::F32>>()
                          .Arg<pallas_kernels::Column<::xla::ffi::S32>>()
                          .Arg<pallas_kernels::Column<::xla::ffi::PRED>>()
                          .Arg<pallas_kernels::Column<::xla::ffi::U32>>()
                          .Arg<pallas_kernels::Column<::xla::ffi::U32>>()
                          .Arg<pallas_kernels::Column<::xla::ffi::U32>>()
                          .Arg<pallas_kernels::Column<::xla::ffi::U32>>()
                          .Arg<pallas_kernels::Column<::xla::ffi::PRED>>()
                          .Arg<pallas_kernels::Column<::xla::ffi::PRED>>()
                          .Ret<pallas_kernels::Column<::xla::ffi::S32>>()
                          .Ret<pallas_kernels::Column<::xla::ffi::F32>>()
                          .Ret<pallas_kernels::Column<::xla::ffi::S32>>()
                          .Ret<pallas_kernels::Column<::xla::ffi::F32>>()
                          .Ret<pallas_kernels::Column<::xla::ffi::S32>>()
                          .Ret<pallas_kernels::List<::xla::ffi::S32>>()
                          .Ret<pallas_kernels::List<::xla::ffi::F32>>());
PALLAS_KERNELS_TARGET(pallas_kernels_token_logprobs_v1, pallas_kernels::token_logprobs,
                      ::xla::ffi::Ffi::Bind()
                          .Ctx<::xla::ffi::ThreadPool>()
                          .Arg<pallas_kernels::Logits>()
                          .Arg<pallas_kernels::Column<::xla::ffi::S32>>()
                          .Ret<pallas_kernels::Column<::xla::ffi::F32>>()
                          .Ret<pallas_kernels::Column<::xla::ffi::S32>>()
                          .Ret<pallas_kernels::List<::xla::ffi::S32>>()
                          .Ret<pallas_kernels::List<::xla::ffi::F32>>());
PALLAS_KERNELS_TARGET(pallas_kernels_log_normalizer_v1, pallas_kernels::log_normalizer,
                      ::xla::ffi::Ffi::Bind()
                          .Ctx<::xla::ffi::ThreadPool>()
                          .Arg<pallas_kernels::Logits>()
                          .Ret<pallas_kernels::Column<::xla::ffi::F32>>()
                          .Ret<pallas_kernels::Column<::xla::ffi::F32>>());
