// The inner kernel of slot_attention: up to kTiles.attention.rows query rows attend to one block of positions.
//
//   raw score       q . k, d = 0, 1, ... in groups of Dot::kPack, one accumulator; softcap: tanh(raw * scale / softcap)
//   score           raw * (scale * log2 e), or raw * (softcap * log2 e)
//   weight          2^(score - maximum), the difference in one fused step; the maximum is that of the row so far
//   sum             sum * c + weights, added by vectors of 16 positions in ascending order; c = 2^(old - new maximum)
//   out             out * c, then out += weight . v for ascending positions in groups of Dot::kPack (weights rounded to
//                   bf16 in bf16 mode), one accumulator
// Masked positions get weight 0 by selection; values of positions past the last that a tile sees are not read.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "attention_call.h"
#include "attention_plan.h"
#include "softmax_state.h"
#include "tile.h"

namespace polybatch {

// One query row: a head of a token.
struct QueryRow {
  int64_t token, head, position;
};

// The rows of an item, and where the K and V of its sequence and head begin.
template <class Dot>
struct AttentionRows {
  using Element = typename Dot::Element;
  const QueryRow* rows;
  int64_t count;
  const Element* queries;  // [count][query_width]
  const Element* k;
  const Element* v;
  float* scores;           // [kTiles.attention.rows][kBlock]
  Element* weights;        // [kTiles.attention.rows][kBlock]
};

// K and V to bring nearer while a block is worked on: a block of the same head, or of the next item.
struct NextBlock {
  const char *k, *v;
};

template <class Dot, int ROWS, bool PREFETCH>
class AttentionTile {
 public:
  using Element = typename Dot::Element;

  static void attend(const AttentionCall<Dot>& call, const AttentionRows<Dot>& on, SoftmaxState& state, int64_t row,
                     int64_t block, NextBlock next) {
    AttentionTile(call, on, state, row, block, next).attend();
  }

 private:
  static constexpr int kPack = Dot::kPack;
  static constexpr int kBlockVectors = kBlock / kLanes;
  static constexpr int kVectors = kTiles.attention.vectors;
  static constexpr bool kBlockInRegisters = kVectors == kBlockVectors;

  AttentionTile(const AttentionCall<Dot>& call, const AttentionRows<Dot>& on, SoftmaxState& state, int64_t row,
                int64_t block, NextBlock next)
      : call_(call), on_(on), state_(state), row_(row), base_(block * kBlock), at_(call.layout.block_offset(block)),
        next_(next),
        cap_(call.args.softcap > 0 ? call.args.scale / call.args.softcap : 0.0f),
        scale_((cap_ != 0 ? call.args.softcap : call.args.scale) * kLog2E) {}

  POLYBATCH_INLINE void attend() {
    int64_t nearest = on_.rows[row_].position, farthest = nearest;
    for (int i = 1; i < ROWS; ++i) {
      nearest = std::min(nearest, on_.rows[row_ + i].position);
      farthest = std::max(farthest, on_.rows[row_ + i].position);
    }
    if (kBlockInRegisters && nearest >= base_ + kBlock - 1 && first_seen(call_.args, farthest) <= base_) {
      low_ = 0, high_ = kBlock;
      whole_block();
    } else {
      find_what_rows_see();
      if (low_ >= high_) return;
      part_of_block();
    }
    add_values();
  }

  void find_what_rows_see() {
    low_ = kBlock, high_ = 0;
    for (int i = 0; i < ROWS; ++i) {
      const int64_t p = on_.rows[row_ + i].position;
      first_[i] = static_cast<int>(std::clamp<int64_t>(first_seen(call_.args, p) - base_, 0, kBlock));
      last_[i] = static_cast<int>(std::clamp<int64_t>(p + 1 - base_, 0, kBlock));
      if (first_[i] < last_[i]) low_ = std::min(low_, first_[i]), high_ = std::max(high_, last_[i]);
    }
  }

  // All rows see all of the block: scores stay in registers.
  POLYBATCH_INLINE void whole_block() {
    F16 raw[ROWS][kVectors];
    score(raw, 0);
    soften(0, kVectors, [&](int i, int j) POLYBATCH_INLINE_LAMBDA { return raw[i][j]; });
  }
  POLYBATCH_INLINE void part_of_block() {
    const int begin = low_ / kLanes, end = (high_ + kLanes - 1) / kLanes;
    int vector = begin;
    for (; vector + kVectors <= end; vector += kVectors) score_into_memory<kVectors>(vector);
    if constexpr (kVectors > 1)
      for (; vector < end; ++vector) score_into_memory<1>(vector);
    soften(begin, end, [&](int i, int j) POLYBATCH_INLINE_LAMBDA {
      const F16 raw = load(on_.scores + i * kBlock + j * kLanes);
      return keep_lanes(raw, std::clamp(first_[i] - j * kLanes, 0, kLanes), std::clamp(last_[i] - j * kLanes, 0, kLanes),
                        broadcast(kMinusInfinity));
    });
  }

