// Where the rows of a linear's left operand come from (see StagedRows): a matrix as it is, or quantized to int8.
#pragma once

#include <cfloat>
#include <cstdint>

#include "parallel.h"
#include "simd.h"

namespace polybatch {

// Row i of a linear is row order[i] of a matrix, or row i where there is no order.
template <class Element>
class MatrixRows {
 public:
  static constexpr bool kInPlace = true;
  MatrixRows(const void* first, int64_t stride, const int64_t* order, int64_t features)
      : first_(static_cast<const Element*>(first)), stride_(stride), order_(order), features_(features) {}
  const Element* operator[](int64_t i) const { return first_ + (order_ ? order_[i] : i) * stride_; }
  void prepare(int64_t) const {}
  int64_t stride() const { return order_ ? 0 : stride_; }
  int64_t features() const { return features_; }

 private:
  const Element* first_;
  int64_t stride_;
  const int64_t* order_;
  int64_t features_;
};

inline constexpr int64_t kInt8Group = 4;  // features of a quantized row are padded to whole groups

// The same rows as bytes: q = round(x * 127 / largest |x| of the row) + 128, to nearest even; x is about (q - 128) * scale.
// A row whose largest |x| is below 1e-30 becomes 0. The arithmetic is the same on every instruction set.
template <class Element>
class QuantizedRows {
 public:
  static constexpr bool kInPlace = false;
  // `bytes` holds rows of padded features, `scales` one float a row.
  QuantizedRows(const MatrixRows<Element>& x, uint8_t* bytes, float* scales)
      : x_(x), padded_(padded(x.features())), bytes_(bytes), scales_(scales) {}
  static int64_t padded(int64_t features) { return (features + kInt8Group - 1) / kInt8Group * kInt8Group; }
  const uint8_t* operator[](int64_t i) const { return bytes_ + i * padded_; }
  int64_t stride() const { return padded_; }
  int64_t features() const { return padded_; }
  float scale(int64_t i) const { return scales_[i]; }

  void prepare(int64_t i) const {
    constexpr float kLargest = 127.0f, kNothing = 1e-30f;
    const Element* x = x_[i];
    uint8_t* q = bytes_ + i * padded_;
    const int64_t features = x_.features(), whole = features / kLanes * kLanes;
    Element rest[kLanes] = {};
    std::copy(x + whole, x + features, rest);
    F16 largest = abs(load(rest));
    for (int64_t k = 0; k < whole; k += kLanes) largest = max(largest, abs(load(x + k)));
    const float top = reduce_max(largest);
    const bool nothing = top < kNothing;
    scales_[i] = nothing ? 0.0f : top / kLargest;
    const F16 factor = broadcast(nothing ? 0.0f : kLargest / top);
    for (int64_t k = 0; k < whole; k += kLanes) store_offset_bytes(q + k, round_to_integer(load(x + k) * factor));
    uint8_t rest_bytes[kLanes];
    store_offset_bytes(rest_bytes, round_to_integer(load(rest) * factor));
    std::copy(rest_bytes, rest_bytes + (padded_ - whole), q + whole);
  }

 private:
  MatrixRows<Element> x_;
  int64_t padded_;
  uint8_t* bytes_;
  float* scales_;
};

}  // namespace polybatch
