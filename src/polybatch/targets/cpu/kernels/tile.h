// The one inner loop of every kernel: a register tile of ROWS x VECTORS accumulators.
//
//   acc[i][j] += a[i][s] . b[s][j]      for s = 0, 1, ..., steps - 1, in that order, one accumulator per element
//
// A step covers Dot::kPack consecutive elements of the reduced dimension: 1 for fp32, 2 for bf16. `a` supplies one group
// of kPack scalars per row and step (broadcast), `b` one vector of 16 groups per step and vector. Each accumulator lane
// sees the same operations whatever ROWS, VECTORS, its row or its lane: this is what makes results independent of tiling.
#pragma once

#include <cstddef>

#include "simd.h"

namespace polybatch {

struct DotF32 {
  using Element = float;
  using Vector = F16;
  static constexpr int kPack = 1;
  POLYBATCH_INLINE static Vector broadcast_group(const float* p) { return broadcast(*p); }
  POLYBATCH_INLINE static Vector load_groups(const float* p) { return load(p); }
  POLYBATCH_INLINE static Vector load_first_groups(const float* p, int count) { return load_first(p, count); }
  POLYBATCH_INLINE static Vector first_of_group(Vector x) { return x; }
  POLYBATCH_INLINE static F16 dot(F16 acc, Vector a, Vector b) { return fma(a, b, acc); }
};

struct DotBF16 {
  using Element = BFloat16;
  using Vector = Pairs;
  static constexpr int kPack = 2;
  POLYBATCH_INLINE static Vector broadcast_group(const BFloat16* p) { return broadcast_pair(p); }
  POLYBATCH_INLINE static Vector load_groups(const BFloat16* p) { return load_pairs(p); }
  POLYBATCH_INLINE static Vector load_first_groups(const BFloat16* p, int count) { return load_first_pairs(p, count); }
  POLYBATCH_INLINE static Vector first_of_group(Vector x) { return even_only(x); }
  POLYBATCH_INLINE static F16 dot(F16 acc, Vector a, Vector b) { return dot_bf16_pairs(acc, a, b); }
};

// Where the tile's operands lie. Strides are in elements.
template <class Dot>
struct TileOperands {
  const typename Dot::Element* a;  // row i, step s: a + i * a_row + s * kPack
  ptrdiff_t a_row;
  const typename Dot::Element* b;  // vector j, step s: b + s * b_step + j * b_vector
  ptrdiff_t b_step;
  ptrdiff_t b_vector;
  ptrdiff_t prefetch_ahead;        // bytes from a vector that is loaded to the one to prefetch; 0 = none
};

struct WholeVectors {
  template <class Dot>
  POLYBATCH_INLINE typename Dot::Vector load(const typename Dot::Element* p) const { return Dot::load_groups(p); }
};

// Reads only the first `lanes` groups of a vector; the other lanes are zero.
struct FirstLanes {
  int lanes;
  template <class Dot>
  POLYBATCH_INLINE typename Dot::Vector load(const typename Dot::Element* p) const {
    return Dot::load_first_groups(p, lanes);
  }
};

template <class Dot, int ROWS, int VECTORS, class Loader = WholeVectors>
POLYBATCH_INLINE void accumulate_tile(F16 (&acc)[ROWS][VECTORS], const TileOperands<Dot>& from, int steps,
                                      Loader loader = {}) {
  constexpr int kRowsPerPointer = 3;  // rows at +0, +1 and +2 strides need one base register on x86
  constexpr int kPointers = (ROWS + kRowsPerPointer - 1) / kRowsPerPointer;
  const typename Dot::Element* a[kPointers];
#pragma GCC unroll 8
  for (int g = 0; g < kPointers; ++g) a[g] = from.a + g * kRowsPerPointer * from.a_row;
  const typename Dot::Element* b = from.b;
  const ptrdiff_t a_row = from.a_row, b_step = from.b_step, b_vector = from.b_vector;
  const ptrdiff_t ahead = from.prefetch_ahead;
  for (int s = 0; s < steps; ++s) {
    typename Dot::Vector vector[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) vector[j] = loader.template load<Dot>(b + j * b_vector);
    if (ahead != 0) {
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) prefetch(reinterpret_cast<const char*>(b + j * b_vector) + ahead);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      const typename Dot::Vector scalar =
          Dot::broadcast_group(a[i / kRowsPerPointer] + (i % kRowsPerPointer) * a_row);
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) acc[i][j] = Dot::dot(acc[i][j], scalar, vector[j]);
    }
#pragma GCC unroll 8
    for (int g = 0; g < kPointers; ++g) a[g] += Dot::kPack;
    b += b_step;
  }
}

// One more step in which only the first element of each b group counts (the rest of the group is not live).
template <class Dot, int ROWS, int VECTORS, class Loader = WholeVectors>
POLYBATCH_INLINE void accumulate_half_step(F16 (&acc)[ROWS][VECTORS], const TileOperands<Dot>& from, int step,
                                           Loader loader = {}) {
#pragma GCC unroll 8
  for (int j = 0; j < VECTORS; ++j) {
    const typename Dot::Vector vector =
        Dot::first_of_group(loader.template load<Dot>(from.b + step * from.b_step + j * from.b_vector));
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
      acc[i][j] = Dot::dot(acc[i][j], Dot::broadcast_group(from.a + i * from.a_row + step * Dot::kPack), vector);
  }
}

// Rows are cut into the fewest tiles of at most `max_rows`, as equal as possible: 16 rows are 8 + 8, not 12 + 4.
struct RowTiles {
  int count, rows;  // the first `longer` tiles have rows + 1
  int longer;
  RowTiles(int total, int max_rows)
      : count((total + max_rows - 1) / max_rows),
        rows(count ? total / count : 0),
        longer(count ? total % count : 0) {}
  int size(int tile) const { return rows + (tile < longer ? 1 : 0); }
};

}  // namespace polybatch
