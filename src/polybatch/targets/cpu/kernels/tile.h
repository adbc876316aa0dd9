// The one inner loop of every kernel: a register tile of ROWS x VECTORS accumulators.
//
//   acc[i][j] += rows[i][s] . columns[s][j]      for s = 0, 1, ..., steps - 1, in that order, one accumulator per element
//
// A step covers Dot::kPack consecutive elements of the reduced dimension: 1 for fp32, 2 for bf16, 4 for int8. `rows` supplies one
// group of kPack scalars per row and step (broadcast), `columns` one vector of 16 groups per step and vector. Each accumulator lane
// sees the same operations whatever ROWS, VECTORS, its row or its lane: this is what makes results independent of tiling.
#pragma once

#include <cstddef>

#include "simd.h"

namespace polybatch {

struct DotF32 {
  using Element = float;
  using Weight = float;
  using Vector = F16;
  using Sum = F16;
  static constexpr int kPack = 1;
  POLYBATCH_INLINE static Vector broadcast_group(const float* p) { return broadcast(*p); }
  POLYBATCH_INLINE static Vector load_groups(const float* p) { return load(p); }
  POLYBATCH_INLINE static Vector load_first_groups(const float* p, int count) { return load_first(p, count); }
  POLYBATCH_INLINE static Vector first_of_group(Vector x) { return x; }
  POLYBATCH_INLINE static F16 dot(F16 acc, Vector a, Vector b) { return fma(a, b, acc); }
};

// fp32 rows and weights that bfloat16 holds exactly: the same sums as DotF32's from half the bytes.
struct DotF32Narrow : DotF32 {
  using Weight = BFloat16;
  POLYBATCH_INLINE static Vector load_groups(const BFloat16* p) { return load(p); }
};

struct DotBF16 {
  using Element = BFloat16;
  using Weight = BFloat16;
  using Vector = Groups;
  using Sum = F16;
  static constexpr int kPack = 2;
  POLYBATCH_INLINE static Vector broadcast_group(const BFloat16* p) { return polybatch::broadcast_group(p); }
  POLYBATCH_INLINE static Vector load_groups(const BFloat16* p) { return polybatch::load_groups(p); }
  POLYBATCH_INLINE static Vector load_first_groups(const BFloat16* p, int count) { return polybatch::load_first_groups(p, count); }
  POLYBATCH_INLINE static Vector first_of_group(Vector x) { return even_only(x); }
  POLYBATCH_INLINE static F16 dot(F16 acc, Vector a, Vector b) { return dot_bf16_pairs(acc, a, b); }
};

// Rows of bytes that hold integers in -127 .. 127 with 128 added; sums start at -128 times the sum of the weights.
struct DotU8S8 {
  using Element = uint8_t;
  using Weight = int8_t;
  using Vector = Groups;
  using Sum = I16;
  static constexpr int kPack = 4;
  POLYBATCH_INLINE static Vector broadcast_group(const uint8_t* p) { return polybatch::broadcast_group(p); }
  POLYBATCH_INLINE static Vector load_groups(const int8_t* p) { return polybatch::load_groups(p); }
  POLYBATCH_INLINE static I16 dot(I16 acc, Vector a, Vector b) { return dot_u8s8(acc, a, b); }
};

// The rows of a tile as they lie in a matrix: row i, step s at first + i * stride + s * kPack.
template <class Dot, int ROWS>
class RowsInPlace {
 public:
  using Element = typename Dot::Element;
  POLYBATCH_INLINE RowsInPlace(const Element* first, ptrdiff_t stride) : stride_(stride) {
#pragma GCC unroll 8
    for (int g = 0; g < kPointers; ++g) p_[g] = first + g * kRowsPerPointer * stride;
  }
  POLYBATCH_INLINE const Element* operator[](int i) const {
    return p_[i / kRowsPerPointer] + (i % kRowsPerPointer) * stride_;
  }
  POLYBATCH_INLINE void next() {
#pragma GCC unroll 8
    for (int g = 0; g < kPointers; ++g) p_[g] += Dot::kPack;
  }

