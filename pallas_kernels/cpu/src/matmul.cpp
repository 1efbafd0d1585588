#include "matmul.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "instruction_set.h"
#include "matmul_a8.h"
#include "parallel.h"
#include "targets.h"

namespace pallas_kernels {
namespace {

namespace ffi = ::xla::ffi;

int64_t divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many outputs are a piece of work: few pieces, long enough to be read ahead in, and of those sizes the one by which
// the thread with the most to do has the least.
int64_t outputs_per_piece(int64_t outputs, int64_t threads) {
  constexpr int64_t kUnit = 32;
  const int64_t units = divide(outputs, kUnit);
  int64_t best = units, least = units;
  for (const int64_t pieces_per_thread : {4, 5, 3, 6, 2, 7, 8, 1}) {
    const int64_t piece = divide(units, threads * pieces_per_thread);
    const int64_t most = divide(divide(units, piece), threads) * piece;
    if (most < least) best = piece, least = most;
  }
  return best * kUnit;
}

// Up to which token x is not all zeros, as what a step is padded with is. Only worth knowing of few tokens.
int64_t count_not_zeros(const Matmul& m) {
  constexpr int64_t kFew = 8;
  int64_t count = m.tokens;
  for (; count > 0 && count <= kFew; --count) {
    const uint16_t *at = m.x + (count - 1) * m.inputs, *const end = at + m.inputs;
    uint16_t bits = 0;
    while (at < end && !bits)
      for (const uint16_t* const stop = std::min(at + 64, end); at < stop; ++at) bits |= *at & 0x7fff;
    if (bits) break;
  }
  return count;
}

void multiply_packed(ffi::ThreadPool& pool, const Matmul& m, const void* packed) {
  const auto multiply = m.rounds_x ? PALLAS_KERNELS_CHOSEN(multiply_a8)
                                   : PALLAS_KERNELS_CHOSEN_OR_TILES(multiply, multiply_amx);
  const int64_t blocks = num_blocks(m);
  const int64_t outputs = outputs_per_piece(m.outputs, std::max<int64_t>(pool.num_threads(), 1));
  const int64_t pieces = divide(m.outputs, outputs);
  parallel_for(pool, pieces * divide(blocks, kBlocksPerCall), [&](int64_t i, int64_t next) {
    const int64_t o = i % pieces * outputs, b = i / pieces * kBlocksPerCall;
    multiply(m, packed, o, std::min(o + outputs, m.outputs), b, std::min(b + kBlocksPerCall, blocks),
             next == kNoPiece ? kNoOutput : next % pieces * outputs);
  });
}

void pack(ffi::ThreadPool& pool, const Matmul& m, void* packed) {
  const auto pack_rows = m.rounds_x ? PALLAS_KERNELS_CHOSEN(pack_a8) : PALLAS_KERNELS_CHOSEN(pack_rows);
  const int64_t blocks = num_blocks(m);
  if (blocks > 2) return parallel_for(pool, blocks, [&](int64_t b) { pack_rows(m, packed, b); });
  for (int64_t b = 0; b < blocks; ++b) pack_rows(m, packed, b);
}

int64_t whole_lines(int64_t bytes) { return 64 * divide(bytes, 64); }

// What x takes once it is quantized: its rows of bytes, then its factors.
int64_t code_bytes(const Matmul& m) {
  return m.kind == GGUFKind::kI8 ? whole_lines(num_blocks(m) * kRowsPerBlock * m.inputs) : 0;
}
int64_t scale_bytes(const Matmul& m) { return m.kind == GGUFKind::kI8 ? whole_lines(4 * num_blocks(m) * kQuantizedTokens) : 0; }

// Of I8.
void quantize_and_pack(ffi::ThreadPool& pool, Matmul& m, uint8_t* codes, void* packed) {
  float* scale = reinterpret_cast<float*>(codes + code_bytes(m));
  const uint16_t* x = m.x;
  const int64_t inputs = m.inputs, blocks_at_once = kRowsPerBlock / kQuantizedTokens;
  m.x = reinterpret_cast<const uint16_t*>(codes), m.inputs /= 2, m.x_scale = scale;
  m.x_is_higher = instruction_set() == InstructionSet::kAvx512f || instruction_set() == InstructionSet::kAvx512Bf16;
  const auto quantize_rows = PALLAS_KERNELS_CHOSEN(quantize_rows);
  const auto pack_rows = PALLAS_KERNELS_CHOSEN(pack_rows);
  parallel_for(pool, divide(m.tokens, kRowsPerBlock), [&](int64_t i) {
    quantize_rows(x, inputs, i * kRowsPerBlock, std::min((i + 1) * kRowsPerBlock, m.tokens), codes, scale);
    for (int64_t b = i * blocks_at_once; b < std::min((i + 1) * blocks_at_once, num_blocks(m)); ++b)
      pack_rows(m, packed, b);
  });
}

// What a handler is called with, but for w.
struct Call {
  const char* name;
  bool gated;
  ffi::ThreadPool& pool;
  const ffi::Buffer<ffi::BF16>& x;
  ffi::AnyBuffer& y;
  ffi::Buffer<ffi::U8>& workspace;
  int64_t activation = 0;  // gated

