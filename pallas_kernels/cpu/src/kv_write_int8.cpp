// A step's keys and values into their slots of a cache in bytes, quantized on the way, in place: the results are the
// pools themselves. With rotary embedding before it, or without. For processors whose attention takes such a cache.
#if defined(__x86_64__)
#include <algorithm>
#include <string>
#include <vector>

#include "instruction_set.h"
#include "int8_pool.h"
#include "parallel.h"
#include "quantize_head.h"
#include "rope.h"
#include "shapes.h"
#include "targets.h"

namespace pallas_kernels {
namespace {

namespace ffi = ::xla::ffi;
using BFloat16 = ffi::Buffer<ffi::BF16>;
using Float32 = ffi::Buffer<ffi::F32>;
using Int32 = ffi::Buffer<ffi::S32>;

constexpr int64_t kTokens = 16;  // in a piece of work

struct Int8Pool {
  Int8Pool(const Int8Values& bytes, const Int8Scales& factors)
      : values(bytes.typed_data()), scales(factors.typed_data()), kv_heads(bytes.dimensions()[1]),
        block_size(bytes.dimensions()[2]), head_dim(bytes.dimensions()[3]) {}

  // Puts a token's heads, [kv_heads, head_dim], into a slot.
  void write(int64_t slot, const uint16_t* heads) const {
    const int64_t block = slot / block_size, offset = slot % block_size;
    for (int64_t head = 0; head < kv_heads; ++head) {
      const int64_t at = (block * kv_heads + head) * block_size + offset;
      scales[at] = avx512_bf16::quantize_head(heads + head * head_dim, head_dim, values + at * head_dim);
    }
  }

  int8_t* values;
  float* scales;
  int64_t kv_heads, block_size, head_dim;
};

const uint16_t* bits(const BFloat16& buffer) { return reinterpret_cast<const uint16_t*>(buffer.typed_data()); }

// A pool, and the results that must be it.
struct Operand {
  const Int8Values& values;
  const Int8Scales& scales;
  const Int8Values& values_result;
  const Int8Scales& scales_result;

