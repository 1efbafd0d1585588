// One row of logits: what is known of it, and the tokens collected from it. Included by one source, and by nothing else.
#pragma once

#include <cstdint>

#include "sampler_select.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

class Row {
 public:
  Row(const float* x, int64_t vocab, Scratch& scratch) : x_(x), vocab_(vocab), scratch_(scratch) { scan(); }

  float best() const { return best_; }
  // No NaN and no +inf.
  bool ordinary() const { return ordinary_; }
  bool possible() const { return best_ > kMinusInfinity; }

  // The first of the largest.
  int32_t argmax() const {
    for (int64_t block = 0; block * kBlock < vocab_; ++block) {
      if (scratch_.block_maxima[block] != best_) continue;
      for (int64_t i = block * kBlock; i < vocab_; i += kLanes) {
        const __mmask16 equal = _mm512_cmp_ps_mask(load(i), set1(best_), _CMP_EQ_OQ);
        if (equal) return static_cast<int32_t>(i + __builtin_ctz(equal));
      }
    }
    return 0;
  }

  // How many tokens have a larger value.
  int32_t count_above(float value) const {
    int32_t count = 0;
    for (int64_t block = 0; block * kBlock < vocab_; ++block) {
      if (!(scratch_.block_maxima[block] > value)) continue;
      const int64_t end = block_end(block);
      for (int64_t i = block * kBlock; i < end; i += kLanes)
        count += __builtin_popcount(_mm512_cmp_ps_mask(load(i), set1(value), _CMP_GT_OQ));
    }
    return count;
  }

  // A value that at least `count` tokens reach, and not many more; the lowest finite number if that takes all.
  float reached_by(int64_t count) const {
    const int64_t blocks = round_up(vocab_, kBlock) / kBlock;
    const bool few = count <= blocks;
    const int64_t available = few ? blocks : blocks * kLanes;
    if (count > available) return kLowestFinite;
    Tokens maxima{few ? scratch_.block_maxima : scratch_.maxima, scratch_.tokens.id, available};
    const Token last = last_reaching(maxima, static_cast<uint64_t>(count), [](int64_t) { return uint64_t{1}; }, scratch_);
    return last.value > kLowestFinite ? last.value : kLowestFinite;
  }

  // The tokens of at least this value, which must be finite.
  void collect(float value) {
    Tokens& tokens = scratch_.tokens;
    tokens.size = 0;
    for (int64_t block = 0; block * kBlock < vocab_; ++block) {
      if (!(scratch_.block_maxima[block] >= value)) continue;
      const int64_t end = block_end(block);
      for (int64_t i = block * kBlock; i < end; i += kLanes) {
        const __m512 values = load(i);
        const __mmask16 chosen = _mm512_cmp_ps_mask(values, set1(value), _CMP_GE_OQ);
        if (chosen) tokens.append(chosen, values, ids_from(i));
      }
    }
  }

  // The k most likely tokens that are possible, or all if there are fewer.
  void collect_top(int64_t k) {
    collect(k < vocab_ ? reached_by(k) : kLowestFinite);
    Tokens& tokens = scratch_.tokens;
    if (tokens.size > k)
      keep_up_to(last_reaching(tokens, static_cast<uint64_t>(k), [](int64_t) { return uint64_t{1}; }, scratch_));
  }

  __m512 scaled(__m512 values, float reciprocal) const {
    return _mm512_mul_ps(_mm512_sub_ps(values, set1(best_)), set1(reciprocal));
  }

  // The tokens scaled to at least this.
  void collect_scaled(float from, float reciprocal) {
    Tokens& tokens = scratch_.tokens;
    tokens.size = 0;
    for (int64_t i = 0; i < vocab_; i += kLanes) {
      const __m512 values = load(i);
      const __mmask16 chosen = _mm512_cmp_ps_mask(scaled(values, reciprocal), set1(from), _CMP_GE_OQ);
      if (chosen) tokens.append(chosen, values, ids_from(i));
    }
  }

