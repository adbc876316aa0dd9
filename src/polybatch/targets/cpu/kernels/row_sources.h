// Where the rows of a linear's left operand come from (see StagedRows): a matrix as it is, or as integers of one to three bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "parallel.h"
#include "row_norm.h"
#include "simd.h"

namespace polybatch {

// Row i of a linear is row order[i] of a matrix, or row i where there is no order. With a norm, what it makes of that row:
// `normalized` holds [rows, features] then.
template <class Element>
class MatrixRows {
 public:
  static constexpr int kParts = 1;
  MatrixRows(const void* first, int64_t stride, const int64_t* order, int64_t features, RowNorm norm = {},
             Element* normalized = nullptr)
      : first_(static_cast<const Element*>(first)),
        stride_(stride),
        order_(order),
        features_(features),
        norm_(norm),
        normalized_(normalized) {}
  bool in_place() const { return normalized_ == nullptr; }
  const Element* operator[](int64_t i) const { return in_place() ? source(i) : normalized_ + i * features_; }
  void prepare(int64_t i) const {
    if (!in_place()) norm_.apply(source(i), features_, normalized_ + i * features_);
  }
  int64_t stride() const { return !in_place() ? features_ : order_ ? 0 : stride_; }
  int64_t features() const { return features_; }

 private:
  const Element* source(int64_t i) const { return first_ + (order_ ? order_[i] : i) * stride_; }

  const Element* first_;
  int64_t stride_;
  const int64_t* order_;
  int64_t features_;
  RowNorm norm_;
  Element* normalized_;
};

inline constexpr int64_t kInt8Group = 4;  // features of a quantized row are padded to whole groups

// The same rows as integers q = round(x * kLargest / largest |x| of the row), to nearest even; x is about q * scale. They are
// held as PARTS rows of bytes, high ones first: q = ((part 0) * 256 + part 1) * 256 + ..., each part -128 .. 127 with 128 added.
// Three parts keep what float32 holds. A row whose largest |x| is below 1e-30 becomes 0. The arithmetic is the same on every
// instruction set.
template <class Element, int PARTS>
class QuantizedRows {
 public:
  static constexpr int kParts = PARTS;
  // `bytes` holds PARTS rows of padded features for each row, `scales` one float a row.
  QuantizedRows(const MatrixRows<Element>& x, uint8_t* bytes, float* scales)
      : x_(x), padded_(padded(x.features())), bytes_(bytes), scales_(scales) {}
  static int64_t padded(int64_t features) { return (features + kInt8Group - 1) / kInt8Group * kInt8Group; }
  bool in_place() const { return false; }
  const uint8_t* operator[](int64_t i) const { return bytes_ + i * padded_; }
  int64_t stride() const { return padded_; }
  int64_t features() const { return padded_; }

  // Row i of x: all its parts.
  void prepare(int64_t i) const {
    constexpr float kNothing = 1e-30f;
    x_.prepare(i);
    const Element* x = x_[i];
    uint8_t* q = bytes_ + i * PARTS * padded_;
    const int64_t features = x_.features(), whole = features / kLanes * kLanes;
    Element rest[kLanes] = {};
    std::copy(x + whole, x + features, rest);
    F16 largest = abs(load(rest));
    for (int64_t k = 0; k < whole; k += kLanes) largest = max(largest, abs(load(x + k)));
    const float top = reduce_max(largest);
    const bool nothing = top < kNothing;
    scales_[i] = nothing ? 0.0f : top / kLargest;
    const F16 factor = broadcast(nothing ? 0.0f : kLargest / top);
    for (int64_t k = 0; k < whole; k += kLanes) store_parts(q + k, padded_, load(x + k) * factor);
    uint8_t rest_bytes[PARTS * kLanes];
    store_parts(rest_bytes, kLanes, load(rest) * factor);
    for (int part = 0; part < PARTS; ++part)
      std::copy_n(rest_bytes + part * kLanes, padded_ - whole, q + part * padded_ + whole);
  }

 private:
  // Portable rounding to integers ends at 2^22.
  static constexpr float kLargest = PARTS == 1 ? 127.0f : PARTS == 2 ? 127.0f * 256.0f : 63.0f * 65536.0f;

  POLYBATCH_INLINE static void store_parts(uint8_t* to, int64_t part, F16 x) {
    F16 rest = round_to_integer(x);
    float unit = PARTS == 3 ? 65536.0f : 256.0f;
    // `half` more: what is left has to fit into the parts below, -128 .. 127 each, and no sum lies half way.
    float half = PARTS == 3 ? 128.5f : 0.5f;
    for (int i = 0; i < PARTS - 1; ++i, unit /= 256.0f, half = 0.5f) {
      const F16 high = round_to_integer((rest + broadcast(half)) * broadcast(1.0f / unit));
      store_offset_bytes(to + i * part, high);
      rest = rest - high * broadcast(unit);
    }
    store_offset_bytes(to + (PARTS - 1) * part, rest);
  }

  MatrixRows<Element> x_;
  int64_t padded_;
  uint8_t* bytes_;
  float* scales_;
};

}  // namespace polybatch
