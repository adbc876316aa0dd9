// packed_linear: y[M, N] = x[M, K] @ W[N, K]^T (+ bias), fp32 or bf16 with fp32 accumulation.
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
#include <algorithm>
#include <array>
#include <utility>

#include "api.h"
#include "parallel.h"
#include "tile.h"

namespace polybatch {
namespace {

constexpr int kPanel = 32;
constexpr int kPanelVectors = kPanel / kLanes;
constexpr int kMaxRows = kTile.linear_rows;
constexpr int kVectors = kTile.linear_vectors;
constexpr ptrdiff_t kStreamAhead = 2048;  // bytes; several memory latencies at the speed of one core

template <class Dot>
struct Problem {
  using Element = typename Dot::Element;
  const Element* x;  // rows padded to whole groups
  int64_t x_row_stride;
  const Element* weight;
  const float* bias;
  Element* y;
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
        typename Dot::Element* y = p.y + (row + i) * p.out_features + column + (first + j) * kLanes;
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
constexpr auto kRowTiles = row_tiles<Dot>(std::make_index_sequence<kMaxRows>{});

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

template <class Dot>
void linear(const PolybatchLinear& call) {
  using Element = typename Dot::Element;
  Problem<Dot> p{static_cast<const Element*>(call.x),
                 call.x_row_stride,
                 static_cast<const Element*>(call.weight),
                 call.bias,
                 static_cast<Element*>(call.y),
                 call.rows,
                 (call.in_features + Dot::kPack - 1) / Dot::kPack,
                 call.out_features};
  if (call.in_features % Dot::kPack != 0) {  // the last group of a row would read its neighbour
    static thread_local Scratch scratch;
    const int64_t padded = p.steps * Dot::kPack;
    Element* copy = scratch.get<Element>(p.rows * padded);
    for (int64_t row = 0; row < p.rows; ++row) {
      std::copy_n(p.x + row * call.x_row_stride, call.in_features, copy + row * padded);
      std::fill(copy + row * padded + call.in_features, copy + (row + 1) * padded, Element{});
    }
    p.x = copy;
    p.x_row_stride = padded;
  }
  const int64_t panels = (p.out_features + kPanel - 1) / kPanel;
  const int threads = threads_for(panels, p.rows * call.in_features * p.out_features);
  if (threads == 1) {
    run_panels(p, {0, panels});
    return;
  }
#pragma omp parallel num_threads(threads)
  run_panels(p, share_of(panels, omp_get_thread_num(), omp_get_num_threads()));
}

}  // namespace
}  // namespace polybatch

void polybatch_packed_linear(const PolybatchLinear* call) {
  if (call->rows == 0 || call->out_features == 0) return;
  if (call->element == kPolybatchBFloat16) {
    polybatch::linear<polybatch::DotBF16>(*call);
  } else {
    polybatch::linear<polybatch::DotF32>(*call);
  }
}