  // The sum of all weights at a temperature's reciprocal; on the way, about what part of it lies within each `kReach`.
  template <bool kWithin>
  uint64_t total(float reciprocal, float* within = nullptr) {
    if (!kWithin && reciprocal == 1 && has_total_) return total_;
    __m512i low = _mm512_setzero_si512(), high = low;
    __m512 sums[kLimits];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < vocab_; i += kLanes) {
      const __m512 exponents = scaled(load(i), reciprocal), weights = weight_of(exponents);
      low = _mm512_add_epi64(low, low_weights(weights));
      high = _mm512_add_epi64(high, high_weights(weights));
      if (!kWithin) continue;
      for (int j = 0; j < kLimits; ++j) {
        const __mmask16 in = _mm512_cmp_ps_mask(exponents, set1(-kReach[j]), _CMP_GE_OQ);
        sums[j] = _mm512_mask_add_ps(sums[j], in, sums[j], weights);
      }
    }
    const uint64_t total = static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(low, high)));
    if (kWithin)
      for (int j = 0; j < kLimits; ++j) within[j] = _mm512_reduce_add_ps(sums[j]) / static_cast<float>(total);
    if (reciprocal == 1) {
      total_ = total;
      has_total_ = true;
    }
    return total;
  }

  // The sum of the collected tokens' weights, which are kept.
  uint64_t weigh(float reciprocal) {
    const Tokens& tokens = scratch_.tokens;
    uint64_t total = 0;
    for (int64_t i = 0; i < tokens.size; i += kLanes) {
      const __mmask16 used = lanes(tokens.size - i);
      const __m512 values = _mm512_mask_loadu_ps(set1(kMinusInfinity), used, tokens.value + i);
      const __m512 weights = weight_of(scaled(values, reciprocal));
      const __m512i low = low_weights(weights), high = high_weights(weights);
      _mm512_storeu_si512(scratch_.weights + i, low);
      _mm512_storeu_si512(scratch_.weights + i + 8, high);
      total += static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(low, high)));
    }
    return total;
  }

  // Drops the collected tokens after this one in the order of preference.
  void keep_up_to(Token last) {
    filter([&](__m512 values, __m512i ids) {
      const __mmask16 equal = _mm512_cmp_ps_mask(values, set1(last.value), _CMP_EQ_OQ);
      const __mmask16 up_to = _mm512_cmple_epi32_mask(ids, _mm512_set1_epi32(last.id));
      return static_cast<__mmask16>(_mm512_cmp_ps_mask(values, set1(last.value), _CMP_GT_OQ) | (equal & up_to));
    });
  }

  // Drops those scaled to less.
  void keep_from(float exponent, float reciprocal) {
    filter([&](__m512 values, __m512i) {
      return _mm512_cmp_ps_mask(scaled(values, reciprocal), set1(exponent), _CMP_GE_OQ);
    });
  }

  // The last collected token in the order of preference.
  Token last() const {
    const Tokens& tokens = scratch_.tokens;
    Token last = tokens.size > 0 ? Token{tokens.value[0], tokens.id[0]} : Token{kMinusInfinity, 0};
    for (int64_t i = 1; i < tokens.size; ++i)
      if (precedes(last, {tokens.value[i], tokens.id[i]})) last = {tokens.value[i], tokens.id[i]};
    return last;
  }

  // The best-scored of the collected tokens.
  int32_t draw_collected(const Gumbel& noise, float reciprocal) const {
    const Tokens& tokens = scratch_.tokens;
    Champion champion;
    for (int64_t i = 0; i < tokens.size; i += kLanes) {
      const __m512 values = _mm512_mask_loadu_ps(set1(kMinusInfinity), lanes(tokens.size - i), tokens.value + i);
      const __m512i ids = _mm512_loadu_si512(tokens.id + i);
      champion.challenge(_mm512_add_ps(scaled(values, reciprocal), Gumbel::value(noise.uniform(ids))), ids);
    }
    return champion.id();
  }

  // The best-scored of all tokens. Where the noise cannot make up for the distance to the best, it is not computed.
  int32_t draw(const Gumbel& noise, float reciprocal) const {
    Champion champion;
    const __m512 first = Gumbel::value(noise.uniform(_mm512_set1_epi32(argmax())));
    float score = _mm512_cvtss_f32(first);
    const __m512 most = set1(kLargestGumbel);
    for (int64_t block = 0; block * kBlock < vocab_; ++block) {
      const __m512 block_best = scaled(_mm512_load_ps(scratch_.maxima + block * kLanes), reciprocal);
      if (!may_reach(_mm512_add_ps(block_best, most), score)) continue;
      const int64_t end = block_end(block);
      for (int64_t i = block * kBlock; i < end; i += kLanes) {
        const __m512 exponents = scaled(load(i), reciprocal);
        if (!may_reach(_mm512_add_ps(exponents, most), score)) continue;
        const __m512i ids = ids_from(i);
        const __m512 uniform = noise.uniform(ids);
        if (!may_reach(_mm512_add_ps(exponents, Gumbel::bound(uniform)), score)) continue;
        champion.challenge(_mm512_add_ps(exponents, Gumbel::value(uniform)), ids);
        const float reached = champion.score();
        score = reached > score ? reached : score;
      }
    }
    return champion.id();
  }

 private:
  // Lane by lane the best score so far and the id that has it; ids come in ascending order.
  struct Champion {
    __m512 scores = set1(kMinusInfinity);
    __m512i ids = _mm512_setzero_si512();

    void challenge(__m512 other, __m512i other_ids) {
      const __mmask16 better = _mm512_cmp_ps_mask(other, scores, _CMP_GT_OQ);
      scores = _mm512_mask_mov_ps(scores, better, other);
      ids = _mm512_mask_mov_epi32(ids, better, other_ids);
    }
    float score() const { return _mm512_reduce_max_ps(scores); }
    int32_t id() const {
      return _mm512_mask_reduce_min_epi32(_mm512_cmp_ps_mask(scores, set1(score()), _CMP_EQ_OQ), ids);
    }
  };

  static bool may_reach(__m512 bounds, float score) {
    return _mm512_cmp_ps_mask(bounds, set1(score), _CMP_GE_OQ) != 0;
  }
  static __m512i low_weights(__m512 weights) { return _mm512_cvtps_epi64(_mm512_castps512_ps256(weights)); }
  static __m512i high_weights(__m512 weights) { return _mm512_cvtps_epi64(_mm512_extractf32x8_ps(weights, 1)); }

  int64_t block_end(int64_t block) const {
    const int64_t end = (block + 1) * kBlock;
    return end < vocab_ ? end : vocab_;
  }

  // The tokens from i on; -inf beyond the vocabulary.
  __m512 load(int64_t i) const {
    if (i + kLanes <= vocab_) return _mm512_loadu_ps(x_ + i);
    return _mm512_mask_loadu_ps(set1(kMinusInfinity), lanes(vocab_ - i), x_ + i);
  }

  void scan() {
    __m512 best = set1(kMinusInfinity);
    __mmask16 odd = 0;
    for (int64_t block = 0; block * kBlock < vocab_; ++block) {
      __m512 maxima = set1(kMinusInfinity);
      const int64_t end = block_end(block);
      for (int64_t i = block * kBlock; i < end; i += kLanes) {
        const __m512 values = load(i);
        odd |= _mm512_fpclass_ps_mask(values, 0x01 | 0x08 | 0x80);  // quiet NaN, +inf, signalling NaN
        maxima = _mm512_max_ps(maxima, values);
      }
      _mm512_store_ps(scratch_.maxima + block * kLanes, maxima);
      scratch_.block_maxima[block] = _mm512_reduce_max_ps(maxima);
      best = _mm512_max_ps(best, maxima);
    }
    best_ = _mm512_reduce_max_ps(best);
    ordinary_ = odd == 0;
  }

  template <class Keep>
  void filter(const Keep& keep) {
    Tokens& tokens = scratch_.tokens;
    const int64_t size = tokens.size;
    tokens.size = 0;
    for (int64_t i = 0; i < size; i += kLanes) {
      const __m512 values = _mm512_loadu_ps(tokens.value + i);
      const __m512i ids = _mm512_loadu_si512(tokens.id + i);
      tokens.append(static_cast<__mmask16>(keep(values, ids) & lanes(size - i)), values, ids);
    }
  }

  const float* const x_;
  const int64_t vocab_;
  Scratch& scratch_;
  float best_;
  bool ordinary_;
  uint64_t total_ = 0;  // of the weights at temperature 1
  bool has_total_ = false;
};

}  // namespace
}  // namespace pallas_kernels
