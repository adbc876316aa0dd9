// The running softmax of a block of query rows, kept as flash attention does: row maximum, sum, unnormalised output.
// Scores and maxima are in base 2: a weight is 2^(score - maximum).
//
// The sum is kept in 16 lanes (lane = position modulo 16) and reduced once, at the end. A row that has seen no live
// position has maximum -inf, sum 0 and output 0.
#pragma once

#include <limits>

#include "simd.h"

namespace polybatch {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct SoftmaxState {
  float* maximum;     // [rows]
  float* sum;         // [rows][16]
  float* out;         // [rows][width], width a multiple of 16
  int64_t width;

  static int64_t floats_per_row(int64_t width) { return 1 + kLanes + width; }
  SoftmaxState(float* memory, int64_t rows, int64_t width)
      : maximum(memory + rows * (kLanes + width)), sum(memory + rows * width), out(memory), width(width) {}

  void clear(int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) maximum[r] = kMinusInfinity;
    for (int64_t i = 0; i < rows * kLanes; i += kLanes) store(sum + i, zero());
    for (int64_t i = 0; i < rows * width; i += kLanes) store(out + i, zero());
  }

  // this = this followed by `later`. A side that has seen nothing leaves the other unchanged.
  void merge_row(int64_t r, const SoftmaxState& later) {
    if (later.maximum[r] == kMinusInfinity) return;
    const float both = maximum[r] > later.maximum[r] ? maximum[r] : later.maximum[r];
    const F16 scale = exp2(broadcast(maximum[r] - both));
    const F16 later_scale = exp2(broadcast(later.maximum[r] - both));
    maximum[r] = both;
    float* s = sum + r * kLanes;
    store(s, fma(load(s), scale, load(later.sum + r * kLanes) * later_scale));
    for (int64_t d = 0; d < width; d += kLanes) {
      float* o = out + r * width + d;
      store(o, fma(load(o), scale, load(later.out + r * width + d) * later_scale));
    }
  }

  // Out rows become final: `sink` (-inf = none) is one more score, with no value.
  template <class Element>
  void finish_row(int64_t r, float sink, Element* to, int64_t value_dim) const {
    const float both = maximum[r] > sink ? maximum[r] : sink;
    const bool empty = both == kMinusInfinity;
    const F16 scale = exp2(broadcast(empty ? 0.0f : maximum[r] - both));
    const float denominator = reduce_add(load(sum + r * kLanes) * scale + keep_lanes(exp2(broadcast(sink - both)), 0, empty ? 0 : 1, zero()));
    const F16 factor = empty ? zero() : scale / broadcast(denominator);
    for (int64_t d = 0; d < value_dim; d += kLanes) {
      const F16 x = load(out + r * width + d) * factor;
      if (value_dim - d >= kLanes) {
        store(to + d, x);
      } else {
        store_first(to + d, x, static_cast<int>(value_dim - d));
      }
    }
  }
};

}  // namespace polybatch
