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
// A panel is read from memory once: the first row tile streams it in, the others find it in the L2 cache.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "api.h"
#include "parallel.h"
#include "tile.h"

namespace polybatch {

inline constexpr int kPanel = 32;
inline constexpr int kPanelVectors = kPanel / kLanes;
inline constexpr int kMaxRows = kTile.linear_rows;
inline constexpr int kVectors = kTile.linear_vectors;
inline constexpr ptrdiff_t kStreamAhead = 2048;  // bytes; several memory latencies at the speed of one core

template <class Dot>
struct Problem {
  using Element = typename Dot::Element;
  const Element* x;  // rows padded to whole groups
  int64_t x_row_stride;
  const Element* weight;
  const float* bias;
  Element* y;
  const int64_t* y_row;  // row i goes to row y_row[i] of y; null: to row i
  int64_t rows, steps, out_features;
};

template <class Dot>
using RowTileKernel = void (*)(const Problem<Dot>&, int64_t panel, int64_t row, bool streams);

template <class Dot, int ROWS>
void row_tile(const Problem<Dot>& p, int64_t panel, int64_t row, bool streams) {
  constexpr ptrdiff_t kStep = kPanel * Dot::kPack;
  const int64_t column = panel * kPanel;
  for (int first = 0; first < kPanelVectors; first += kVectors) {
    F16 acc[ROWS][kVectors];
    int lanes[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) {
      const int64_t n = column + (first + j) * kLanes;
      lanes[j] = static_cast<int>(std::clamp<int64_t>(p.out_features - n, 0, kLanes));
      const F16 start = p.bias ? load_first(p.bias + n, lanes[j]) : zero();
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; ++i) acc[i][j] = start;
    }
    const TileOperands<Dot> operands{p.x + row * p.x_row_stride,
                                     p.x_row_stride,
                                     p.weight + panel * p.steps * kStep + first * kLanes * Dot::kPack,
                                     kStep,
                                     kLanes * Dot::kPack,
                                     streams ? kStreamAhead : 0};
    accumulate_tile(acc, operands, static_cast<int>(p.steps));
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        const int64_t to = p.y_row ? p.y_row[row + i] : row + i;
        typename Dot::Element* y = p.y + to * p.out_features + column + (first + j) * kLanes;
        if (lanes[j] == kLanes) {
          store(y, acc[i][j]);
        } else if (lanes[j] > 0) {
          store_first(y, acc[i][j], lanes[j]);
        }
      }
    }
  }
}

template <class Dot, size_t... I>
constexpr std::array<RowTileKernel<Dot>, sizeof...(I)> row_tiles(std::index_sequence<I...>) {
  return {row_tile<Dot, static_cast<int>(I) + 1>...};
}
template <class Dot>
inline constexpr auto kRowTiles = row_tiles<Dot>(std::make_index_sequence<kMaxRows>{});

template <class Dot>
void run_panels(const Problem<Dot>& p, Range panels) {
  const RowTiles tiles(static_cast<int>(p.rows), kMaxRows);
  for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
    int64_t row = 0;
    for (int tile = 0; tile < tiles.count; ++tile) {
      const int size = tiles.size(tile);
      kRowTiles<Dot>[size - 1](p, panel, row, tile == 0);
      row += size;
    }
  }
}

// Copies a row of x and pads it with zeros to whole groups.
template <class Dot>
void copy_padded(const typename Dot::Element* x, int64_t in_features, int64_t padded, typename Dot::Element* to) {
  std::copy_n(x, in_features, to);
  std::fill(to + in_features, to + padded, typename Dot::Element{});
}

inline int64_t panels_of(int64_t out_features) { return (out_features + kPanel - 1) / kPanel; }

}  // namespace polybatch