  ffi::Error invalid(const char* text) const { return ffi::Error::InvalidArgument(std::string(name) + ": " + text); }
};

// How many rows each of some weights has; rows and weights lie one after the other.
struct Groups {
  const int32_t* sizes;
  int64_t count;
};

int64_t workspace_bytes(const Matmul& m) {
  const int64_t inputs = m.kind == GGUFKind::kI8 ? m.inputs / 2 : m.inputs;
  return code_bytes(m) + scale_bytes(m) + num_blocks(m) * num_steps(inputs) * (m.rounds_x ? kA8StepBytes : kStepBytes);
}

void multiply_rows(const Call& call, Matmul m) {
  m.not_zeros = count_not_zeros(m);
  uint8_t* packed = call.workspace.typed_data() + code_bytes(m) + scale_bytes(m);
  if (m.kind == GGUFKind::kI8)
    quantize_and_pack(call.pool, m, call.workspace.typed_data(), packed);
  else
    pack(call.pool, m, packed);
  multiply_packed(call.pool, m, packed);
}

ffi::Error compute(const Call& call, Matmul m, const Groups* groups = nullptr) {
  const ffi::DataType type = call.y.element_type();
  if (type != ffi::BF16 && (call.gated || type != ffi::F32))
    return call.invalid(call.gated ? "y must be bfloat16" : "y must be bfloat16 or float32");
  if (call.activation < 0 || call.activation >= static_cast<int64_t>(Activation::kCount))
    return call.invalid("activation is not known");
  if (instruction_set() == InstructionSet::kNone)
    return ffi::Error(ffi::ErrorCode::kUnimplemented,
                      std::string(call.name) + ": this processor has none of the instruction sets");
  m.x = reinterpret_cast<const uint16_t*>(call.x.typed_data());
  m.y = call.y.untyped_data(), m.y_is_float32 = type == ffi::F32, m.gated = call.gated;
  m.activation = static_cast<Activation>(call.activation);
  m.tokens = call.x.dimensions()[0], m.inputs = call.x.dimensions()[1], m.outputs = call.y.dimensions()[1];
  if (m.tokens == 0 || m.outputs == 0) return ffi::Error::Success();
  if (m.inputs == 0) {
    std::memset(m.y, 0, call.y.size_bytes());
    return ffi::Error::Success();
  }
  if (static_cast<int64_t>(call.workspace.element_count()) < workspace_bytes(m))
    return call.invalid("the workspace is too small");
  if (groups == nullptr) {
    multiply_rows(call, m);
    return ffi::Error::Success();
  }
  const int64_t y_bytes = m.outputs * (m.y_is_float32 ? 4 : 2);
  char* y = static_cast<char*>(m.y);
  int64_t row = 0;
  for (int64_t g = 0; g < groups->count; ++g) {
    Matmul each = m;
    each.tokens = std::clamp<int64_t>(groups->sizes[g], 0, m.tokens - row);
    if (each.tokens == 0) continue;
    each.x += row * m.inputs, each.y = y + row * y_bytes, each.w += g * m.outputs * m.row_bytes;
    if (m.scale != nullptr) each.scale += g * m.outputs;
    multiply_rows(call, each);
    row += each.tokens;
  }
  std::memset(y + row * y_bytes, 0, (m.tokens - row) * y_bytes);
  return ffi::Error::Success();
}

int64_t rows_of_w(const Call& call, const Groups* groups) {
  return call.y.dimensions()[1] * (groups != nullptr ? groups->count : call.gated ? 2 : 1);
}

ffi::Error plain(const Call& call, const ffi::Buffer<ffi::BF16>& w, const Groups* groups = nullptr) {
  const auto xs = call.x.dimensions(), ws = w.dimensions(), ys = call.y.dimensions();
  if (xs.size() != 2 || ws.size() != 2 || ys.size() != 2) return call.invalid("x, w and y must have two dimensions");
  if (xs[1] != ws[1] || ys[0] != xs[0] || ws[0] != rows_of_w(call, groups))
    return call.invalid(groups != nullptr ? "shapes must be x[T, I], w[E * O, I] and y[T, O]"
                        : call.gated      ? "shapes must be x[T, I], w[2 * F, I] and y[T, F]"
                                          : "shapes must be x[T, I], w[O, I] and y[T, O]");
  Matmul m{};
  m.w = reinterpret_cast<const uint8_t*>(w.typed_data()), m.row_bytes = 2 * ws[1], m.kind = GGUFKind::kBF16;
  return compute(call, m, groups);
}

// attribute: a kind, and kRoundsX more if x is to be rounded.
ffi::Error quantized(const Call& call, const ffi::Buffer<ffi::U8>& w, const ffi::Buffer<ffi::F32>& scale, int64_t attribute,
                     const Groups* groups = nullptr) {
  constexpr int64_t kRoundsX = 256;
  const bool rounds_x = attribute >= kRoundsX;
  const int64_t kind = rounds_x ? attribute - kRoundsX : attribute;
  const auto xs = call.x.dimensions(), ws = w.dimensions(), ys = call.y.dimensions(), ss = scale.dimensions();
  const Block block = block_of(static_cast<GGUFKind>(kind));
  if (block.bytes == 0 || kind == static_cast<int64_t>(GGUFKind::kBF16)) return call.invalid("kind is not known");
  if (xs.size() != 2 || ws.size() != 2 || ys.size() != 2) return call.invalid("x, w and y must have two dimensions");
  if (xs[1] % block.elements != 0 || xs[1] % kInputsPerStep != 0)
    return call.invalid("x must have whole blocks of inputs, in multiples of 32");
  if (ws[1] != xs[1] / block.elements * block.bytes || ys[0] != xs[0] || ws[0] != rows_of_w(call, groups))
    return call.invalid(groups != nullptr ? "shapes must be x[T, I], w[E * O, bytes of I] and y[T, O]"
                        : call.gated      ? "shapes must be x[T, I], w[2 * F, bytes of I] and y[T, F]"
                                          : "shapes must be x[T, I], w[O, bytes of I] and y[T, O]");
  const bool scaled = kind == static_cast<int64_t>(GGUFKind::kI8);
  if (scaled && rounds_x) return call.invalid("x is rounded to 8 bits beside blocks alone");
  if (scaled && xs[1] * 128 * 128 > INT32_MAX) return call.invalid("x has too many inputs for sums of 32 bits");
  if (ss.size() != 1 || ss[0] != (scaled ? ws[0] : 0))
    return call.invalid(scaled ? "scale must have one number for each row of w" : "scale must be empty");
  Matmul m{};
  m.w = w.typed_data(), m.row_bytes = ws[1], m.kind = static_cast<GGUFKind>(kind), m.rounds_x = rounds_x;
  m.scale = scaled ? scale.typed_data() : nullptr;
  return compute(call, m, groups);
}

ffi::Error matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::BF16> w, ffi::Result<ffi::AnyBuffer> y,
                  ffi::Result<ffi::Buffer<ffi::U8>> workspace) {
  return plain({"matmul", false, pool, x, *y, *workspace}, w);
}

ffi::Error grouped_matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::BF16> w,
                          ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::Buffer<ffi::U8>> workspace,
                          ffi::Buffer<ffi::S32> sizes) {
  const Groups groups{sizes.typed_data(), static_cast<int64_t>(sizes.element_count())};
  return plain({"grouped_matmul", false, pool, x, *y, *workspace}, w, &groups);
}

