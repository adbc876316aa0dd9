// The panel kernels of every linear: y[M, N] = x[M, K] @ W[N, K]^T (+ bias), fp32 or bf16 with fp32 accumulation.
//
// Packed weight, in panels of kPanel output columns, zero padded:
//   fp32  [ceil(N / kPanel)][K][kPanel]
//   bf16  [ceil(N / kPanel)][ceil(K / 2)][kPanel][2]
// One step of the inner loop reads 128 contiguous bytes of the panel in either mode.
//
// Order of accumulation, for every element: start from bias (or 0), add k = 0, 1, ..., K - 1 in groups of Dot::kPack,
// one fp32 accumulator; bf16 results are rounded once, to nearest even. Row tiles, threads and M do not enter it.
//
// A panel is read from memory once. With one row tile it streams through; with several, the tiles of a strip of panels
// bring in the next strip while they compute, each its part.
#pragma once

#include <array>
#include <utility>

#include "api.h"
#include "row_tiles.h"

namespace polybatch {

inline constexpr int kPanel = 32;
inline constexpr int kPanelVectors = kPanel / kLanes;
inline constexpr ptrdiff_t kStreamAhead = 4096;  // bytes; several memory latencies at the speed of one core

inline int64_t panels_of(int64_t out_features) { return (out_features + kPanel - 1) / kPanel; }

// Vectors of the packed weight, from one on: both of a panel, then those of the next panel.
template <class Dot>
struct PanelColumns {
  const typename Dot::Element* first;
  ptrdiff_t panel;  // elements
  POLYBATCH_INLINE const typename Dot::Element* at(int j) const {
    return first + j / kPanelVectors * panel + j % kPanelVectors * kLanes * Dot::kPack;
  }
  POLYBATCH_INLINE void next() { first += kPanel * Dot::kPack; }
};

template <class Dot>
struct Product {
  using Element = typename Dot::Element;
  StagedRows<Dot> x;
  const Element* weight;
  const float* bias;
  Element* y;
  const int64_t* y_order;  // row i goes to row y_order[i] of y; null: to row i
  int64_t out_features;

  int64_t panel_elements() const { return x.steps * kPanel * Dot::kPack; }
  const Element* vectors_from(int64_t vector) const {
    return weight + vector / kPanelVectors * panel_elements() + vector % kPanelVectors * kLanes * Dot::kPack;
  }
  // A unit is one row tile of a strip: the columns that a tile takes at once. Units go strip by strip.
  int64_t strip_vectors() const { return x.tiles.count == 1 ? kTiles.alone.vectors : kTiles.packed.vectors; }
  int64_t strips() const {
    return (panels_of(out_features) * kPanelVectors + strip_vectors() - 1) / strip_vectors();
  }
  int64_t units() const { return strips() * x.tiles.count; }
};

template <class Dot, int ROWS, int VECTORS, bool PACKED>
void row_tile(const Product<Dot>& p, int64_t vector, int64_t tile) {
  using Element = typename Dot::Element;
  constexpr ptrdiff_t kStepBytes = kPanel * Dot::kPack * sizeof(Element);
  const int64_t column = vector * kLanes;
  F16 acc[ROWS][VECTORS];
  int lanes[VECTORS];
#pragma GCC unroll 8
  for (int j = 0; j < VECTORS; ++j) {
    const int64_t n = column + j * kLanes;
    lanes[j] = static_cast<int>(std::clamp<int64_t>(p.out_features - n, 0, kLanes));
    const F16 start = p.bias ? load_first(p.bias + n, lanes[j]) : zero();
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) acc[i][j] = start;
  }
  const PanelColumns<Dot> columns{p.vectors_from(vector), p.panel_elements()};
  if constexpr (PACKED) {
    constexpr int kPanels = (VECTORS + kPanelVectors - 1) / kPanelVectors;
    static_assert(kPanels * kStepBytes <= kFewestTiles * kCacheLine);
    const ptrdiff_t stride = kPanels * kStepBytes / p.x.tiles.count;  // of the next strip, at most a line
    const char* const next = reinterpret_cast<const char*>(p.vectors_from(vector + VECTORS));
    accumulate_tile<Dot>(acc, p.x.packed(tile), columns, p.x.steps,
                         PrefetchPart{next + tile * p.x.steps * stride, stride});
  } else {
    const char* const bytes = reinterpret_cast<const char*>(columns.first);
    accumulate_tile<Dot>(acc, p.x.template in_place<ROWS>(), columns, p.x.steps,
                         PrefetchLines<VECTORS>{bytes + kStreamAhead});
  }
  const int64_t row = p.x.tiles.begin(tile);
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i) {
    Element* y = p.y + (p.y_order ? p.y_order[row + i] : row + i) * p.out_features + column;
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) {
      if (lanes[j] == kLanes) {
        store(y + j * kLanes, acc[i][j]);
      } else if (lanes[j] > 0) {
        store_first(y + j * kLanes, acc[i][j], lanes[j]);
      }
    }
  }
}

template <class Dot>
using RowTileKernel = void (*)(const Product<Dot>&, int64_t vector, int64_t tile);

// Entry i is the kernel for FIRST + i rows.
template <class Dot, int VECTORS, bool PACKED, int FIRST, size_t... I>
constexpr std::array<RowTileKernel<Dot>, sizeof...(I)> row_tile_kernels(std::index_sequence<I...>) {
  return {row_tile<Dot, FIRST + static_cast<int>(I), VECTORS, PACKED>...};
}

template <class Dot>
void run_units(const Product<Dot>& p, Range units) {
  constexpr TileShape kAlone = kTiles.alone, kPacked = kTiles.packed;
  constexpr int kFewest = (kPacked.rows + 1) / 2;  // rows of a tile that has neighbours
  constexpr std::make_index_sequence<kPacked.rows - kFewest + 1> kPackedSizes;
  constexpr int kLastVectors = kPacked.vectors < kPanelVectors ? kPacked.vectors : kPanelVectors;
  static constexpr auto kAloneKernels =
      row_tile_kernels<Dot, kAlone.vectors, false, 1>(std::make_index_sequence<kAlone.rows>{});
  static constexpr auto kPackedKernels = row_tile_kernels<Dot, kPacked.vectors, true, kFewest>(kPackedSizes);
  static constexpr auto kLastKernels = row_tile_kernels<Dot, kLastVectors, true, kFewest>(kPackedSizes);
  const RowTiles& tiles = p.x.tiles;
  const int64_t vectors = panels_of(p.out_features) * kPanelVectors;
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    const int64_t vector = unit / tiles.count * p.strip_vectors(), tile = unit % tiles.count;
    const int rows = tiles.size(tile);
    if (tiles.count == 1) {
      kAloneKernels[rows - 1](p, vector, tile);
    } else if (vector + kPacked.vectors <= vectors) {
      kPackedKernels[rows - kFewest](p, vector, tile);
    } else {
      kLastKernels[rows - kFewest](p, vector, tile);  // one panel is left of a strip of two
    }
  }
}

}  // namespace polybatch