 private:
  static constexpr int kRowsPerPointer = 3;  // rows at +0, +1 and +2 strides need one base register on x86
  static constexpr int kPointers = (ROWS + kRowsPerPointer - 1) / kRowsPerPointer;
  const Element* p_[kPointers];
  ptrdiff_t stride_;
};

// The rows of a tile side by side: row i, step s at first + (s * kPackedPitch + i) * kPack.
template <class Dot>
class PackedRows {
 public:
  using Element = typename Dot::Element;
  POLYBATCH_INLINE explicit PackedRows(const Element* first) : p_(first) {}
  POLYBATCH_INLINE const Element* operator[](int i) const { return p_ + i * Dot::kPack; }
  POLYBATCH_INLINE void next() { p_ += kPackedPitch * Dot::kPack; }

 private:
  const Element* p_;
};

// Vector j, step s at first + s * step + j * vector. Strides are in elements.
template <class Dot>
struct Columns {
  const typename Dot::Weight* first;
  ptrdiff_t step, vector;
  POLYBATCH_INLINE const typename Dot::Weight* at(int j) const { return first + j * vector; }
  POLYBATCH_INLINE void next() { first += step; }
};

// What a tile asks to be brought nearer while it computes; next() is called once a step.
struct NoPrefetch {
  POLYBATCH_INLINE void next() {}
};

// LINES cache lines a step from `p` on.
template <int LINES>
struct PrefetchLines {
  const char* p;
  POLYBATCH_INLINE void next() {
#pragma GCC unroll 8
    for (int i = 0; i < LINES; ++i) prefetch(p + i * kCacheLine);
    p += LINES * kCacheLine;
  }
};

// One line every `stride` bytes: the tile's part of something that several tiles bring in together.
struct PrefetchPart {
  const char* p;
  ptrdiff_t stride;
  POLYBATCH_INLINE void next() {
    prefetch(p);
    p += stride;
  }
};

struct WholeVectors {
  template <class Dot>
  POLYBATCH_INLINE typename Dot::Vector load(const typename Dot::Weight* p) const { return Dot::load_groups(p); }
};

// Reads only the first `lanes` groups of a vector; the other lanes are zero.
struct FirstLanes {
  int lanes;
  template <class Dot>
  POLYBATCH_INLINE typename Dot::Vector load(const typename Dot::Weight* p) const {
    return Dot::load_first_groups(p, lanes);
  }
};

template <class Dot, int ROWS, int VECTORS, class Rows, class Columns, class Prefetch = NoPrefetch,
          class Loader = WholeVectors>
POLYBATCH_INLINE void accumulate_tile(typename Dot::Sum (&acc)[ROWS][VECTORS], Rows rows, Columns columns,
                                      int64_t steps, Prefetch ahead = {}, Loader loader = {}) {
  for (int64_t s = 0; s < steps; ++s) {
    typename Dot::Vector vector[VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) vector[j] = loader.template load<Dot>(columns.at(j));
    ahead.next();
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      const typename Dot::Vector scalar = Dot::broadcast_group(rows[i]);
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) acc[i][j] = Dot::dot(acc[i][j], scalar, vector[j]);
    }
    rows.next();
    columns.next();
  }
}

// One more step in which only the first element of each column group counts (the rest of the group is not live).
template <class Dot, int ROWS, int VECTORS, class Rows, class Loader = WholeVectors>
POLYBATCH_INLINE void accumulate_half_step(typename Dot::Sum (&acc)[ROWS][VECTORS], const Rows& rows,
                                           const Columns<Dot>& columns, Loader loader = {}) {
#pragma GCC unroll 8
  for (int j = 0; j < VECTORS; ++j) {
    const typename Dot::Vector vector =
        Dot::first_of_group(loader.template load<Dot>(columns.at(j)));
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) acc[i][j] = Dot::dot(acc[i][j], Dot::broadcast_group(rows[i]), vector);
  }
}

}  // namespace polybatch