ffi::Error gated_matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::BF16> w,
                        ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::Buffer<ffi::U8>> workspace, int64_t activation) {
  return plain({"gated_matmul", true, pool, x, *y, *workspace, activation}, w);
}

ffi::Error quantized_matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::U8> w,
                            ffi::Buffer<ffi::F32> scale, ffi::Result<ffi::AnyBuffer> y,
                            ffi::Result<ffi::Buffer<ffi::U8>> workspace, int64_t kind) {
  return quantized({"quantized_matmul", false, pool, x, *y, *workspace}, w, scale, kind);
}

ffi::Error quantized_gated_matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::U8> w,
                                  ffi::Buffer<ffi::F32> scale, ffi::Result<ffi::AnyBuffer> y,
                                  ffi::Result<ffi::Buffer<ffi::U8>> workspace, int64_t kind, int64_t activation) {
  return quantized({"quantized_gated_matmul", true, pool, x, *y, *workspace, activation}, w, scale, kind);
}

ffi::Error quantized_grouped_matmul(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::U8> w,
                                    ffi::Buffer<ffi::F32> scale, ffi::Result<ffi::AnyBuffer> y,
                                    ffi::Result<ffi::Buffer<ffi::U8>> workspace, int64_t kind,
                                    ffi::Buffer<ffi::S32> sizes) {
  const Groups groups{sizes.typed_data(), static_cast<int64_t>(sizes.element_count())};
  return quantized({"quantized_grouped_matmul", false, pool, x, *y, *workspace}, w, scale, kind, &groups);
}

