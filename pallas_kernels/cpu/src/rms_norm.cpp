#include "rms_norm.h"

#include <algorithm>
#include <string>

#include "instruction_set.h"
#include "parallel.h"
#include "shapes.h"
#include "targets.h"

namespace pallas_kernels {
namespace {

namespace ffi = ::xla::ffi;
using BFloat16 = ffi::Buffer<ffi::BF16>;

ffi::Error normalize(ffi::ThreadPool pool, BFloat16 x, BFloat16 weight, ffi::Result<BFloat16> y, float epsilon,
                     float offset) {
  const auto invalid = [](const char* text) { return ffi::Error::InvalidArgument(std::string("rms_norm: ") + text); };
  const auto xs = x.dimensions(), ws = weight.dimensions();
  if (xs.size() < 2 || xs.back() < 1) return invalid("x must be [..., D] with D >= 1");
  if (ws.size() < 1 || ws.size() > 2 || ws.back() != xs.back() || (ws.size() == 2 && ws[0] != xs[xs.size() - 2]))
    return invalid("weight must be [D] or [heads, D], the last dimensions of x");
  if (!same(y->dimensions(), xs)) return invalid("y must have the shape of x");
  if (x.element_count() == 0) return ffi::Error::Success();
  if (instruction_set() == InstructionSet::kNone)
    return ffi::Error(ffi::ErrorCode::kUnimplemented, "rms_norm: this processor has none of the instruction sets");
  const auto bits = [](const BFloat16& buffer) { return reinterpret_cast<uint16_t*>(buffer.typed_data()); };
  const int64_t size = xs.back(), rows = static_cast<int64_t>(x.element_count()) / size;
  const RmsNorm n{bits(x), bits(weight), bits(*y), rows, ws.size() == 2 ? ws[0] : 1, size, epsilon, offset};
  const auto rms_norm = PALLAS_KERNELS_CHOSEN(rms_norm);
  const int64_t rows_per_piece = std::max<int64_t>(1, 32768 / size);  // shorter ones cost more to hand out
  parallel_for(pool, (rows + rows_per_piece - 1) / rows_per_piece, [&](int64_t i) {
    rms_norm(n, i * rows_per_piece, std::min((i + 1) * rows_per_piece, rows));
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace pallas_kernels

PALLAS_KERNELS_TARGET(pallas_kernels_rms_norm_v1, pallas_kernels::normalize,
                      ::xla::ffi::Ffi::Bind()
                          .Ctx<::xla::ffi::ThreadPool>()
                          .Arg<pallas_kernels::BFloat16>()
                          .Arg<pallas_kernels::BFloat16>()
                          .Ret<pallas_kernels::BFloat16>()
                          .Attr<float>("epsilon")
                          .Attr<float>("offset"));
