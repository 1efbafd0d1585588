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
#include "int8_pool.h"
#include "parallel.h"
#include "shapes.h"
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

// Keys and values, with scales if they are bytes.
struct Pools {
  Pools(const BFloat16& k, const BFloat16& v)
      : k(k.typed_data()), v(v.typed_data()), k_shape(k.dimensions()), v_shape(v.dimensions()) {}
  Pools(const Int8Values& k, const Int8Scales& k_scales, const Int8Values& v, const Int8Scales& v_scales)
      : k(k.typed_data()), v(v.typed_data()), k_scales(k_scales.typed_data()), v_scales(v_scales.typed_data()),
        k_shape(k.dimensions()), v_shape(v.dimensions()),
        scales_fit(fit_together(k, k_scales) && fit_together(v, v_scales)) {}

  const void *k, *v;
  const float *k_scales = nullptr, *v_scales = nullptr;
  ffi::Span<const int64_t> k_shape, v_shape;
  bool scales_fit = true;
};

std::string find_wrong_shape(const BFloat16& q, const Pools& pools, const Int32& tables, const Int32& query_start,
                             const Int32& lengths, const std::optional<Float32>& sinks, const BFloat16& out,
                             const Float32& lse) {
  const auto qs = q.dimensions(), ks = pools.k_shape, ts = tables.dimensions(), ls = lengths.dimensions();
  if (qs.size() != 3 || ks.size() != 4 || ts.size() != 2 || ls.size() != 1 || query_start.dimensions().size() != 1)
    return "needs q[T, N, H], pools[P, K, S, H], tables[R, M], query_start[R + 1] and lengths[R]";
  if (!same(pools.v_shape, ks) || qs[2] != ks[3] || ks[1] < 1 || ks[2] < 1 || qs[1] % ks[1] != 0)
    return "q and the pools do not fit together";
  if (!pools.scales_fit) return "scales must be [P, K, S]";
  if (qs[2] < 16 || qs[2] % 16 != 0 || qs[2] > kLargestHeadDim)
    return "the head dim must be a multiple of 16 up to " + std::to_string(kLargestHeadDim);
  if (ts[0] != ls[0] || query_start.dimensions()[0] != ls[0] + 1) return "tables, query_start and lengths differ in rows";
  if (sinks && (sinks->dimensions().size() != 1 || sinks->dimensions()[0] != qs[1])) return "sinks must be [N]";
  if (!same(out.dimensions(), qs) || !same(lse.dimensions(), qs.first(2))) return "results must be [T, N, H] and [T, N]";
  return {};
}