  // Raw scores against VECTORS groups of 16 positions.
  template <int VECTORS>
  POLYBATCH_INLINE void score(F16 (&raw)[ROWS][VECTORS], int vector) const {
    const CacheLayout<Dot>& layout = call_.layout;
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) raw[i][j] = zero();
    const int64_t width = call_.query_width();
    const RowsInPlace<Dot, ROWS> queries(on_.queries + row_ * width, width);
    const Columns<Dot> keys{on_.k + at_ + vector * layout.k_group(), layout.k_step(), layout.k_group()};
    accumulate_tile<Dot>(raw, queries, keys, layout.head_steps,
                         ahead<VECTORS>(next_.k + vector * layout.head_steps * kCacheLine));
    if (cap_ == 0) return;
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) raw[i][j] = tanh(raw[i][j] * broadcast(cap_));
  }
  template <int VECTORS>
  POLYBATCH_INLINE void score_into_memory(int vector) const {
    F16 raw[ROWS][VECTORS];
    score(raw, vector);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) store(on_.scores + i * kBlock + (vector + j) * kLanes, raw[i][j]);
  }

  // Raw scores (vectors begin .. end - 1 of each row) become weights, and the state's maxima and sums take them in.
  template <class RawScore>
  POLYBATCH_INLINE void soften(int begin, int end, RawScore raw) {
    alignas(64) float highest[kLanes] = {}, shift[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      F16 high = raw(i, begin);
#pragma GCC unroll 4
      for (int j = begin + 1; j < end; ++j) high = max(high, raw(i, j));
      highest[i] = reduce_max(high);
    }
    // One lane a row; a row that has seen nothing yet has maximum -inf and must not subtract it from itself.
    const F16 before = load_first(state_.maximum + row_, ROWS);
    const F16 here = load(highest) * broadcast(scale_);
    const F16 after = max(before, here);  // in this order a NaN stays NaN
    const F16 subtracted = select_less(broadcast(kMinusInfinity), after, after, zero());
    store_first(state_.maximum + row_, after, ROWS);
    store(shift, zero() - subtracted);
    store(scale_of_, exp2(before - subtracted));
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      F16 sum = zero();
#pragma GCC unroll 4
      for (int j = begin; j < end; ++j) {
        const F16 weight = exp2(fma(raw(i, j), broadcast(scale_), broadcast(shift[i])));
        sum = sum + weight;
        store(on_.weights + i * kBlock + j * kLanes, weight);
      }
      float* all = state_.sum + (row_ + i) * kLanes;
      store(all, fma(load(all), broadcast(scale_of_[i]), sum));
    }
  }

  POLYBATCH_INLINE void add_values() const {
    const int64_t value_dim = call_.args.value_dim;
    constexpr std::integral_constant<int, kVectors> kAll;
    constexpr std::integral_constant<int, 1> kOne;
    int64_t d = 0;
    for (; d + kVectors * kLanes <= value_dim; d += kVectors * kLanes) add_values(d, kAll, WholeVectors{});
    if constexpr (kVectors > 1)
      for (; d + kLanes <= value_dim; d += kLanes) add_values(d, kOne, WholeVectors{});
    if (d < value_dim) add_values(d, kOne, FirstLanes{static_cast<int>(value_dim - d)});
  }
  template <int VECTORS, class Loader>
  POLYBATCH_INLINE void add_values(int64_t d, std::integral_constant<int, VECTORS>, Loader loader) const {
    const CacheLayout<Dot>& layout = call_.layout;
    const int begin = low_ / kPack * kPack;
    const int steps = (high_ - begin) / kPack;
    float* out = state_.out + row_ * state_.width + d;
    F16 acc[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j)
        acc[i][j] = load(out + i * state_.width + j * kLanes) * broadcast(scale_of_[i]);
    const Element* weights = on_.weights + begin;
    const Columns<Dot> values{on_.v + at_ + begin / kPack * layout.v_step() + d * kPack, layout.v_step(),
                              kLanes * kPack};
    accumulate_tile<Dot>(acc, RowsInPlace<Dot, ROWS>(weights, kBlock), values, steps,
                         ahead<VECTORS>(next_.v + d / kLanes * (kBlock / kPack) * kCacheLine), loader);
    if ((high_ - begin) % kPack != 0) {
      const Columns<Dot> last{values.first + steps * values.step, values.step, values.vector};
      accumulate_half_step<Dot>(acc, RowsInPlace<Dot, ROWS>(weights + steps * kPack, kBlock), last, loader);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) store(out + i * state_.width + j * kLanes, acc[i][j]);
  }

  template <int LINES>
  POLYBATCH_INLINE static auto ahead(const char* p) {
    if constexpr (PREFETCH) {
      return PrefetchLines<LINES>{p};
    } else {
      return NoPrefetch{};
    }
  }

  const AttentionCall<Dot>& call_;
  const AttentionRows<Dot>& on_;
  SoftmaxState& state_;
  const int64_t row_, base_, at_;
  const NextBlock next_;
  const float cap_, scale_;
  int low_, high_;                      // what some row of the tile sees of the block
  int first_[ROWS], last_[ROWS];        // what each row sees, in a block that some row does not see all of
  alignas(64) float scale_of_[kLanes];  // of the state before this block
};

template <class Dot>
using AttentionTileKernel = void (*)(const AttentionCall<Dot>&, const AttentionRows<Dot>&, SoftmaxState&, int64_t row,
                                     int64_t block, NextBlock next);

// Entry i is the kernel for i + 1 rows.
template <class Dot, bool PREFETCH, size_t... I>
constexpr std::array<AttentionTileKernel<Dot>, sizeof...(I)> attention_tile_kernels(std::index_sequence<I...>) {
  return {&AttentionTile<Dot, static_cast<int>(I) + 1, PREFETCH>::attend...};
}

}  // namespace polybatch
