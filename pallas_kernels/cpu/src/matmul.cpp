#include "matmul.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "instruction_set.h"
#include "parallel.h"
#include "targets.h"

namespace pallas_kernels {
namespace {

namespace ffi = ::xla::ffi;

int64_t divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

void with_tiles(ffi::ThreadPool& pool, const Matmul& m, void* packed) {
  const int64_t blocks = num_blocks(m.tokens);
  if (blocks <= 2) {
    for (int64_t b = 0; b < blocks; ++b) matmul_amx_pack(m, packed, b);
  } else {
    parallel_for(pool, blocks, [&](int64_t b) { matmul_amx_pack(m, packed, b); });
  }
  // Pieces long enough to be read ahead in, and enough of them that threads end together.
  constexpr int64_t kOutputs = 64, kPiecesPerThread = 4;
  const int64_t threads = std::max<int64_t>(pool.num_threads(), 1);
  const int64_t outputs = kOutputs * divide(divide(m.outputs, kOutputs), threads * kPiecesPerThread);
  const int64_t pieces = divide(m.outputs, outputs);
  parallel_for(pool, pieces * divide(blocks, kBlocksPerCall), [&](int64_t i, int64_t next) {
    const int64_t o = i % pieces * outputs, b = i / pieces * kBlocksPerCall;
    matmul_amx(m, packed, o, std::min(o + outputs, m.outputs), b, std::min(b + kBlocksPerCall, blocks),
               next == kNoPiece ? kNoOutput : next % pieces * outputs);
  });
}

ffi::Error compute(ffi::ThreadPool& pool, const std::string& name, bool gated, const ffi::Buffer<ffi::BF16>& x,
                   const ffi::Buffer<ffi::BF16>& w, ffi::AnyBuffer& y, ffi::Buffer<ffi::U8>& workspace) {
  const auto invalid = [&name](const char* text) { return ffi::Error::InvalidArgument(name + ": " + text); };
  const auto xs = x.dimensions(), ws = w.dimensions(), ys = y.dimensions();
  if (xs.size() != 2 || ws.size() != 2 || ys.size() != 2) return invalid("x, w and y must have two dimensions");
  if (xs[1] != ws[1] || ys[0] != xs[0] || ws[0] != (gated ? 2 : 1) * ys[1])
    return invalid(gated ? "shapes must be x[T, I], w[2 * F, I] and y[T, F]" : "shapes must be x[T, I], w[O, I] and y[T, O]");
  const ffi::DataType type = y.element_type();
  if (type != ffi::BF16 && (gated || type != ffi::F32))
    return invalid(gated ? "y must be bfloat16" : "y must be bfloat16 or float32");
  if (instruction_set() == InstructionSet::kNone)
    return ffi::Error(ffi::ErrorCode::kUnimplemented, name + ": this processor has no bfloat16 dot products");

  const Matmul m{reinterpret_cast<const uint16_t*>(x.typed_data()), reinterpret_cast<const uint16_t*>(w.typed_data()),
                 y.untyped_data(), type == ffi::F32, gated, xs[0], xs[1], ys[1]};
  if (m.tokens == 0 || m.outputs == 0) return ffi::Error::Success();
  if (m.inputs == 0) {
    std::memset(m.y, 0, y.size_bytes());
    return ffi::Error::Success();
  }
  if (instruction_set() == InstructionSet::kAmxBf16) {
    if (static_cast<int64_t>(workspace.element_count()) < packed_bytes(m.tokens, m.inputs))
      return invalid("the workspace is too small");
    with_tiles(pool, m, workspace.typed_data());
  } else {
    constexpr int64_t kOutputs = 64;
    parallel_for(pool, divide(m.outputs, kOutputs), [&](int64_t i) {
      matmul_avx512(m, i * kOutputs, std::min((i + 1) * kOutputs, m.outputs));
    });
  }
  return ffi::Error::Success();
}

ffi::Error matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::BF16> w, ffi::Result<ffi::AnyBuffer> y,
                  ffi::Result<ffi::Buffer<ffi::U8>> workspace) {
  return compute(pool, "matmul", false, x, w, *y, *workspace);
}

ffi::Error swiglu(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::BF16> w, ffi::Result<ffi::AnyBuffer> y,
                  ffi::Result<ffi::Buffer<ffi::U8>> workspace) {
  return compute(pool, "swiglu", true, x, w, *y, *workspace);
}

auto operands() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::Buffer<ffi::BF16>>()
      .Arg<ffi::Buffer<ffi::BF16>>()
      .Ret<ffi::AnyBuffer>()
      .Ret<ffi::Buffer<ffi::U8>>();
}

}  // namespace
}  // namespace pallas_kernels

PALLAS_KERNELS_TARGET(pallas_kernels_matmul_v1, pallas_kernels::matmul, pallas_kernels::operands());
PALLAS_KERNELS_TARGET(pallas_kernels_swiglu_v1, pallas_kernels::swiglu, pallas_kernels::operands());
