// The panel kernels of every linear: y[M, N] = x[M, K] @ W[N, K]^T (+ bias).
//
// Packed weight, in panels of kPanel output columns, zero padded:
//   fp32  [ceil(N / kPanel)][K][kPanel]
//   bf16  [ceil(N / kPanel)][ceil(K / 2)][kPanel][2], or as fp32 where x is fp32
//   int8  [ceil(N / kPanel)][1 + ceil(K / 4)][kPanel][4], the first group being an int32 a column: -128 * sum of its weights
// One step of the inner loop reads 128 contiguous bytes of the panel, or 64 of bf16 for fp32 x.
//
// Order of accumulation, for every element: k = 0, 1, ..., K - 1 in groups of Dot::kPack, one accumulator. Row tiles,
// threads and M do not enter it. What sums start from and what becomes of them: linear_formats.h.
//
// A panel is read from memory once. With one row tile it streams through; with several, the tiles of a strip of panels
// bring in the next strip while they compute, each its part.
#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "linear_formats.h"
#include "row_tiles.h"

namespace polybatch {

inline constexpr int kPanelVectors = kPanel / kLanes;
inline constexpr ptrdiff_t kStreamAhead = 4096;  // bytes; several memory latencies at the speed of one core

// Vectors of the packed weight, from one on: both of a panel, then those of the next panel.
template <class Dot>
struct PanelColumns {
  const typename Dot::Weight* first;
  ptrdiff_t panel;  // elements
  POLYBATCH_INLINE const typename Dot::Weight* at(int j) const {
    return first + j / kPanelVectors * panel + j % kPanelVectors * kLanes * Dot::kPack;
  }
  POLYBATCH_INLINE void next() { first += kPanel * Dot::kPack; }
};

template <class Format>
struct Product {
  using Dot = typename Format::Dot;
  using Weight = typename Dot::Weight;
  StagedRows<Dot, typename Format::Rows> x;
  LinearOutput<typename Format::Out> out;
  const Weight* weight = nullptr;

  int64_t panel_elements() const { return (Format::kHeaderSteps + x.steps) * kPanel * Dot::kPack; }
  const Weight* panel_of(int64_t vector) const { return weight + vector / kPanelVectors * panel_elements(); }
  int64_t vectors() const { return panels_of(out.out_features) * kPanelVectors; }
  // A strip is the columns that a tile takes at once; a unit is one row tile of a strip. Units go strip by strip.
  int64_t strip_vectors() const { return x.tiles.count == 1 ? kTiles.alone.vectors : kTiles.packed.vectors; }
  int64_t strips() const { return (vectors() + strip_vectors() - 1) / strip_vectors(); }
  int64_t units() const { return strips() * x.tiles.count; }
};

// What became of row i (row `row` of x) of vector j of a tile's sums.
template <class Format, int ROWS, int VECTORS, class Finish>
POLYBATCH_INLINE F16 finished(const typename Format::Dot::Sum (&acc)[ROWS][VECTORS], int i, int j, int64_t row,
                              const Finish& finish) {
  constexpr int kParts = Format::Rows::kParts;
  typename Format::Dot::Sum sums[kParts];
  for (int part = 0; part < kParts; ++part) sums[part] = acc[i * kParts + part][j];
  return finish(sums, row);
}

// Writes what became of a tile's sums, and with RESIDUAL what is added to it, to `matrix`, from `column` on.
template <bool RESIDUAL, class Format, class Out, int ROWS, int VECTORS>
POLYBATCH_INLINE void write_tile(const Product<Format>& p, Out* matrix, int64_t column, int64_t tile,
                                 const typename Format::Dot::Sum (&acc)[ROWS][VECTORS], const int (&lanes)[VECTORS]) {
  constexpr int kParts = Format::Rows::kParts;
#pragma GCC unroll 8
  for (int j = 0; j < VECTORS; ++j) {
    if (lanes[j] == 0) continue;
    const auto finish = Format::finish(p.out, column + j * kLanes, lanes[j]);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS / kParts; ++i) {
      const int64_t row = p.x.tiles.begin(tile) + i;
      Out* y = matrix + (p.out.y_order ? p.out.y_order[row] : row) * p.out.out_features + column + j * kLanes;
      F16 result = finished<Format>(acc, i, j, row, finish);
      if constexpr (RESIDUAL) result = result + load(p.out.residual + row * p.out.residual_stride + column + j * kLanes);
      if (lanes[j] == kLanes) {
        store(y, result);
      } else {
        store_first(y, result, lanes[j]);
      }
    }
  }
}

// The same of a tile of gates and what belongs to them, vector by vector.
template <class Format, class Out, int ROWS, int VECTORS>
POLYBATCH_INLINE void write_gated_tile(const Product<Format>& p, Out* matrix, int64_t column, int64_t tile,
                                       const typename Format::Dot::Sum (&acc)[ROWS][VECTORS],
                                       const int (&lanes)[VECTORS]) {
  constexpr int kParts = Format::Rows::kParts;
#pragma GCC unroll 8
  for (int j = 0; j < VECTORS; j += 2) {
    if (lanes[j] == 0) continue;
    const auto finish_gate = Format::finish(p.out, column + j * kLanes, kLanes);
    const auto finish = Format::finish(p.out, column + (j + 1) * kLanes, kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS / kParts; ++i) {
      const int64_t row = p.x.tiles.begin(tile) + i;
      const F16 gate = silu(finished<Format>(acc, i, j, row, finish_gate));
      store(matrix + (row * p.out.out_features + column + j * kLanes) / 2, gate * finished<Format>(acc, i, j + 1, row, finish));
    }
  }
}

