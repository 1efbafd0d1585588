// Keys and values in bytes: for a Dot that multiplies tiles of 16 x 64 by 64 x 16 bytes into 16 x 16 integers.
#pragma once

#include <string.h>

#include "attention_bytes.h"
#include "attention_walk.h"

namespace pallas_kernels {
namespace {

struct Int8Cache {
  using Number = int8_t;

  static __m512i load(const int8_t* from, int64_t dims) {
    return _mm512_maskz_loadu_epi8(dims >= 64 ? ~__mmask64{0} : (__mmask64{1} << dims) - 1, from);
  }
};

template <class Dot, class Self>
class ByteWalk : public TileWalk<Int8Cache, Self> {
  using Walk = TileWalk<Int8Cache, Self>;

 public:
  using Walk::TileWalk;

  // Right operands, plane by plane: [head_dim / 4, query, 4], zero beyond the head dim and in unused lanes.
  void pack_queries() {
    alignas(64) int8_t bytes[2][kLanes][kLargestHeadDim];
    for (int64_t t = 0; t < layout_.tiles; ++t) {
      float* scales = this->template at<float>(layout_.q_scales) + t * kLanes;
      _mm512_store_ps(scales, _mm512_setzero_ps());
      memset(bytes, 0, sizeof bytes);
      for (int i = 0; i < this->lanes_of(t); ++i)
        scales[i] = quantize_query(this->query(t * kLanes + i), a_.head_dim, bytes[0][i], bytes[1][i]);
      int8_t* to = this->template at<int8_t>(layout_.q) + t * planes() * layout_.byte_steps * kByteTile;
      for (int64_t plane = 0; plane < planes(); ++plane)
        for (int64_t step = 0; step < layout_.byte_steps; ++step, to += kByteTile) {
          __m512i rows[16];
          for (int i = 0; i < 16; ++i) {
            const int64_t from = planes() == 2 ? plane : i / (kLanes / 2);
            rows[i] = _mm512_load_si512(bytes[from][planes() == 2 ? i : i % (kLanes / 2)] + kByteRow * step);
          }
          transpose(rows);
          for (int i = 0; i < 16; ++i) _mm512_store_si512(to + kByteRow * i, rows[i]);
        }
    }
  }

 protected:
  using Walk::a_, Walk::layout_, Walk::keys_, Walk::key_stride_;
  using Seen = typename Walk::Seen;

  void point_at_keys(int64_t start, int64_t low, int64_t high) {
    copy_scales(start, low, high);
    Walk::point_at_keys(start, low, high);
  }

  // The scores of the chunks [first, end) that are seen, in units of one: queries' and keys' scales are applied.
  void add_scores(int64_t t, const Seen& seen, int64_t first, int64_t end, float* to) const {
    int64_t tile = this->max(seen.first_tile, first * (kChunk / kKeyTile));
    const int64_t end_tile = this->min(seen.end_tile, end * (kChunk / kKeyTile));
    const int8_t* q = this->template at<int8_t>(layout_.q) + t * planes() * layout_.byte_steps * kByteTile;
    int32_t* sums = this->template at<int32_t>(layout_.sums);
    const __m512 q_scales = _mm512_load_ps(this->template at<float>(layout_.q_scales) + t * kLanes);
    for (int64_t count; tile < end_tile; tile += count) {
      count = this->min(kMostOperands, end_tile - tile);
      for (int64_t plane = 0; plane < planes(); ++plane)
        Dot::template share_right<true>(keys_ + tile, count, key_stride_, kByteRow,
                                        q + plane * layout_.byte_steps * kByteTile, kByteTile, layout_.byte_steps,
                                        sums + plane * kMostOperands * kResult);
      const float* k_scales = this->template at<float>(layout_.k_scales) + tile * kKeyTile;
      for (int64_t key = 0; key < count * kKeyTile; ++key) {
        const __m512i high = _mm512_load_si512(sums + key * kLanes);
        const __m512i low = planes() == 1 ? _mm512_shuffle_i64x2(high, high, 0x4e)
                                          : _mm512_load_si512(sums + kMostOperands * kResult + key * kLanes);
        const __m512 score = _mm512_mul_ps(join(high, low), _mm512_set1_ps(k_scales[key]));
        _mm512_store_ps(to + tile * kResult + key * kLanes, _mm512_mul_ps(score, q_scales));
      }
    }
  }

  // Operands that the dims fill.
  int64_t steps() const { return layout_.byte_steps; }

  // Operands that the bytes of 16 lanes make: up to eight lanes have their high and their low bytes in one.
  int64_t planes() const { return this->num_lanes_ <= kLanes / 2 ? 1 : 2; }

  // Bytes of values of four keys, for 64 dims; zero for those that are null.
  void load_quad(const int8_t* const* rows, int64_t step, __m512i (&x)[4]) const {
    const int64_t dim = kByteRow * step;
    for (int i = 0; i < 4; ++i) x[i] = rows[i] ? Int8Cache::load(rows[i] + dim, a_.head_dim - dim) : _mm512_setzero_si512();
  }

  float flaw_ = 0;  // not a number where a value of the group is none, else zero

 private:
  // The scales of the group from position `start` on, zero outside [low, high).
  void copy_scales(int64_t start, int64_t low, int64_t high) {
    float *keys = this->template at<float>(layout_.k_scales), *values = this->template at<float>(layout_.v_scales);
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      _mm512_store_ps(keys + i, _mm512_setzero_ps());
      _mm512_store_ps(values + i, _mm512_setzero_ps());
    }
    while (low < high) {
      const int64_t count = this->min(high - low, a_.block_size - low % a_.block_size), from = this->slot(low);
      memcpy(keys + low - start, a_.k_scales + from, count * sizeof(float));
      memcpy(values + low - start, a_.v_scales + from, count * sizeof(float));
      low += count;
    }
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      const __m512 x = _mm512_load_ps(values + i);
      sum = _mm512_add_ps(sum, _mm512_sub_ps(x, x));
    }
    flaw_ = _mm512_reduce_add_ps(sum);
  }
};

}  // namespace
}  // namespace pallas_kernels
