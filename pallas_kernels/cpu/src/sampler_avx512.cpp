// One row of the sampler. Everything but the first pass over the logits works in the core's own cache.
#include <cmath>
#include <cstring>

#include "sampler.h"
#include "sampler_math.h"

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

// Denormals are zero in every thread, as they are in XLA's.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

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
    Token last{tokens.value[0], tokens.id[0]};
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

struct Filters {
  float reciprocal, top_p, log_min_p;
  int32_t top_k;

  bool any() const { return top_k > 0 || top_p < 1 || log_min_p > kMinusInfinity; }
};

// Collects what the filters keep.
void apply(const Filters& f, Row& row, Scratch& scratch, int64_t vocab) {
  const Tokens& tokens = scratch.tokens;
  const auto goal = [&](uint64_t total) {
    const double mass = std::ceil(static_cast<double>(f.top_p) * static_cast<double>(total));
    return mass < 1 ? uint64_t{1} : static_cast<uint64_t>(mass);
  };
  const auto keep = [&](uint64_t wanted) { row.keep_up_to(last_by_weight(tokens, wanted, row.best(), scratch)); };
  if (f.top_k > 0 || f.log_min_p > kMinusInfinity) {
    if (f.top_k > 0) {
      row.collect_top(f.top_k < vocab ? f.top_k : vocab);
    } else {
      row.collect_scaled(f.log_min_p, f.reciprocal);
    }
    if (f.top_k > 0 && f.log_min_p > kMinusInfinity) row.keep_from(f.log_min_p, f.reciprocal);
    if (f.top_p < 1) keep(goal(row.weigh(f.reciprocal)));
    return;
  }
  float within[kLimits];
  const uint64_t wanted = goal(row.total<true>(f.reciprocal, within));
  int reach = 0;
  while (reach < kLimits && within[reach] < f.top_p + 1e-4f) ++reach;
  if (reach < kLimits) row.collect_scaled(-kReach[reach], f.reciprocal);
  if (reach == kLimits || row.weigh(f.reciprocal) < wanted) {
    row.collect(kLowestFinite);
    row.weigh(f.reciprocal);
  }
  keep(wanted);
}

float log_of(uint64_t total) { return static_cast<float>(std::log(static_cast<double>(total) * kWeightUnit)); }

void report(Row& row, const float* logits, float log_total, int32_t target, const TokenLogprobs& out, int64_t number,
            Scratch& scratch) {
  const auto logprob = [&](float value) { return (value - row.best()) - log_total; };
  int32_t* const ids = out.top_ids + number * out.k;
  float* const logprobs = out.top_logprobs + number * out.k;
  if (!row.ordinary()) {
    out.logprob[number] = __builtin_nanf("");
    out.rank[number] = 1;
    for (int64_t i = 0; i < out.k; ++i) {
      ids[i] = static_cast<int32_t>(i);
      logprobs[i] = __builtin_nanf("");
    }
    return;
  }
  const float value = logits[target < 0 ? 0 : target];
  out.logprob[number] = target < 0 ? __builtin_nanf("") : logprob(value);
  out.rank[number] = 1 + row.count_above(value);
  if (out.k == 0) return;
  row.collect_top(out.k);
  Tokens& tokens = scratch.tokens;
  for (int64_t i = 1; i < tokens.size; ++i) {  // insertion sort of at most k
    const Token token{tokens.value[i], tokens.id[i]};
    int64_t at = i;
    for (; at > 0 && precedes(token, {tokens.value[at - 1], tokens.id[at - 1]}); --at) {
      tokens.value[at] = tokens.value[at - 1];
      tokens.id[at] = tokens.id[at - 1];
    }
    tokens.value[at] = token.value;
    tokens.id[at] = token.id;
  }
  for (int64_t i = 0; i < tokens.size; ++i) {
    ids[i] = tokens.id[i];
    logprobs[i] = logprob(tokens.value[i]);
  }
  int32_t id = 0;
  for (int64_t i = tokens.size; i < out.k; ++i, ++id) {  // the first of the impossible ones
    while (logits[id] > kMinusInfinity) ++id;
    ids[i] = id;
    logprobs[i] = logprob(kMinusInfinity);
  }
}

}  // namespace

size_t sampler_scratch_bytes(int64_t vocab) { return Scratch(nullptr, vocab).bytes; }

void sample_row_avx512(const SampleRows& s, const TokenLogprobs& out, int64_t number, void* memory) {
  const FlushDenormals flush;
  Scratch scratch(memory, s.vocab);
  const float* const logits = s.logits + number * s.vocab;
  const float* const raw = s.raw + number * s.vocab;
  Row row(logits, s.vocab, scratch);
  const float log_min_p = s.log_min_p[number] > 0 ? 0 : s.log_min_p[number];
  const Filters filters{1.0f / s.temperature[number], s.top_p[number], log_min_p, s.top_k[number]};
  const bool greedy = s.greedy[number];
  int32_t token = -1;
  Token limit{kMinusInfinity, static_cast<int32_t>(s.vocab)};
  if (row.ordinary() && row.possible()) {
    const bool collects = filters.any() && (!greedy || s.wants_limit[number]);
    if (collects) apply(filters, row, scratch, s.vocab);
    if (collects && s.wants_limit[number]) limit = row.last();
    const Gumbel noise(s.seed_high[number], s.seed_low[number], s.sample_index[number], s.position[number]);
    token = greedy ? row.argmax()
            : collects ? row.draw_collected(noise, filters.reciprocal) : row.draw(noise, filters.reciprocal);
  }
  s.limit_value[number] = limit.value;
  s.limit_token[number] = limit.id;
  const bool wants_logprobs = s.wants_logprobs[number];
  if (raw != logits) {
    Row reported(raw, s.vocab, scratch);
    if (!reported.ordinary()) token = -1;
    if (wants_logprobs) report(reported, raw, log_of(reported.total<false>(1)), token, out, number, scratch);
  } else if (wants_logprobs) {
    report(row, raw, log_of(row.total<false>(1)), token, out, number, scratch);
  }
  s.token[number] = token;
  if (wants_logprobs) return;
  out.logprob[number] = 0;
  out.rank[number] = 0;
  std::memset(out.top_ids + number * out.k, 0, static_cast<size_t>(out.k) * sizeof(int32_t));
  std::memset(out.top_logprobs + number * out.k, 0, static_cast<size_t>(out.k) * sizeof(float));
}

void token_logprobs_row_avx512(const float* logits, int64_t vocab, int32_t target, const TokenLogprobs& out,
                               int64_t number, void* memory) {
  const FlushDenormals flush;
  Scratch scratch(memory, vocab);
  Row row(logits, vocab, scratch);
  report(row, logits, log_of(row.total<false>(1)), target, out, number, scratch);
}

void log_normalizer_row_avx512(const float* logits, int64_t vocab, float* best, float* log_total, void* memory) {
  const FlushDenormals flush;
  Scratch scratch(memory, vocab);
  Row row(logits, vocab, scratch);
  *best = row.best();
  *log_total = log_of(row.total<false>(1));
}

}  // namespace pallas_kernels