template <class Format, class Out, int ROWS, int VECTORS>
POLYBATCH_INLINE void write_results(const Product<Format>& p, Out* matrix, int64_t column, int64_t tile,
                                    const typename Format::Dot::Sum (&acc)[ROWS][VECTORS], const int (&lanes)[VECTORS]) {
  if constexpr (kHasGates) {
    if (p.out.gated) return write_gated_tile(p, matrix, column, tile, acc, lanes);
  }
  if constexpr (std::is_same_v<Out, typename Format::Out>) {
    if (p.out.residual) return write_tile<true>(p, matrix, column, tile, acc, lanes);
  }
  write_tile<false>(p, matrix, column, tile, acc, lanes);
}

template <class Format, int ROWS, int VECTORS, bool PACKED>
void row_tile(const Product<Format>& p, int64_t vector, int64_t tile) {
  using Dot = typename Format::Dot;
  constexpr ptrdiff_t kStepBytes = kPanel * Dot::kPack * sizeof(typename Dot::Weight);
  const int64_t column = vector * kLanes;
  const PanelColumns<Dot> headers{p.panel_of(vector) + vector % kPanelVectors * kLanes * Dot::kPack, p.panel_elements()};
  const PanelColumns<Dot> columns{headers.first + Format::kHeaderSteps * kPanel * Dot::kPack, headers.panel};
  typename Dot::Sum acc[ROWS][VECTORS];
  int lanes[VECTORS];
#pragma GCC unroll 8
  for (int j = 0; j < VECTORS; ++j) {
    lanes[j] = static_cast<int>(std::clamp<int64_t>(p.out.out_features - (column + j * kLanes), 0, kLanes));
    const auto start = Format::start(p.out, headers.at(j), column + j * kLanes, lanes[j]);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) acc[i][j] = start;
  }
  const char* const bytes = reinterpret_cast<const char*>(columns.first);
  if constexpr (PACKED) {
    constexpr int kPanels = (VECTORS + kPanelVectors - 1) / kPanelVectors;
    static_assert(kPanels * kStepBytes <= kFewestTiles * kCacheLine);
    const ptrdiff_t strip = (Format::kHeaderSteps + p.x.steps) * kPanels * kStepBytes;
    const ptrdiff_t stride = kPanels * kStepBytes / p.x.tiles.count;  // of the next strip, at most a line
    accumulate_tile<Dot>(acc, p.x.packed(tile), columns, p.x.steps,
                         PrefetchPart{bytes + strip + tile * p.x.steps * stride, stride});
  } else {
    constexpr int kLines = (VECTORS * kStepBytes / kPanelVectors + kCacheLine - 1) / kCacheLine;
    accumulate_tile<Dot>(acc, p.x.template in_place<ROWS>(), columns, p.x.steps,
                         PrefetchLines<kLines>{bytes + kStreamAhead});
  }
  if (std::is_same_v<typename Format::Out, float> || p.out.y_float == nullptr) {
    write_results(p, p.out.y, column, tile, acc, lanes);
  } else {
    write_results(p, p.out.y_float, column, tile, acc, lanes);
  }
}

template <class Format>
using RowTileKernel = void (*)(const Product<Format>&, int64_t vector, int64_t tile);

// Entry i is the kernel for FIRST + i rows.
template <class Format, int VECTORS, bool PACKED, int FIRST, size_t... I>
constexpr std::array<RowTileKernel<Format>, sizeof...(I)> row_tile_kernels(std::index_sequence<I...>) {
  return {row_tile<Format, FIRST + static_cast<int>(I), VECTORS, PACKED>...};
}

template <class Format>
void run_unit(const Product<Format>& p, int64_t strip, int64_t tile) {
  constexpr TileShape kAlone = kTiles.alone, kPacked = kTiles.packed;
  constexpr int kFewest = (kPacked.rows + 1) / 2;  // rows of a tile that has neighbours
  constexpr std::make_index_sequence<kPacked.rows - kFewest + 1> kPackedSizes;
  constexpr int kLastVectors = kPacked.vectors < kPanelVectors ? kPacked.vectors : kPanelVectors;
  static constexpr auto kAloneKernels =
      row_tile_kernels<Format, kAlone.vectors, false, 1>(std::make_index_sequence<kAlone.rows>{});
  static constexpr auto kPackedKernels = row_tile_kernels<Format, kPacked.vectors, true, kFewest>(kPackedSizes);
  static constexpr auto kLastKernels = row_tile_kernels<Format, kLastVectors, true, kFewest>(kPackedSizes);
  const int64_t vector = strip * p.strip_vectors();
  const int rows = p.x.tiles.size(tile) * Format::Rows::kParts;
  if (p.x.tiles.count == 1) {
    kAloneKernels[rows - 1](p, vector, tile);
  } else if (vector + kPacked.vectors <= p.vectors()) {
    kPackedKernels[rows - kFewest](p, vector, tile);
  } else {
    kLastKernels[rows - kFewest](p, vector, tile);  // one panel is left of a strip of two
  }
}

}  // namespace polybatch
