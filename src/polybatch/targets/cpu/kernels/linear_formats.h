// How a linear stores its operands, what its sums start from and what becomes of them. The format does not know the tiling.
//
//   FloatFormat        x and W fp32 or bf16 (x fp32, W either): start from bias (or 0); bf16 results are rounded once, to
//                      nearest even
//   Int8Format         x as integers of one to three bytes, row by row, W int8: exact int32 sums (one for each byte, put together
//                      as the bytes are), then sum * (row scale * column scale) + bias
#pragma once

#include "api.h"
#include "row_sources.h"
#include "tile.h"

namespace polybatch {

inline constexpr int kPanel = 32;  // columns of a packed weight that lie side by side
inline int64_t panels_of(int64_t out_features) { return (out_features + kPanel - 1) / kPanel; }
// Elements of an int8 panel, header and all.
inline int64_t int8_panel_elements(int64_t in_features) {
  return (1 + (in_features + kInt8Group - 1) / kInt8Group) * kPanel * kInt8Group;
}

template <class Out>
struct LinearOutput {
  Out* y;
  float* y_float;          // takes the results in place of y; or null
  const int64_t* y_order;  // row i goes to row y_order[i] of y; null: to row i
  int64_t out_features;
  const float* bias;       // [out_features] or null
  const float* scale;      // [out_features], int8 weights only
  const float* row_scale;  // [rows], quantized x only
  bool gated;              // y[rows, out_features / 2]: see api.h
  const Out* residual;     // rows to add to those of y, or null
  int64_t residual_stride;
};

template <class D>
struct FloatFormat {
  using Dot = D;
  using Input = typename D::Element;
  using Out = Input;
  using Rows = MatrixRows<Input>;
  static constexpr int kHeaderSteps = 0;  // of a panel, before its weights

  POLYBATCH_INLINE static F16 start(const LinearOutput<Out>& out, const typename D::Weight*, int64_t n, int lanes) {
    return out.bias ? load_first(out.bias + n, lanes) : zero();
  }
  POLYBATCH_INLINE static auto finish(const LinearOutput<Out>&, int64_t, int) {
    return [](const F16 (&sums)[1], int64_t) { return sums[0]; };
  }
};

// sum * scale + bias, in two roundings on every instruction set.
struct Rescale {
  F16 scale, bias;
  bool has_bias;
  template <class Out>
  POLYBATCH_INLINE Rescale(const LinearOutput<Out>& out, int64_t n, int lanes)
      : scale(load_first(out.scale + n, lanes)),
        bias(out.bias ? load_first(out.bias + n, lanes) : zero()),
        has_bias(out.bias != nullptr) {}
  POLYBATCH_INLINE F16 operator()(F16 sum, F16 by) const {
    const F16 scaled = sum * by;
    return has_bias ? scaled + bias : scaled;
  }
};

// PARTS: bytes that an element of x becomes.
template <class Element, int PARTS>
struct Int8Format {
  using Dot = DotU8S8;
  using Input = Element;
  using Out = Element;
  using Rows = QuantizedRows<Element, PARTS>;
  static constexpr int kHeaderSteps = 1;

  POLYBATCH_INLINE static I16 start(const LinearOutput<Out>&, const int8_t* header, int64_t, int) {
    return load_ints(reinterpret_cast<const int32_t*>(header));
  }
  POLYBATCH_INLINE static auto finish(const LinearOutput<Out>& out, int64_t n, int lanes) {
    return [rescale = Rescale(out, n, lanes), rows = out.row_scale](const I16 (&sums)[PARTS], int64_t row) {
      F16 sum = to_float(sums[0]);
      for (int part = 1; part < PARTS; ++part) sum = sum * broadcast(256.0f) + to_float(sums[part]);
      return rescale(sum, broadcast(rows[row]) * rescale.scale);
    };
  }
};

}  // namespace polybatch