  std::string find_wrong() const {
    if (!fit_together(values, scales)) return "pools must be [P, K, S, H] with scales [P, K, S]";
    if (values.typed_data() != values_result.typed_data() || scales.typed_data() != scales_result.typed_data())
      return "the results must alias the pools";
    return {};
  }
};

// Which token's slot is outside the pool, or nothing.
std::string find_wrong_slot(const Int32& slots, int64_t count) {
  const int32_t* slot = slots.typed_data();
  for (int64_t token = 0; token < slots.dimensions()[0]; ++token)
    if (slot[token] < 0 || slot[token] >= count)
      return "token " + std::to_string(token) + " has slot " + std::to_string(slot[token]) + " of " +
             std::to_string(count);
  return {};
}

std::string find_wrong(const Operand& k, const Operand& v, const Int32& slots) {
  for (const std::string& wrong : {k.find_wrong(), v.find_wrong()})
    if (!wrong.empty()) return wrong;
  const auto ks = k.values.dimensions(), vs = v.values.dimensions();
  if (!std::equal(ks.begin(), ks.begin() + 3, vs.begin())) return "the pools must be alike but for the head dim";
  if (slots.dimensions().size() != 1) return "slots must be [T]";
  return find_wrong_slot(slots, ks[0] * ks[2]);
}

ffi::Error fail(const char* operation, const std::string& wrong) {
  return ffi::Error::InvalidArgument(std::string(operation) + ": " + wrong);
}

ffi::Error not_here(const char* operation) {
  return ffi::Error(ffi::ErrorCode::kUnimplemented, std::string(operation) + ": int8 pools need AVX512-BF16 or AMX");
}

// Calls write(token, slot) for the tokens that are not padding.
template <typename Write>
void for_tokens(ffi::ThreadPool& threads, const Int32& slots, int64_t block_size, const Write& write) {
  const int64_t tokens = slots.dimensions()[0];
  const int32_t* slot = slots.typed_data();
  parallel_for(threads, (tokens + kTokens - 1) / kTokens, [&](int64_t part) {
    const int64_t end = std::min((part + 1) * kTokens, tokens);
    for (int64_t token = part * kTokens; token < end; ++token) write(token, slot[token], slot[token] < block_size);
  });
}

ffi::Error kv_write(ffi::ThreadPool threads, Int8Values k_pool, Int8Scales k_scales, Int8Values v_pool,
                    Int8Scales v_scales, BFloat16 k, BFloat16 v, Int32 slots, ffi::Result<Int8Values> k_result,
                    ffi::Result<Int8Scales> k_scales_result, ffi::Result<Int8Values> v_result,
                    ffi::Result<Int8Scales> v_scales_result) {
  const char* name = "kv_write";
  const std::string wrong = find_wrong({k_pool, k_scales, *k_result, *k_scales_result},
                                       {v_pool, v_scales, *v_result, *v_scales_result}, slots);
  if (!wrong.empty()) return fail(name, wrong);
  if (!has_products_of_bytes()) return not_here(name);
  const Int8Pool keys(k_pool, k_scales), values(v_pool, v_scales);
  const int64_t tokens = slots.dimensions()[0];
  if (!is(k.dimensions(), {tokens, keys.kv_heads, keys.head_dim}) ||
      !is(v.dimensions(), {tokens, values.kv_heads, values.head_dim}))
    return fail(name, "keys and values must be [T, K, H]");
  for_tokens(threads, slots, keys.block_size, [&](int64_t token, int64_t slot, bool padding) {
    if (padding) return;
    keys.write(slot, bits(k) + token * keys.kv_heads * keys.head_dim);
    values.write(slot, bits(v) + token * values.kv_heads * values.head_dim);
  });
  return ffi::Error::Success();
}

ffi::Error rope_kv_write(ffi::ThreadPool threads, Int8Values k_pool, Int8Scales k_scales, Int8Values v_pool,
                         Int8Scales v_scales, BFloat16 qkv, Float32 cos, Float32 sin, Int32 slots,
                         ffi::Result<Int8Values> k_result, ffi::Result<Int8Scales> k_scales_result,
                         ffi::Result<Int8Values> v_result, ffi::Result<Int8Scales> v_scales_result,
                         ffi::Result<BFloat16> q) {
  const char* name = "rope_kv_write";
  const std::string wrong = find_wrong({k_pool, k_scales, *k_result, *k_scales_result},
                                       {v_pool, v_scales, *v_result, *v_scales_result}, slots);
  if (!wrong.empty()) return fail(name, wrong);
  if (!has_products_of_bytes()) return not_here(name);
  const Int8Pool keys(k_pool, k_scales), values(v_pool, v_scales);
  const int64_t tokens = slots.dimensions()[0], kv_heads = keys.kv_heads, head_dim = keys.head_dim;
  const auto xs = qkv.dimensions();
  const int64_t heads = xs.size() == 3 ? xs[1] - 2 * kv_heads : 0;
  if (heads < 1 || xs[0] != tokens || xs[2] != head_dim || values.head_dim != head_dim || head_dim % 2 != 0)
    return fail(name, "qkv and the pools do not fit together");
  if (!is(q->dimensions(), {tokens, heads, head_dim})) return fail(name, "the queries must be [T, N, H]");
  if (!is(cos.dimensions(), {tokens, head_dim / 2}) || !is(sin.dimensions(), {tokens, head_dim / 2}))
    return fail(name, "cos and sin must be [T, H / 2]");
  uint16_t* rotated = reinterpret_cast<uint16_t*>(q->typed_data());
  for_tokens(threads, slots, keys.block_size, [&](int64_t token, int64_t slot, bool padding) {
    thread_local std::vector<uint16_t> key;
    const uint16_t* from = bits(qkv) + token * xs[1] * head_dim;
    const float *c = cos.typed_data() + token * (head_dim / 2), *s = sin.typed_data() + token * (head_dim / 2);
    avx512_bf16::rope(from, c, s, heads, head_dim, rotated + token * heads * head_dim, head_dim);
    if (padding) return;
    key.resize(kv_heads * head_dim);
    avx512_bf16::rope(from + heads * head_dim, c, s, kv_heads, head_dim, key.data(), head_dim);
    keys.write(slot, key.data());
    values.write(slot, from + (heads + kv_heads) * head_dim);
  });
  return ffi::Error::Success();
}

auto pools() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<Int8Values>()
      .Arg<Int8Scales>()
      .Arg<Int8Values>()
      .Arg<Int8Scales>();
}

}  // namespace
}  // namespace pallas_kernels

PALLAS_KERNELS_TARGET(pallas_kernels_kv_write_int8_v1, pallas_kernels::kv_write,
                      pallas_kernels::pools()
                          .Arg<pallas_kernels::BFloat16>()
                          .Arg<pallas_kernels::BFloat16>()
                          .Arg<pallas_kernels::Int32>()
                          .Ret<pallas_kernels::Int8Values>()
                          .Ret<pallas_kernels::Int8Scales>()
                          .Ret<pallas_kernels::Int8Values>()
                          .Ret<pallas_kernels::Int8Scales>());

PALLAS_KERNELS_TARGET(pallas_kernels_rope_kv_write_int8_v1, pallas_kernels::rope_kv_write,
                      pallas_kernels::pools()
                          .Arg<pallas_kernels::BFloat16>()
                          .Arg<pallas_kernels::Float32>()
                          .Arg<pallas_kernels::Float32>()
                          .Arg<pallas_kernels::Int32>()
                          .Ret<pallas_kernels::Int8Values>()
                          .Ret<pallas_kernels::Int8Scales>()
                          .Ret<pallas_kernels::Int8Values>()
                          .Ret<pallas_kernels::Int8Scales>()
                          .Ret<pallas_kernels::BFloat16>());
#endif