auto operands() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::Buffer<ffi::BF16>>()
      .Arg<ffi::Buffer<ffi::BF16>>()
      .Ret<ffi::AnyBuffer>()
      .Ret<ffi::Buffer<ffi::U8>>();
}

auto quantized_operands() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::Buffer<ffi::BF16>>()
      .Arg<ffi::Buffer<ffi::U8>>()
      .Arg<ffi::Buffer<ffi::F32>>()
      .Ret<ffi::AnyBuffer>()
      .Ret<ffi::Buffer<ffi::U8>>()
      .Attr<int64_t>("kind");
}

}  // namespace
}  // namespace pallas_kernels

PALLAS_KERNELS_TARGET(pallas_kernels_matmul_v1, pallas_kernels::matmul, pallas_kernels::operands());
PALLAS_KERNELS_TARGET(pallas_kernels_grouped_matmul_v1, pallas_kernels::grouped_matmul,
                      pallas_kernels::operands().Arg<xla::ffi::Buffer<xla::ffi::S32>>());
PALLAS_KERNELS_TARGET(pallas_kernels_gated_matmul_v1, pallas_kernels::gated_matmul,
                      pallas_kernels::operands().Attr<int64_t>("activation"));
PALLAS_KERNELS_TARGET(pallas_kernels_quantized_matmul_v1, pallas_kernels::quantized_matmul,
                      pallas_kernels::quantized_operands());
PALLAS_KERNELS_TARGET(pallas_kernels_quantized_gated_matmul_v1, pallas_kernels::quantized_gated_matmul,
                      pallas_kernels::quantized_operands().Attr<int64_t>("activation"));
PALLAS_KERNELS_TARGET(pallas_kernels_quantized_grouped_matmul_v1, pallas_kernels::quantized_grouped_matmul,
                      pallas_kernels::quantized_operands().Arg<xla::ffi::Buffer<xla::ffi::S32>>());