ffi::Error attend(ffi::ThreadPool& pool, const BFloat16& q, const Pools& pools, const Int32& tables,
                  const Int32& query_start, const Int32& lengths, const std::optional<Float32>& sinks, BFloat16& out,
                  Float32& lse, float scale, int64_t window, float soft_cap) {
  const auto invalid = [](const std::string& text) { return ffi::Error::InvalidArgument("paged_attention: " + text); };
  const std::string wrong = find_wrong_shape(q, pools, tables, query_start, lengths, sinks, out, lse);
  if (!wrong.empty()) return invalid(wrong);
  if (instruction_set() == InstructionSet::kNone)
    return ffi::Error(ffi::ErrorCode::kUnimplemented, "paged_attention: this processor has none of the instruction sets");

  if (pools.k_scales && !has_products_of_bytes())
    return ffi::Error(ffi::ErrorCode::kUnimplemented, "paged_attention: int8 pools need AVX512-BF16 or AMX");

  const auto bits = [](const BFloat16& buffer) { return reinterpret_cast<uint16_t*>(buffer.typed_data()); };
  const auto qs = q.dimensions(), ks = pools.k_shape;
  Attention a{};
  a.q = bits(q);
  a.k_pool = pools.k, a.v_pool = pools.v;
  a.k_scales = pools.k_scales, a.v_scales = pools.v_scales;
  a.tables = tables.typed_data();
  a.query_start = query_start.typed_data();
  a.lengths = lengths.typed_data();
  a.sinks = sinks ? sinks->typed_data() : nullptr;
  a.out = bits(out);
  a.lse = lse.typed_data();
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
  const auto attend_tile = a.k_scales ? PALLAS_KERNELS_BYTES(attend_int8, attend_int8_amx)
                                      : PALLAS_KERNELS_CHOSEN_OR_TILES(attend, attend_amx);
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

ffi::Error attend_plain(ffi::ThreadPool pool, BFloat16 q, BFloat16 k, BFloat16 v, Int32 tables, Int32 query_start,
                        Int32 lengths, ffi::Result<BFloat16> out, ffi::Result<Float32> lse, float scale, int64_t window,
                        float soft_cap) {
  return attend(pool, q, {k, v}, tables, query_start, lengths, std::nullopt, *out, *lse, scale, window, soft_cap);
}

ffi::Error attend_plain_sinks(ffi::ThreadPool pool, BFloat16 q, BFloat16 k, BFloat16 v, Int32 tables, Int32 query_start,
                              Int32 lengths, Float32 sinks, ffi::Result<BFloat16> out, ffi::Result<Float32> lse,
                              float scale, int64_t window, float soft_cap) {
  return attend(pool, q, {k, v}, tables, query_start, lengths, sinks, *out, *lse, scale, window, soft_cap);
}

ffi::Error attend_int8(ffi::ThreadPool pool, BFloat16 q, Int8Values k, Int8Scales k_scales, Int8Values v,
                       Int8Scales v_scales, Int32 tables, Int32 query_start, Int32 lengths, ffi::Result<BFloat16> out,
                       ffi::Result<Float32> lse, float scale, int64_t window, float soft_cap) {
  return attend(pool, q, {k, k_scales, v, v_scales}, tables, query_start, lengths, std::nullopt, *out, *lse, scale,
                window, soft_cap);
}

ffi::Error attend_int8_sinks(ffi::ThreadPool pool, BFloat16 q, Int8Values k, Int8Scales k_scales, Int8Values v,
                             Int8Scales v_scales, Int32 tables, Int32 query_start, Int32 lengths, Float32 sinks,
                             ffi::Result<BFloat16> out, ffi::Result<Float32> lse, float scale, int64_t window,
                             float soft_cap) {
  return attend(pool, q, {k, k_scales, v, v_scales}, tables, query_start, lengths, sinks, *out, *lse, scale, window,
                soft_cap);
}

template <typename Binding>
auto with_rows(Binding binding) {
  return std::move(binding).template Arg<Int32>().template Arg<Int32>().template Arg<Int32>();
}

auto plain() {
  return with_rows(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<BFloat16>().Arg<BFloat16>().Arg<BFloat16>());
}

auto int8() {
  return with_rows(ffi::Ffi::Bind()
                       .Ctx<ffi::ThreadPool>()
                       .Arg<BFloat16>()
                       .Arg<Int8Values>()
                       .Arg<Int8Scales>()
                       .Arg<Int8Values>()
                       .Arg<Int8Scales>());
}

template <typename Binding>
auto with_results(Binding binding) {
  return std::move(binding)
      .template Ret<BFloat16>()
      .template Ret<Float32>()
      .template Attr<float>("scale")
      .template Attr<int64_t>("window")
      .template Attr<float>("soft_cap");
}

}  // namespace
}  // namespace pallas_kernels

PALLAS_KERNELS_TARGET(pallas_kernels_paged_attention_v1, pallas_kernels::attend_plain,
                      pallas_kernels::with_results(pallas_kernels::plain()));

PALLAS_KERNELS_TARGET(pallas_kernels_paged_attention_sinks_v1, pallas_kernels::attend_plain_sinks,
                      pallas_kernels::with_results(pallas_kernels::plain().Arg<pallas_kernels::Float32>()));

PALLAS_KERNELS_TARGET(pallas_kernels_paged_attention_int8_v1, pallas_kernels::attend_int8,
                      pallas_kernels::with_results(pallas_kernels::int8()));

PALLAS_KERNELS_TARGET(pallas_kernels_paged_attention_int8_sinks_v1, pallas_kernels::attend_int8_sinks,
                      pallas_kernels::with_results(pallas_kernels::int8().Arg<pallas_kernels::Float32>()));
