// Int8 panels as the float kernels read them: for linears that keep their activations.
#pragma once

#include "linear_formats.h"

namespace polybatch {

// Four k of 16 columns; `to` holds those of a panel as fp32 [4][kPanel] or bf16 [2][kPanel][2].
POLYBATCH_INLINE void convert_groups(Groups groups, int column, float* to) {
  store(to + column, byte_of<0>(groups));
  store(to + kPanel + column, byte_of<1>(groups));
  store(to + 2 * kPanel + column, byte_of<2>(groups));
  store(to + 3 * kPanel + column, byte_of<3>(groups));
}
POLYBATCH_INLINE void convert_groups(Groups groups, int column, BFloat16* to) {
  store_pairs(to + 2 * column, byte_of<0>(groups), byte_of<1>(groups));
  store_pairs(to + 2 * (kPanel + column), byte_of<2>(groups), byte_of<3>(groups));
}

// Elements of a stored panel, header and all.
inline int64_t int8_panel_elements(int64_t in_features) {
  return (1 + (in_features + kInt8Group - 1) / kInt8Group) * kPanel * kInt8Group;
}

// A stored panel's weights; `to` gets whole groups of four k.
template <class Element>
void convert_panel(const int8_t* panel, int64_t in_features, Element* to) {
  constexpr ptrdiff_t kAhead = 2048;  // bytes
  const int8_t* const end = panel + int8_panel_elements(in_features);
  for (const int8_t* from = panel + kPanel * kInt8Group; from < end; from += kPanel * kInt8Group, to += kPanel * kInt8Group) {
#pragma GCC unroll 2
    for (int column = 0; column < kPanel; column += kLanes) {
      prefetch(from + column * kInt8Group + kAhead);
      convert_groups(load_groups(from + column * kInt8Group), column, to);
    }
  }
}

}  // namespace polybatch
