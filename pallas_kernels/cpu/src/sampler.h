// Choosing a token for each row of logits, and log-probabilities of a row's tokens.
//
// Tokens are preferred in one order: logit descending (-0 equals 0), then id ascending. Filters keep a prefix of it.
// Probabilities are summed as integers, multiples of 2^-40 of the largest, so that no sum depends on its order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "each.h"

namespace pallas_kernels {

struct SampleRows {
  const float* logits;  // [rows, vocab], to draw from
  const float* raw;     // [rows, vocab], to report: the same memory, or that of the logits before they were adjusted
  int64_t rows, vocab;
  const float *temperature, *top_p, *log_min_p;
  const int32_t* top_k;
  const uint8_t* greedy;
  const uint32_t *seed_high, *seed_low, *sample_index, *position;
  const uint8_t *wants_logprobs, *wants_limit;
  int32_t* token;        // -1: none
  float* limit_value;    // of the last token that the filters keep; -inf without filters
  int32_t* limit_token;  // its id; the vocabulary's size without filters
};

// Of each target, and of the most likely tokens of its row.
struct TokenLogprobs {
  float* logprob;
  int32_t* rank;
  int32_t* top_ids;     // [rows, k]
  float* top_logprobs;  // [rows, k]
  int64_t k;
};

// sampler_scratch_bytes: that a row works in; the memory is aligned to 64.
PALLAS_KERNELS_EACH(
  size_t sampler_scratch_bytes(int64_t vocab);
  void sample_row(const SampleRows& s, const TokenLogprobs& out, int64_t row, void* scratch);
  void token_logprobs_row(const float* logits, int64_t vocab, int32_t target, const TokenLogprobs& out, int64_t row,
                          void* scratch);
  void log_normalizer_row(const float* logits, int64_t vocab, float* best, float* log_total, void* scratch);
)

}  // namespace pallas_kernels
