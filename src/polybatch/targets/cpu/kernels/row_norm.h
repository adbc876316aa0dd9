// Root mean square norm of a row (arXiv 1910.07467), in fp32, rounded once:
//   out[k] = x[k] * (1 / sqrt(mean of x^2 + eps)) * weight[k] (+ bias[k])
// Squares are added in 16 lanes, k = 0, 16, ..., then the lanes as reduce_add does: the same on every instruction set.
#pragma once

#include <cmath>

#include "simd.h"

namespace polybatch {

struct RowNorm {
  const float* weight;
  const float* bias;  // or null
  float eps;

  template <class Element>
  void apply(const Element* x, int64_t features, Element* out) const {
    F16 squares = zero();
    each_vector(x, features, [&](F16 v, int64_t, int) { squares = fma(v, v, squares); });
    const F16 factor = broadcast(1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(features) + eps));
    each_vector(x, features, [&](F16 v, int64_t k, int lanes) {
      F16 result = v * factor * load_first(weight + k, lanes);
      if (bias != nullptr) result = result + load_first(bias + k, lanes);
      if (lanes == kLanes) {
        store(out + k, result);
      } else {
        store_first(out + k, result, lanes);
      }
    });
  }

 private:
  // use(sixteen elements from k on, k, how many there are); the rest are 0.
  template <class Element, class Use>
  POLYBATCH_INLINE static void each_vector(const Element* x, int64_t features, const Use& use) {
    int64_t k = 0;
    for (; k + kLanes <= features; k += kLanes) use(load(x + k), k, kLanes);
    if (k == features) return;
    Element rest[kLanes] = {};
    std::copy(x + k, x + features, rest);
    use(load(rest), k, static_cast<int>(features - k));
  }
};

}  // namespace polybatch
