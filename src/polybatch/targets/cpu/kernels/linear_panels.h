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
// A panel is read from memory once. With one row tile it streams through; with several, the tiles of a panel bring the
// next panel into the L2 cache while they compute, each its part.
#pragma once

#include <array>
#include <utility>

#include "api.h"
#include "row_tiles.h"

namespace polybatch {

inline constexpr int kPanel = 32;
inline constexpr int kPanelVectors = kPanel / kLanes;
inline constexpr int kMaxRows = kTile.linear_rows;
inline constexpr int kVectors = kTile.linear_vectors;
inline constexpr ptrdiff_t kStreamAhead = 4096;  // bytes; several memory latencies at the speed of one core

inline int64_t panels_of(int64_t out_features) { return (out_features + kPanel - 1) / kPanel; }

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
  // A unit is one row tile of one panel; units go panel by panel.
  int64_t units() const { return panels_of(out_features) * x.tiles.count; }
};

template <class Dot, int ROWS, bool PACKED>
void row_tile(const Product<Dot>& p, int64_t panel, int64_t tile) {
  using Element = typename Dot::Element;
  const Element* const weight = p.weight + panel * p.panel_elements();
  for (int first = 0; first < kPanelVectors; first += kVectors) {
    const int64_t column = panel * kPanel + first * kLanes;
    F16 acc[ROWS][kVectors];
    int lanes[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const int64_t n = column + j * kLanes;
      lanes[j] = static_cast<int>(std::clamp<int64_t>(p.out_features - n, 0, kLanes));
      const F16 start = p.bias ? load_first(p.bias + n, lanes[j]) : zero();
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i) acc[i][j] = start;
    }
    const Columns<Dot> columns{weight + first * kLanes * Dot::kPack, kPanel * Dot::kPack, kLanes * Dot::kPack};
    const char* const bytes = reinterpret_cast<const char*>(columns.first);
    if constexpr (PACKED) {
      constexpr ptrdiff_t kStepBytes = kPanel * Dot::kPack * sizeof(Element);
      const ptrdiff_t stride = kStepBytes / p.x.tiles.count;  // of the next panel
      const char* const next = bytes + p.panel_elements() * static_cast<ptrdiff_t>(sizeof(Element));
      accumulate_tile(acc, p.x.packed(tile), columns, p.x.steps, PrefetchToL2{next + tile * p.x.steps * stride, stride});
    } else {
      accumulate_tile(acc, p.x.template in_place<ROWS>(), columns, p.x.steps,
                      PrefetchLines<kVectors>{bytes + kStreamAhead});
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      const int64_t row = p.x.tiles.begin(tile) + i;
      Element* y = p.y + (p.y_order ? p.y_order[row] : row) * p.out_features + column;
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        if (lanes[j] == kLanes) {
          store(y + j * kLanes, acc[i][j]);
        } else if (lanes[j] > 0) {
          store_first(y + j * kLanes, acc[i][j], lanes[j]);
        }
      }
    }
  }
}

template <class Dot>
using RowTileKernel = void (*)(const Product<Dot>&, int64_t panel, int64_t tile);

// Entry i is the kernel for FIRST + i rows.
template <class Dot, bool PACKED, int FIRST, size_t... I>
constexpr std::array<RowTileKernel<Dot>, sizeof...(I)> row_tile_kernels(std::index_sequence<I...>) {
  return {row_tile<Dot, FIRST + static_cast<int>(I), PACKED>...};
}

template <class Dot>
void run_units(const Product<Dot>& p, Range units) {
  constexpr int kFewestOfSeveral = (kMaxRows + 1) / 2;  // rows of a tile that has neighbours
  static constexpr auto kAlone = row_tile_kernels<Dot, false, 1>(std::make_index_sequence<kMaxRows>{});
  static constexpr auto kPacked = row_tile_kernels<Dot, true, kFewestOfSeveral>(
      std::make_index_sequence<kMaxRows - kFewestOfSeveral + 1>{});
  const RowTiles& tiles = p.x.tiles;
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    const int64_t panel = unit / tiles.count, tile = unit % tiles.count;
    const int rows = tiles.size(tile);
    (tiles.count == 1 ? kAlone[rows - 1] : kPacked[rows - kFewestOfSeveral])(p, panel, tile);
  }
}

}  // namespace polybatch
