#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "attention_plan.h"
#include "instruction_set.h"
#include "parallel.h"
#include "targets.h"

namespace pallas_kernels {
namespace {

namespace ffi = ::xla::ffi;
using BFloat16 = ffi::Buffer<ffi::BF16>;
using Int32 = ffi::Buffer<ffi::S32>;
using Float32 = ffi::Buffer<ffi::F32>;

// Memory that grows to the largest size asked for.
class Memory {
 public:
  ~Memory() { std::free(data_); }

  // Null where there is no more.
  void* of(size_t bytes) {
    if (size_ < bytes) {
      constexpr size_t kAlignment = 64;
      std::free(data_);
      size_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      data_ = std::aligned_alloc(kAlignment, size_);
      if (!data_) size_ = 0;
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

thread_local Memory tile_memory, state_memory;

bool same(ffi::Span<const int64_t> x, ffi::Span<const int64_t> y) {
  return std::equal(x.begin(), x.end(), y.begin(), y.end());
}

std::string find_wrong_shape(const BFloat16& q, const BFloat16& k_pool, const BFloat16& v_pool, const Int32& tables,
                             const Int32& query_start, const Int32& lengths, const std::optional<Float32>& sinks,
                             const BFloat16& out, const Float32& lse) {
  const auto qs = q.dimensions(), ks = k_pool.dimensions(), ts = tables.dimensions(), ls = lengths.dimensions();
  if (qs.size() != 3 || ks.size() != 4 || ts.size() != 2 || ls.size() != 1 || query_start.dimensions().size() != 1)
    return "needs q[T, N, H], pools[P, K, S, H], tables[R, M], query_start[R + 1] and lengths[R]";
  if (!same(v_pool.dimensions(), ks) || qs[2] != ks[3] || ks[1] < 1 || ks[2] < 1 || qs[1] % ks[1] != 0)
    return "q and the pools do not fit together";
  if (qs[2] < 16 || qs[2] % 16 != 0 || qs[2] > kLargestHeadDim)
    return "the head dim must be a multiple of 16 up to " + std::to_string(kLargestHeadDim);
  if (ts[0] != ls[0] || query_start.dimensions()[0] != ls[0] + 1) return "tables, query_start and lengths differ in rows";
  if (sinks && (sinks->dimensions().size() != 1 || sinks->dimensions()[0] != qs[1])) return "sinks must be [N]";
  if (!same(out.dimensions(), qs) || !same(lse.dimensions(), qs.first(2))) return "results must be [T, N, H] and [T, N]";
  return {};
}

ffi::Error attend(ffi::ThreadPool pool, BFloat16 q, BFloat16 k_pool, BFloat16 v_pool, Int32 tables, Int32 query_start,
                  Int32 lengths, std::optional<Float32> sinks, ffi::Result<BFloat16> out, ffi::Result<Float32> lse,
                  float scale, int64_t window, float soft_cap) {
  const auto invalid = [](const std::string& text) { return ffi::Error::InvalidArgument("paged_attention: " + text); };
  const std::string wrong =
      find_wrong_shape(q, k_pool, v_pool, tables, query_start, lengths, sinks, *out, *lse);
  if (!wrong.empty()) return invalid(wrong);
  if (instruction_set() == InstructionSet::kNone)
    return ffi::Error(ffi::ErrorCode::kUnimplemented, "paged_attention: this processor has none of the instruction sets");

  const auto bits = [](const BFloat16& buffer) { return reinterpret_cast<uint16_t*>(buffer.typed_data()); };
  const auto qs = q.dimensions(), ks = k_pool.dimensions();
  Attention a{};
  a.q = bits(q);
  a.k_pool = bits(k_pool);
  a.v_pool = bits(v_pool);
  a.tables = tables.typed_data();
  a.query_start = query_start.typed_data();
  a.lengths = lengths.typed_data();
  a.sinks = sinks ? sinks->typed_data() : nullptr;
  a.out = bits(*out);
  a.lse = lse->typed_data();
  a.tokens = qs[0], a.heads = qs[1], a.head_dim = qs[2];
  a.blocks = ks[0], a.kv_heads = ks[1], a.block_size = ks[2];
  a.rows = lengths.dimensions()[0], a.table_width = tables.dimensions()[1];
  a.window = window, a.scale = scale, a.soft_cap = soft_cap;

  const std::string fault = find_fault(a);
  if (!fault.empty()) return invalid(fault);
  const auto clear = [&a](int64_t from, int64_t to) {
    std::fill(a.out + from * a.heads * a.head_dim, a.out + to * a.heads * a.head_dim, uint16_t{0});
    std::fill(a.lse + from * a.heads, a.lse + to * a.heads, -std::numeric_limits<float>::infinity());
  };
  clear(0, a.query_start[0]);
  clear(a.query_start[a.rows], a.tokens);

  Plan plan = make_plan(a, pool.num_threads());
  const auto no_memory = ffi::Error(ffi::ErrorCode::kResourceExhausted, "paged_attention: out of memory");
  float* states = static_cast<float*>(state_memory.of(2 * plan.states * state_floats(a.head_dim) * sizeof(float)));
  if (plan.states > 0 && !states) return no_memory;
  const auto attend_tile = PALLAS_KERNELS_CHOSEN_OR_TILES(attend, attend_amx);
  std::atomic<bool> out_of_memory{false};
  for (std::vector<Tile>& tiles : plan.phases) {
    for (Tile& tile : tiles) tile.states = states;
    parallel_for(pool, static_cast<int64_t>(tiles.size()), [&](int64_t i, int64_t next) {
      if (void* memory = tile_memory.of(plan.scratch_bytes))
        attend_tile(a, tiles[i], next == kNoPiece ? nullptr : &tiles[next], memory);
      else
        out_of_memory = true;
    });
    if (out_of_memory) return no_memory;
  }
  return ffi::Error::Success();
}

ffi::Error attend_with_sinks(ffi::ThreadPool pool, BFloat16 q, BFloat16 k_pool, BFloat16 v_pool, Int32 tables,
                             Int32 query_start, Int32 lengths, Float32 sinks, ffi::Result<BFloat16> out,
                             ffi::Result<Float32> lse, float scale, int64_t window, float soft_cap) {
  return attend(pool, q, k_pool, v_pool, tables, query_start, lengths, sinks, out, lse, scale, window, soft_cap);
}

ffi::Error attend_without_sinks(ffi::ThreadPool pool, BFloat16 q, BFloat16 k_pool, BFloat16 v_pool, Int32 tables,
                                Int32 query_start, Int32 lengths, ffi::Result<BFloat16> out, ffi::Result<Float32> lse,
                                float scale, int64_t window, float soft_cap) {
  return attend(pool, q, k_pool, v_pool, tables, query_start, lengths, std::nullopt, out, lse, scale, window, soft_cap);
}

auto operands() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<BFloat16>()
      .Arg<BFloat16>()
      .Arg<BFloat16>()
      .Arg<Int32>()
      .Arg<Int32>()
      .Arg<Int32>();
}

}  // namespace
}  // namespace pallas_kernels

PALLAS_KERNELS_TARGET(pallas_kernels_paged_attention_v1, pallas_kernels::attend_without_sinks,
                      pallas_kernels::operands()
                          .Ret<pallas_kernels::BFloat16>()
                          .Ret<pallas_kernels::Float32>()
                          .Attr<float>("scale")
                          .Attr<int64_t>("window")
                          .Attr<float>("soft_cap"));

PALLAS_KERNELS_TARGET(pallas_kernels_paged_attention_sinks_v1, pallas_kernels::attend_with_sinks,
                      pallas_kernels::operands()
                          .Arg<pallas_kernels::Float32>()
                          .Ret<pallas_kernels::BFloat16>()
                          .Ret<pallas_kernels::Float32>()
                          .Attr<float>("scale")
                          .Attr<int64_t>("window")
                          .Attr<float>("soft_cap"));
