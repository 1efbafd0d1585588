// One row of the sampler. Everything but the first pass over the logits works in the core's own cache.
#include <cmath>
#include <cstring>

#include "sampler.h"
#include "sampler_row.h"

namespace pallas_kernels {
namespace {

struct Filters {
  float reciprocal, top_p, log_min_p;
  int32_t top_k;

  bool any() const { return top_k > 0 || top_p < 1 || log_min_p > kMinusInfinity; }
};

// Collects what the filters keep; nothing only if the parameters are out of their ranges.
void apply(const Filters& f, Row& row, Scratch& scratch, int64_t vocab) {
  const Tokens& tokens = scratch.tokens;
  const auto goal = [&](uint64_t total) {
    const double mass = std::ceil(static_cast<double>(f.top_p) * static_cast<double>(total));
    return mass < 1 ? uint64_t{1} : static_cast<uint64_t>(mass);
  };
  const auto keep = [&](uint64_t wanted) {
    if (tokens.size > 0) row.keep_up_to(last_by_weight(tokens, wanted, row.best(), scratch));
  };
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

float log_total(Row& row) {
  if (!row.ordinary()) return __builtin_nanf("");
  return static_cast<float>(std::log(static_cast<double>(row.total<false>(1)) * kWeightUnit));
}

void report(Row& row, const float* logits, int32_t target, const TokenLogprobs& out, int64_t number,
            Scratch& scratch) {
  const float total = log_total(row);
  const auto logprob = [&](float value) { return (value - row.best()) - total; };
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

size_t INSTRUCTION_SET::sampler_scratch_bytes(int64_t vocab) { return Scratch(nullptr, vocab).bytes; }

void INSTRUCTION_SET::sample_row(const SampleRows& s, const TokenLogprobs& out, int64_t number, void* memory) {
  const FlushDenormals flush;
  Scratch scratch(memory, s.vocab);
  const float* const logits = s.logits + number * s.vocab;
  const float* const raw = s.raw + number * s.vocab;
  Row row(logits, s.vocab, scratch);
  // What lies outside its range must not make a largest logit of anything else.
  const float temperature = s.temperature[number] > 0 ? s.temperature[number] : 1;
  const float log_min_p = s.log_min_p[number] > 0 ? 0 : s.log_min_p[number];
  const Filters filters{1.0f / temperature, s.top_p[number], log_min_p, s.top_k[number]};
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
    if (wants_logprobs) report(reported, raw, token, out, number, scratch);
  } else if (wants_logprobs) {
    report(row, raw, token, out, number, scratch);
  }
  s.token[number] = token;
  if (wants_logprobs) return;
  out.logprob[number] = 0;
  out.rank[number] = 0;
  if (out.k == 0) return;
  std::memset(out.top_ids + number * out.k, 0, static_cast<size_t>(out.k) * sizeof(int32_t));
  std::memset(out.top_logprobs + number * out.k, 0, static_cast<size_t>(out.k) * sizeof(float));
}

void INSTRUCTION_SET::token_logprobs_row(const float* logits, int64_t vocab, int32_t target, const TokenLogprobs& out,
                                         int64_t number, void* memory) {
  const FlushDenormals flush;
  Scratch scratch(memory, vocab);
  Row row(logits, vocab, scratch);
  report(row, logits, target, out, number, scratch);
}

void INSTRUCTION_SET::log_normalizer_row(const float* logits, int64_t vocab, float* best, float* total, void* memory) {
  const FlushDenormals flush;
  Scratch scratch(memory, vocab);
  Row row(logits, vocab, scratch);
  *best = row.best();
  *total = log_total(row);
}

}  // namespace pallas_kernels
