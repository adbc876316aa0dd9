// The left operand of a linear, cut into row tiles and laid out as the panel kernels read it.
//
// One tile: the rows are read where they are. More tiles: each is packed once, [steps][kPackedPitch][kPack], and read by every panel.
#pragma once

#include <algorithm>
#include <cstring>

#include "parallel.h"
#include "tile.h"

namespace polybatch {

// Rows are cut into the fewest tiles, as equal as possible: one tile of up to `max_alone` rows, else tiles of up to
// `max_rows`; 8 rows are 4 + 4, not 6 + 2.
struct RowTiles {
  int64_t count, rows, longer;  // the first `longer` tiles have rows + 1

  RowTiles(int64_t total, int64_t max_rows, int64_t max_alone, int64_t fewest_of_several = 1)
      : count(total <= max_alone ? (total > 0) : std::max(fewest_of_several, (total + max_rows - 1) / max_rows)), rows(count ? total / count : 0), longer(count ? total % count : 0) {}
  int size(int64_t tile) const { return static_cast<int>(rows + (tile < longer ? 1 : 0)); }
  int64_t begin(int64_t tile) const { return tile * rows + std::min(tile, longer); }
};

// A linear of several tiles has at least so many: then a prefetch a step in each is enough to bring in a strip of panels.
inline constexpr int kFewestTiles = kTiles.packed.vectors > 2 ? 4 : 2;

// Rows of a matrix in some order: row i is row order[i] of `first`, or row i where there is no order.
template <class Element>
struct OrderedRows {
  const Element* first;
  int64_t stride;
  const int64_t* order;
  const Element* operator[](int64_t i) const { return first + (order ? order[i] : i) * stride; }
};

// Copies `features` elements and adds zeros up to whole groups.
template <class Dot>
void copy_padded(const typename Dot::Element* row, int64_t features, typename Dot::Element* to) {
  std::copy_n(row, features, to);
  std::fill(to + features, to + (features + Dot::kPack - 1) / Dot::kPack * Dot::kPack, typename Dot::Element{});
}

template <class Dot>
void pack_tile(const OrderedRows<typename Dot::Element>& rows, int64_t begin, int count, int64_t features,
               typename Dot::Element* to) {
  static_assert(sizeof(typename Dot::Element) * Dot::kPack == sizeof(uint32_t));
  const int64_t whole = features / Dot::kPack;
  const uint32_t* at[kPackedPitch];
  for (int i = 0; i < kPackedPitch; ++i)  // lanes past the tile repeat its last row and are not used
    at[i] = reinterpret_cast<const uint32_t*>(rows[begin + std::min(i, count - 1)]);
  uint32_t* groups = reinterpret_cast<uint32_t*>(to);
  int64_t s = 0;
  for (; s + kLanes <= whole; s += kLanes) {
    transpose_groups(at, groups + s * kPackedPitch);
    for (int i = 0; i < kPackedPitch; ++i) at[i] += kLanes;
  }
  for (int i = 0; i < count; ++i) {
    for (int64_t t = s; t < whole; ++t) std::memcpy(groups + t * kPackedPitch + i, at[i] + (t - s), sizeof(uint32_t));
    if (whole * Dot::kPack < features)
      copy_padded<Dot>(rows[begin + i] + whole * Dot::kPack, features - whole * Dot::kPack,
                       to + (whole * kPackedPitch + i) * Dot::kPack);
  }
}

// The rows of one product, ready to be read tile by tile.
template <class Dot>
class StagedRows {
 public:
  using Element = typename Dot::Element;

  StagedRows(const OrderedRows<Element>& rows, int64_t count, int64_t features)
      : tiles(count, kTiles.packed.rows, kTiles.alone.rows, kFewestTiles), steps((features + Dot::kPack - 1) / Dot::kPack), rows_(rows), features_(features) {}

  // Elements that `stage` writes; 0 = nothing to stage.
  int64_t staged_elements() const {
    if (tiles.count > 1) return tiles.count * tile_elements();
    const bool in_place = rows_.order == nullptr && features_ % Dot::kPack == 0;
    return in_place ? 0 : tiles.rows * steps * Dot::kPack;
  }
  void stage_into(Element* memory) { staged_ = memory; }
  // A thread's part of the work; all threads meet before the tiles are read.
  void stage(int thread, int team) const {
    if (staged_ == nullptr) return;
    const Range mine = share_of(tiles.count > 1 ? tiles.count : tiles.rows, thread, team);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      if (tiles.count > 1) {
        pack_tile<Dot>(rows_, tiles.begin(i), tiles.size(i), features_, staged_ + i * tile_elements());
      } else {
        copy_padded<Dot>(rows_[i], features_, staged_ + i * steps * Dot::kPack);
      }
    }
  }

  PackedRows<Dot> packed(int64_t tile) const { return PackedRows<Dot>(staged_ + tile * tile_elements()); }
  template <int ROWS>
  RowsInPlace<Dot, ROWS> in_place() const {
    return staged_ ? RowsInPlace<Dot, ROWS>(staged_, steps * Dot::kPack) : RowsInPlace<Dot, ROWS>(rows_.first, rows_.stride);
  }

  const RowTiles tiles;
  const int64_t steps;

 private:
  int64_t tile_elements() const { return steps * kPackedPitch * Dot::kPack; }
  OrderedRows<Element> rows_;
  int64_t features_;
  Element* staged_ = nullptr;
};

}  // namespace polybatch
