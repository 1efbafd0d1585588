// Lists of tokens, and where in them a goal is reached. Included by one source, and by nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "flush_denormals.h"
#include "sampler_math.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kBlock = 16 * kLanes;  // tokens whose maxima, one per lane, are kept
constexpr double kWeightUnit = 0x1p-40;   // the largest weight is 2^40
constexpr int kLimits = 8;
// Distances from the best, in nats, within which the mass is told when all of it is summed.
constexpr float kReach[kLimits] = {1, 2.5, 4, 5.5, 7, 8.5, 10, 12};
constexpr int kDigit = 11;  // bits by which a selection narrows in one pass
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLowestFinite = -0x1.fffffep127f;

int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

__mmask16 lanes(int64_t count) { return static_cast<__mmask16>(count >= kLanes ? 0xffff : (1u << count) - 1); }

__m512i ids_from(int64_t first) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(first)), lane);
}

// An integer of the same order as the float; both zeros are equal, as are all denormals to them.
uint32_t ordered(float x) {
  const float normal = x + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &normal, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Some tokens of a row, ids ascending; as long as the vocabulary, and a vector more for stores beyond the end.
struct Tokens {
  float* value;
  int32_t* id;
  int64_t size;

  void append(__mmask16 chosen, __m512 values, __m512i ids) {
    _mm512_storeu_ps(value + size, _mm512_maskz_compress_ps(chosen, values));
    _mm512_storeu_si512(id + size, _mm512_maskz_compress_epi32(chosen, ids));
    size += __builtin_popcount(chosen);
  }
};

struct Token {
  float value;
  int32_t id;
};

bool precedes(Token a, Token b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

struct Scratch {
  Scratch(void* memory, int64_t vocab) : base(static_cast<char*>(memory)) {
    const size_t numbers = static_cast<size_t>(round_up(vocab, kBlock)) + kLanes;
    maxima = take<float>(numbers / kLanes + kLanes);
    block_maxima = take<float>(numbers / kBlock + kLanes);
    tokens = {take<float>(numbers), take<int32_t>(numbers), 0};
    weights = take<uint64_t>(numbers);
    members = take<int32_t>(numbers);
    histogram = take<uint64_t>(size_t{1} << kDigit);
  }

  template <typename T>
  T* take(size_t count) {
    T* const here = reinterpret_cast<T*>(base + bytes);
    bytes += (count * sizeof(T) + 63) / 64 * 64;
    return here;
  }

  char* base;
  size_t bytes = 0;
  float *maxima, *block_maxima;
  Tokens tokens;
  uint64_t* weights;
  int32_t* members;
  uint64_t* histogram;
};

// The first token in the order of preference with which the weights of those up to it reach the goal, which must be
// within (0, sum of the weights]. By the digits of how far a token's value lies below the largest.
// Among all tokens, or the first `num_members` of `scratch.members`, indices in ascending order.
template <class Weight>
Token last_reaching(const Tokens& tokens, uint64_t goal, const Weight& weight, const Scratch& scratch,
                    int64_t num_members = -1) {
  bool narrowed = num_members >= 0;
  int64_t count = narrowed ? num_members : tokens.size;
  const auto member = [&](int64_t i) -> int64_t { return narrowed ? scratch.members[i] : i; };
  uint32_t top = 0, bottom = ~uint32_t{0};
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t key = ordered(tokens.value[member(i)]);
    top = key > top ? key : top;
    bottom = key < bottom ? key : bottom;
  }
  int bits = top == bottom ? 0 : 32 - __builtin_clz(top - bottom);
  while (bits > 0 && count > 1) {
    const int width = bits < kDigit ? bits : kDigit, shift = bits - width;
    const uint32_t mask = (uint32_t{1} << width) - 1;
    const auto digit = [&](int64_t i) { return (top - ordered(tokens.value[i])) >> shift & mask; };
    std::memset(scratch.histogram, 0, sizeof(uint64_t) << width);
    for (int64_t i = 0; i < count; ++i) scratch.histogram[digit(member(i))] += weight(member(i));
    uint32_t found = 0;
    for (; found < mask && scratch.histogram[found] < goal; ++found) goal -= scratch.histogram[found];
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t m = member(i);
      scratch.members[kept] = static_cast<int32_t>(m);
      kept += digit(m) == found;
    }
    count = kept;
    narrowed = true;
    bits = shift;
  }
  for (int64_t i = 0; i + 1 < count; ++i) {  // all equal: ids decide
    const int64_t m = member(i);
    if (weight(m) >= goal) return {tokens.value[m], tokens.id[m]};
    goal -= weight(m);
  }
  const int64_t m = member(count - 1);
  return {tokens.value[m], tokens.id[m]};
}

