// How a linear stores its operands, what its sums start from and what becomes of them. The format does not know the tiling.
//
//   FloatFormat        x and W fp32 or bf16: start from bias (or 0); bf16 results are rounded once, to nearest even
//   Int8Format         x quantized row by row, W int8: exact int32 sums, then sum * (row scale * column scale) + bias
//   Int8WeightFormat   W int8, converted to x's type: start from 0, then sum * column scale + bias
#pragma once

#include "api.h"
#include "row_sources.h"
#include "tile.h"

namespace polybatch {

inline constexpr int kPanel = 32;  // columns of a packed weight that lie side by side
inline int64_t panels_of(int64_t out_features) { return (out_features + kPanel - 1) / kPanel; }

template <class Out>
struct LinearOutput {
  Out* y;
  float* y_float;          // takes the results in place of y; or null
  const int64_t* y_order;  // row i goes to row y_order[i] of y; null: to row i
  int64_t out_features;
  const float* bias;       // [out_features] or null
  const float* scale;      // [out_features], int8 weights only
  const float* row_scale;  // [rows], quantized x only
};

template <class D>
struct FloatFormat {
  using Dot = D;
  using Input = typename D::Element;
  using Out = Input;
  using Rows = MatrixRows<Input>;
  static constexpr int kHeaderSteps = 0;  // of a panel, before its weights
  static constexpr bool kConverts = false;  // whether weights are stored otherwise than the kernels read them

  POLYBATCH_INLINE static F16 start(const LinearOutput<Out>& out, const Input*, int64_t n, int lanes) {
    return out.bias ? load_first(out.bias + n, lanes) : zero();
  }
  POLYBATCH_INLINE static auto finish(const LinearOutput<Out>&, int64_t, int) {
    return [](F16 sum, int64_t) { return sum; };
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

template <class D>
struct Int8WeightFormat {
  using Dot = D;
  using Input = typename D::Element;
  using Out = Input;
  using Rows = MatrixRows<Input>;
  static constexpr int kHeaderSteps = 0;
  static constexpr bool kConverts = true;

  POLYBATCH_INLINE static F16 start(const LinearOutput<Out>&, const Input*, int64_t, int) { return zero(); }
  POLYBATCH_INLINE static auto finish(const LinearOutput<Out>& out, int64_t n, int lanes) {
    return [rescale = Rescale(out, n, lanes)](F16 sum, int64_t) { return rescale(sum, rescale.scale); };
  }
};

template <class Element>
struct Int8Format {
  using Dot = DotU8S8;
  using Input = Element;
  using Out = Element;
  using Rows = QuantizedRows<Element>;
  static constexpr int kHeaderSteps = 1;
  static constexpr bool kConverts = false;

  POLYBATCH_INLINE static I16 start(const LinearOutput<Out>&, const int8_t* header, int64_t, int) {
    return load_ints(reinterpret_cast<const int32_t*>(header));
  }
  POLYBATCH_INLINE static auto finish(const LinearOutput<Out>& out, int64_t n, int lanes) {
    return [rescale = Rescale(out, n, lanes), rows = out.row_scale](I16 sum, int64_t row) {
      return rescale(to_float(sum), broadcast(rows[row]) * rescale.scale);
    };
  }
};

}  // namespace polybatch
