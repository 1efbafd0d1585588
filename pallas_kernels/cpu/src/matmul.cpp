#include "matmul.h"

#include <algorithm>

#include "instruction_set.h"
#include "parallel.h"
#include "targets.h"

namespace pallas_kernels {
namespace {

namespace ffi = ::xla::ffi;

ffi::Error matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::BF16> w, ffi::Result<ffi::AnyBuffer> y) {
  const auto xs = x.dimensions(), ws = w.dimensions(), ys = y->dimensions();
  if (xs.size() != 2 || ws.size() != 2 || ys.size() != 2)
    return ffi::Error::InvalidArgument("matmul: x, w and y must have two dimensions");
  if (xs[1] != ws[1] || ys[0] != xs[0] || ys[1] != ws[0])
    return ffi::Error::InvalidArgument("matmul: shapes must be x[T, I], w[O, I] and y[T, O]");
  const ffi::DataType type = y->element_type();
  if (type != ffi::BF16 && type != ffi::F32) return ffi::Error::InvalidArgument("matmul: y must be bfloat16 or float32");
  if (instruction_set() == InstructionSet::kNone)
    return ffi::Error(ffi::ErrorCode::kUnimplemented, "matmul: this processor has no bfloat16 dot products");

  const Matmul m{reinterpret_cast<const uint16_t*>(x.typed_data()), reinterpret_cast<const uint16_t*>(w.typed_data()),
                 y->untyped_data(), type == ffi::F32, xs[0], xs[1], ws[0]};
  constexpr int64_t kOutputs = 64;
  parallel_for(pool, (m.outputs + kOutputs - 1) / kOutputs, [&](int64_t i) {
    matmul_avx512(m, i * kOutputs, std::min((i + 1) * kOutputs, m.outputs));
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace pallas_kernels

PALLAS_KERNELS_TARGET(pallas_kernels_matmul_v1, pallas_kernels::matmul,
                      ::xla::ffi::Ffi::Bind()
                          .Ctx<::xla::ffi::ThreadPool>()
                          .Arg<::xla::ffi::Buffer<::xla::ffi::BF16>>()
                          .Arg<::xla::ffi::Buffer<::xla::ffi::BF16>>()
                          .Ret<::xla::ffi::AnyBuffer>());