// The same for many tokens with the weights of `scratch.weights`: cuts the range of their values into eighths, so that
// few have to be looked at one by one.
Token last_by_weight(const Tokens& tokens, uint64_t goal, float top, const Scratch& scratch) {
  const auto weight = [&](int64_t i) { return scratch.weights[i]; };
  constexpr int64_t kFew = 256, kMany = 4096;
  if (tokens.size <= kFew) return last_reaching(tokens, goal, weight, scratch);
  float bottom = top;
  for (int64_t i = 0; i < tokens.size; ++i) bottom = tokens.value[i] < bottom ? tokens.value[i] : bottom;
  // Below `above`, of which all are within the goal, and down to `bottom`, with which it is reached.
  float above = -kMinusInfinity, from = top;
  uint64_t passed = 0;
  for (int round = 0; round < (tokens.size > kMany ? 2 : 1); ++round) {
    float limits[kLimits];
    for (int j = 0; j < kLimits; ++j) limits[j] = from + (bottom - from) * (static_cast<float>(j + 1) / kLimits);
    limits[kLimits - 1] = bottom;
    uint64_t masses[kLimits];
    __m512i sums[kLimits];
    for (auto& sum : sums) sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < tokens.size; i += kLanes) {
      const __m512 values = _mm512_mask_loadu_ps(set1(kMinusInfinity), lanes(tokens.size - i), tokens.value + i);
      const __m512i low = _mm512_loadu_si512(scratch.weights + i), high = _mm512_loadu_si512(scratch.weights + i + 8);
      for (int j = 0; j < kLimits; ++j) {
        const __mmask16 in = _mm512_cmp_ps_mask(values, set1(limits[j]), _CMP_GE_OQ);
        sums[j] = _mm512_mask_add_epi64(sums[j], static_cast<__mmask8>(in), sums[j], low);
        sums[j] = _mm512_mask_add_epi64(sums[j], static_cast<__mmask8>(in >> 8), sums[j], high);
      }
    }
    for (int j = 0; j < kLimits; ++j) masses[j] = static_cast<uint64_t>(_mm512_reduce_add_epi64(sums[j]));
    int found = 0;
    while (found < kLimits - 1 && masses[found] < goal) ++found;
    bottom = limits[found];
    if (found > 0) {
      above = from = limits[found - 1];
      passed = masses[found - 1];
    }
  }
  int64_t count = 0;
  for (int64_t i = 0; i < tokens.size; i += kLanes) {
    const __m512 values = _mm512_mask_loadu_ps(set1(kMinusInfinity), lanes(tokens.size - i), tokens.value + i);
    const __mmask16 in = static_cast<__mmask16>(_mm512_cmp_ps_mask(values, set1(bottom), _CMP_GE_OQ) &
                                                _mm512_cmp_ps_mask(values, set1(above), _CMP_LT_OQ));
    _mm512_storeu_si512(scratch.members + count, _mm512_maskz_compress_epi32(in, ids_from(i)));
    count += __builtin_popcount(in);
  }
  return last_reaching(tokens, goal - passed, weight, scratch, count);
}

}  // namespace
}  // namespace pallas_kernels
