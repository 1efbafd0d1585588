// Prints a hash of what each kernel of INSTRUCTION_SET makes of the same random numbers, one a line. For processors that
// are there only as emulators: test_emulated_bits.py.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "attention_plan.h"
#include "flush_denormals.h"
#include "gguf.h"
#include "matmul.h"
#include "rms_norm.h"
#include "rope.h"
#include "sampler.h"

using namespace pallas_kernels;

namespace {

uint64_t state = 1;

uint32_t random_bits() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 33);
}

float random_float() { return static_cast<float>(random_bits() % 65536) / 16384 - 2; }

uint16_t random_bfloat16() {
  const float number = random_float();
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

template <typename Number, typename Make>
std::vector<Number> fill(size_t count, const Make& make) {
  std::vector<Number> numbers(count);
  for (Number& number : numbers) number = static_cast<Number>(make());
  return numbers;
}

template <typename Number>
void show(const char* name, const std::vector<Number>& numbers) {
  uint64_t hash = 14695981039346656037u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(numbers.data());
  for (size_t i = 0; i < numbers.size() * sizeof(Number); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  std::printf("%s %016llx\n", name, static_cast<unsigned long long>(hash));
}

void multiply(const Matmul& m) {
  const int64_t blocks = num_blocks(m), bytes = blocks * num_steps(m.inputs) * kStepBytes;
  const std::unique_ptr<char, decltype(&std::free)> packed(static_cast<char*>(std::aligned_alloc(64, bytes)), std::free);
  for (int64_t b = 0; b < blocks; ++b) INSTRUCTION_SET::pack_rows(m, packed.get(), b);
  INSTRUCTION_SET::multiply(m, packed.get(), 0, m.outputs, 0, blocks, kNoOutput);
}

void products() {
  constexpr int64_t kTokens = 11, kOutputs = 21;
  for (const int64_t inputs : {1, 70, 576}) {
    const auto x = fill<uint16_t>(kTokens * inputs, random_bfloat16), w = fill<uint16_t>(2 * kOutputs * inputs, random_bfloat16);
    for (const bool gated : {false, true}) {
      std::vector<uint16_t> y(kTokens * kOutputs);
      Matmul m{};
      m.x = x.data(), m.w = reinterpret_cast<const uint8_t*>(w.data()), m.row_bytes = 2 * inputs, m.kind = GGUFKind::kBF16;
      m.y = y.data(), m.gated = gated, m.tokens = m.not_zeros = kTokens, m.inputs = inputs, m.outputs = kOutputs;
      multiply(m);
      show(gated ? "gated_matmul" : "matmul", y);
    }
  }
}

// A block whose halves are no large numbers.
std::vector<uint8_t> random_blocks(GGUFKind kind, int64_t count) {
  const Block block = block_of(kind);
  auto raw = fill<uint8_t>(static_cast<size_t>(block.bytes * count), random_bits);
  for (int64_t b = 0; b < count; ++b)
    for (const int64_t at : {int64_t{1}, int64_t{3}, block.bytes - 1}) raw[b * block.bytes + at] &= 0xbf;
  return raw;
}

void quantized() {
  constexpr int64_t kTokens = 11, kInputs = 512, kOutputs = 9;
  const auto x = fill<uint16_t>(kTokens * kInputs, random_bfloat16);
  for (const GGUFKind kind : {GGUFKind::kQ4_0, GGUFKind::kQ4_1, GGUFKind::kQ5_0, GGUFKind::kQ5_1, GGUFKind::kQ8_0,
                              GGUFKind::kQ4_K, GGUFKind::kQ6_K}) {
    const int64_t blocks = kInputs / block_of(kind).elements;
    const auto w = random_blocks(kind, blocks * kOutputs);
    std::vector<float> y(kTokens * kOutputs);
    Matmul m{};
    m.x = x.data(), m.w = w.data(), m.row_bytes = blocks * block_of(kind).bytes, m.kind = kind;
    m.y = y.data(), m.y_is_float32 = true, m.tokens = m.not_zeros = kTokens, m.inputs = kInputs, m.outputs = kOutputs;
    multiply(m);
    show("quantized_matmul", y);
    std::vector<uint16_t> decoded(kInputs * kOutputs);
    INSTRUCTION_SET::decode_gguf(static_cast<int>(kind), w.data(), blocks * kOutputs, decoded.data(), true);
    show("decode_gguf", decoded);
  }
  const auto w = fill<uint8_t>(kOutputs * kInputs, random_bits);
  const auto scale = fill<float>(kOutputs, random_float);
  std::vector<uint8_t> codes(4 * kQuantizedTokens * kInputs);
  std::vector<float> x_scale(kTokens), y(kTokens * kOutputs);
  INSTRUCTION_SET::quantize_rows(x.data(), kInputs, 0, kTokens, codes.data(), x_scale.data());
  Matmul m{};
  m.x = reinterpret_cast<const uint16_t*>(codes.data()), m.w = w.data(), m.row_bytes = kInputs, m.kind = GGUFKind::kI8;
  m.scale = scale.data(), m.x_scale = x_scale.data(), m.y = y.data(), m.y_is_float32 = true;
  m.tokens = m.not_zeros = kTokens, m.inputs = kInputs / 2, m.outputs = kOutputs;
  multiply(m);
  show("int8_matmul", y);
}

void rotary_embedding() {
  const auto x = fill<uint16_t>(3 * 80, random_bfloat16);
  const auto cos = fill<float>(40, random_float), sin = fill<float>(40, random_float);
  std::vector<uint16_t> y(3 * 80);
  INSTRUCTION_SET::rope(x.data(), cos.data(), sin.data(), 3, 80, y.data(), 80);
  show("rope", y);
}

void normalization() {
  constexpr int64_t kRows = 5, kSize = 117;
  const auto x = fill<uint16_t>(kRows * kSize, random_bfloat16), weight = fill<uint16_t>(kSize, random_bfloat16);
  std::vector<uint16_t> y(kRows * kSize);
  INSTRUCTION_SET::rms_norm({x.data(), weight.data(), y.data(), kRows, 1, kSize, 1e-5f, 1}, 0, kRows);
  show("rms_norm", y);
}

void attention(int64_t head_dim, int64_t block_size, int64_t window, float soft_cap) {
  const std::vector<int32_t> lengths{700, 90}, query_start{0, 1, 41};
  constexpr int64_t kHeads = 6, kKvHeads = 2, kTokens = 41;
  const int64_t width = (700 + block_size - 1) / block_size, blocks = 2 * width + 1;
  std::vector<int32_t> tables(2 * width);
  for (size_t i = 0; i < tables.size(); ++i) tables[i] = static_cast<int32_t>(tables.size() - i);
  const auto q = fill<uint16_t>(kTokens * kHeads * head_dim, random_bfloat16);
  const auto k = fill<uint16_t>(blocks * kKvHeads * block_size * head_dim, random_bfloat16);
  const auto v = fill<uint16_t>(blocks * kKvHeads * block_size * head_dim, random_bfloat16);
  const auto sinks = fill<float>(kHeads, random_float);
  std::vector<uint16_t> out(q.size());
  std::vector<float> lse(kTokens * kHeads);
  Attention a{};
  a.q = q.data(), a.k_pool = k.data(), a.v_pool = v.data(), a.tables = tables.data();
  a.query_start = query_start.data(), a.lengths = lengths.data(), a.sinks = window ? sinks.data() : nullptr;
  a.out = out.data(), a.lse = lse.data(), a.tokens = kTokens, a.heads = kHeads, a.head_dim = head_dim;
  a.blocks = blocks, a.kv_heads = kKvHeads, a.block_size = block_size, a.rows = 2, a.table_width = width;
  a.window = window, a.scale = 0.125f, a.soft_cap = soft_cap;
  Plan plan = make_plan(a, 1);
  std::vector<char> scratch(plan.scratch_bytes + 64);
  void* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
  for (const auto& tiles : plan.phases)
    for (const Tile& tile : tiles) INSTRUCTION_SET::attend(a, tile, nullptr, aligned);
  show("attention", out);
  show("lse", lse);
}

void sampling() {
  constexpr int64_t kRows = 6, kVocabulary = 1003, kTop = 5;
  const auto logits = fill<float>(kRows * kVocabulary, [] { return 4 * random_float(); });
  const std::vector<float> temperature{1, 0.7f, 1, 2, 1, 1}, top_p{1, 0.9f, 1, 0.99f, 1, 1};
  const std::vector<float> log_min_p{-INFINITY, -INFINITY, -3, -INFINITY, -INFINITY, -INFINITY};
  const std::vector<int32_t> top_k{0, 0, 0, 300, 5, 0};
  const std::vector<uint8_t> greedy{0, 0, 0, 0, 0, 1}, all(kRows, 1);
  const auto words = fill<uint32_t>(kRows, random_bits);
  std::vector<int32_t> token(kRows), limit_token(kRows), rank(kRows), top_ids(kRows * kTop);
  std::vector<float> limit(kRows), logprob(kRows), top_logprobs(kRows * kTop);
  const SampleRows rows{logits.data(), logits.data(), kRows, kVocabulary, temperature.data(), top_p.data(), log_min_p.data(),
                        top_k.data(), greedy.data(), words.data(), words.data(), words.data(), words.data(), all.data(),
                        all.data(), token.data(), limit.data(), limit_token.data()};
  const TokenLogprobs out{logprob.data(), rank.data(), top_ids.data(), top_logprobs.data(), kTop};
  std::vector<char> scratch(INSTRUCTION_SET::sampler_scratch_bytes(kVocabulary) + 64);
  void* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
  for (int64_t row = 0; row < kRows; ++row) INSTRUCTION_SET::sample_row(rows, out, row, aligned);
  show("tokens", token), show("limits", limit), show("limit_tokens", limit_token), show("ranks", rank);
  show("logprobs", logprob), show("top_ids", top_ids), show("top_logprobs", top_logprobs);
}

}  // namespace

int main() {
  const FlushDenormals flush;
  products();
  quantized();
  rotary_embedding();
  normalization();
  attention(64, 16, 0, 0);
  attention(80, 24, 300, 3);
  sampling();
}
