// A step's keys and values into their slots of the paged cache, in place: the results are the pools themselves.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "parallel.h"
#include "targets.h"
#include "write_ahead.h"

namespace pallas_kernels {
namespace {

namespace ffi = ::xla::ffi;

// One of the two pools and what goes into it.
struct Destination {
  char* pool;          // [blocks, kv_heads, block_size, head bytes]
  const char* values;  // [tokens, kv_heads, head bytes]
  int64_t head_bytes;
};

struct Sizes {
  int64_t blocks, kv_heads, block_size, tokens;
};

std::string find_wrong(const ffi::AnyBuffer& pool, const ffi::AnyBuffer& values, const ffi::AnyBuffer& result,
                       const Sizes& sizes) {
  const auto ps = pool.dimensions(), vs = values.dimensions();
  if (ps.size() != 4 || ps[0] != sizes.blocks || ps[1] != sizes.kv_heads || ps[2] != sizes.block_size)
    return "pools must be [P, K, S, H]";
  if (vs.size() != 3 || vs[0] != sizes.tokens || vs[1] != ps[1] || vs[2] != ps[3])
    return "keys and values must be [T, K, H]";
  if (pool.element_type() != values.element_type()) return "keys and values must have their pool's dtype";
  if (pool.untyped_data() != result.untyped_data()) return "the results must alias the pools";
  return {};
}

ffi::Error kv_write(ffi::ThreadPool threads, ffi::AnyBuffer k_pool, ffi::AnyBuffer v_pool, ffi::AnyBuffer k,
                    ffi::AnyBuffer v, ffi::Buffer<ffi::S32> slots, ffi::Result<ffi::AnyBuffer> k_result,
                    ffi::Result<ffi::AnyBuffer> v_result) {
  if (k_pool.dimensions().size() != 4 || slots.dimensions().size() != 1)
    return ffi::Error::InvalidArgument("kv_write: pools must be [P, K, S, H] and slots [T]");
  const auto shape = k_pool.dimensions();
  const Sizes sizes{shape[0], shape[1], shape[2], slots.dimensions()[0]};
  for (const std::string& wrong :
       {find_wrong(k_pool, k, *k_result, sizes), find_wrong(v_pool, v, *v_result, sizes)})
    if (!wrong.empty()) return ffi::Error::InvalidArgument("kv_write: " + wrong);
  const int32_t* slot = slots.typed_data();
  for (int64_t token = 0; token < sizes.tokens; ++token)
    if (slot[token] < 0 || slot[token] >= sizes.blocks * sizes.block_size)
      return ffi::Error::InvalidArgument("kv_write: token " + std::to_string(token) + " has slot " +
                                         std::to_string(slot[token]) + " of " +
                                         std::to_string(sizes.blocks * sizes.block_size));

  const auto destination = [](const ffi::AnyBuffer& pool, const ffi::AnyBuffer& values) {
    return Destination{static_cast<char*>(pool.untyped_data()), static_cast<const char*>(values.untyped_data()),
                       values.dimensions()[2] * static_cast<int64_t>(ffi::ByteWidth(values.element_type()))};
  };
  const Destination destinations[] = {destination(*k_result, k), destination(*v_result, v)};
  // Calls visit(place, values, bytes) for each head of the tokens from first to last that are not padding.
  const auto for_heads = [&](int64_t first, int64_t last, const auto& visit) {
    for (int64_t token = first; token < last; ++token) {
      const int64_t block = slot[token] / sizes.block_size, offset = slot[token] % sizes.block_size;
      if (block == 0) continue;  // padding
      for (const Destination& to : destinations)
        for (int64_t head = 0; head < sizes.kv_heads; ++head)
          visit(to.pool + ((block * sizes.kv_heads + head) * sizes.block_size + offset) * to.head_bytes,
                to.values + (token * sizes.kv_heads + head) * to.head_bytes, to.head_bytes);
    }
  };
  constexpr int64_t kTokens = 16;
  parallel_for(threads, (sizes.tokens + kTokens - 1) / kTokens, [&](int64_t part) {
    const int64_t first = part * kTokens, last = std::min(first + kTokens, sizes.tokens);
    for_heads(first, last, [](char* place, const char*, int64_t bytes) { ask_to_write(place, bytes); });
    for_heads(first, last, [](char* place, const char* values, int64_t bytes) { std::memcpy(place, values, bytes); });
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace pallas_kernels

PALLAS_KERNELS_TARGET(pallas_kernels_kv_write_v1, pallas_kernels::kv_write,
                      ::xla::ffi::Ffi::Bind()
                          .Ctx<::xla::ffi::ThreadPool>()
                          .Arg<::xla::ffi::AnyBuffer>()
                          .Arg<::xla::ffi::AnyBuffer>()
                          .Arg<::xla::ffi::AnyBuffer>()
                          .Arg<::xla::ffi::AnyBuffer>()
                          .Arg<::xla::ffi::Buffer<::xla::ffi::S32>>()
                          .Ret<::xla::ffi::AnyBuffer>()
                          .Ret<::xla::ffi::AnyBuffer>());
