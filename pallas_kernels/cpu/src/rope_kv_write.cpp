// What stands between a layer's query-key-value product and its attention: rotary embedding of queries and keys, and
// keys and values into their slots of the paged cache, in place.
#include <algorithm>
#include <cstring>
#include <string>

#include "instruction_set.h"
#include "parallel.h"
#include "rope.h"
#include "shapes.h"
#include "targets.h"
#include "write_ahead.h"

namespace pallas_kernels {
namespace {

namespace ffi = ::xla::ffi;
using BFloat16 = ffi::Buffer<ffi::BF16>;
using Float32 = ffi::Buffer<ffi::F32>;

std::string find_wrong(const BFloat16& k_pool, const BFloat16& v_pool, const BFloat16& qkv, const Float32& cos,
                       const Float32& sin, const ffi::Buffer<ffi::S32>& slots, const BFloat16& k_result,
                       const BFloat16& v_result, const BFloat16& q) {
  const auto ps = k_pool.dimensions(), xs = qkv.dimensions();
  if (ps.size() != 4 || xs.size() != 3) return "pools must be [P, K, S, H] and qkv [T, N + 2 K, H]";
  const int64_t heads = xs[1] - 2 * ps[1];
  if (!is(v_pool.dimensions(), {ps[0], ps[1], ps[2], ps[3]}) || xs[2] != ps[3] || ps[3] % 2 != 0 || heads < 1)
    return "qkv and the pools do not fit together";
  if (!is(q.dimensions(), {xs[0], heads, xs[2]})) return "the queries must be [T, N, H]";
  if (!is(cos.dimensions(), {xs[0], xs[2] / 2}) || !is(sin.dimensions(), {xs[0], xs[2] / 2}))
    return "cos and sin must be [T, H / 2]";
  if (!is(slots.dimensions(), {xs[0]})) return "slots must be [T]";
  if (k_pool.typed_data() != k_result.typed_data() || v_pool.typed_data() != v_result.typed_data())
    return "the results must alias the pools";
  const int32_t* slot = slots.typed_data();
  for (int64_t token = 0; token < xs[0]; ++token)
    if (slot[token] < 0 || slot[token] >= ps[0] * ps[2])
      return "token " + std::to_string(token) + " has slot " + std::to_string(slot[token]) + " of " +
             std::to_string(ps[0] * ps[2]);
  return {};
}

ffi::Error rope_kv_write(ffi::ThreadPool threads, BFloat16 k_pool, BFloat16 v_pool, BFloat16 qkv, Float32 cos,
                         Float32 sin, ffi::Buffer<ffi::S32> slots, ffi::Result<BFloat16> k_result,
                         ffi::Result<BFloat16> v_result, ffi::Result<BFloat16> q) {
  const std::string wrong = find_wrong(k_pool, v_pool, qkv, cos, sin, slots, *k_result, *v_result, *q);
  if (!wrong.empty()) return ffi::Error::InvalidArgument("rope_kv_write: " + wrong);
  if (instruction_set() == InstructionSet::kNone)
    return ffi::Error(ffi::ErrorCode::kUnimplemented, "rope_kv_write: this processor has none of the instruction sets");

  const auto shape = k_pool.dimensions();
  const int64_t kv_heads = shape[1], block_size = shape[2], head_dim = shape[3];
  const int64_t tokens = qkv.dimensions()[0], heads = qkv.dimensions()[1] - 2 * kv_heads;
  const auto bits = [](const BFloat16& buffer) { return reinterpret_cast<uint16_t*>(buffer.typed_data()); };
  const uint16_t* x = bits(qkv);
  uint16_t *k = bits(*k_result), *v = bits(*v_result), *rotated = bits(*q);
  const int32_t* slot = slots.typed_data();
  const auto rope = PALLAS_KERNELS_CHOSEN(rope);
  const int64_t stride = block_size * head_dim;
  const auto place_of = [&](int64_t token) {
    return (slot[token] / block_size * kv_heads * block_size + slot[token] % block_size) * head_dim;
  };
  constexpr int64_t kTokens = 16;
  parallel_for(threads, (tokens + kTokens - 1) / kTokens, [&](int64_t part) {
    const int64_t end = std::min((part + 1) * kTokens, tokens);
    for (int64_t token = part * kTokens; token < end; ++token)
      for (int64_t head = 0; head < kv_heads; ++head)
        for (const uint16_t* pool : {k, v})
          ask_to_write(pool + place_of(token) + head * stride, head_dim * sizeof(uint16_t));
    for (int64_t token = part * kTokens; token < end; ++token) {
      const uint16_t* from = x + token * (heads + 2 * kv_heads) * head_dim;
      const float *c = cos.typed_data() + token * (head_dim / 2), *s = sin.typed_data() + token * (head_dim / 2);
      rope(from, c, s, heads, head_dim, rotated + token * heads * head_dim, head_dim);
      if (slot[token] < block_size) continue;  // padding
      const int64_t at = place_of(token);
      rope(from + heads * head_dim, c, s, kv_heads, head_dim, k + at, stride);
      const uint16_t* values = from + (heads + kv_heads) * head_dim;
      for (int64_t head = 0; head < kv_heads; ++head)
        std::memcpy(v + at + head * stride, values + head * head_dim, head_dim * sizeof(uint16_t));
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace pallas_kernels

PALLAS_KERNELS_TARGET(pallas_kernels_rope_kv_write_v1, pallas_kernels::rope_kv_write,
                      ::xla::ffi::Ffi::Bind()
                          .Ctx<::xla::ffi::ThreadPool>()
                          .Arg<pallas_kernels::BFloat16>()
                          .Arg<pallas_kernels::BFloat16>()
                          .Arg<pallas_kernels::BFloat16>()
                          .Arg<pallas_kernels::Float32>()
                          .Arg<pallas_kernels::Float32>()
                          .Arg<::xla::ffi::Buffer<::xla::ffi::S32>>()
                          .Ret<pallas_kernels::BFloat16>()
                          .Ret<pallas_kernels::BFloat16>()
                          .Ret<pallas_kernels::BFloat16>());
