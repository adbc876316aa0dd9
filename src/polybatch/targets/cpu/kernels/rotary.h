// Rotary position embedding of one head (RoFormer, arXiv 2104.09864, halves as in GPT-NeoX), in fp32, rounded once:
//   out[d] = x[d] * cos[d] - x[d + D/2] * sin[d]    out[d + D/2] = x[d + D/2] * cos[d + D/2] + x[d] * sin[d + D/2]
#pragma once

#include <algorithm>

#include "simd.h"

namespace polybatch {

template <class Element>
F16 load_part(const Element* p, int64_t count) {
  if (count >= kLanes) return load(p);
  alignas(64) Element all[kLanes] = {};
  std::copy_n(p, count, all);
  return load(all);
}

template <class Element>
void store_part(Element* p, F16 x, int64_t count) {
  if (count >= kLanes) return store(p, x);
  store_first(p, x, static_cast<int>(count));
}

// x and out hold `dim` elements (even) and do not overlap.
template <class Element>
void rotate_head(const Element* x, const float* cos, const float* sin, int64_t dim, Element* out) {
  const int64_t half = dim / 2;
  for (int64_t d = 0; d < half; d += kLanes) {
    const int64_t count = half - d;
    const F16 low = load_part(x + d, count), high = load_part(x + half + d, count);
    const F16 low_cos = load_part(cos + d, count), low_sin = load_part(sin + d, count);
    const F16 high_cos = load_part(cos + half + d, count), high_sin = load_part(sin + half + d, count);
    store_part(out + d, low * low_cos - high * low_sin, count);
    store_part(out + half + d, high * high_cos + low * high_sin, count);
  }
}

}  // namespace polybatch
