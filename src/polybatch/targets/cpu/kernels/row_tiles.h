// The left operand of a linear, cut into row tiles and laid out as the panel kernels read it. Sources: row_sources.h.
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
      : count(total <= max_alone ? (total > 0) : std::max(fewest_of_several, (total + max_rows - 1) / max_rows)),
        rows(count ? total / count : 0),
        longer(count ? total % count : 0) {}
  int size(int64_t tile) const { return static_cast<int>(rows + (tile < longer ? 1 : 0)); }
  int64_t begin(int64_t tile) const { return tile * rows + std::min(tile, longer); }  // begin(count) = all rows
};

// A linear of several tiles has at least so many: then a prefetch a step in each is enough to bring in a strip of panels.
inline constexpr int kFewestTiles = kTiles.packed.vectors > 2 ? 4 : 2;

// Copies `features` elements and adds zeros up to whole groups.
template <class Dot>
void copy_padded(const typename Dot::Element* row, int64_t features, typename Dot::Element* to) {
  std::copy_n(row, features, to);
  std::fill(to + features, to + (features + Dot::kPack - 1) / Dot::kPack * Dot::kPack, typename Dot::Element{});
}

// Packs rows at[0 .. count - 1] as a tile.
template <class Dot>
void pack_tile(const typename Dot::Element* const* rows, int count, int64_t features, typename Dot::Element* to) {
  static_assert(sizeof(typename Dot::Element) * Dot::kPack == sizeof(uint32_t));
  const int64_t whole = features / Dot::kPack;
  const uint32_t* at[kPackedPitch];
  for (int i = 0; i < kPackedPitch; ++i)  // lanes past the tile repeat its last row and are not used
    at[i] = reinterpret_cast<const uint32_t*>(rows[std::min(i, count - 1)]);
  uint32_t* groups = reinterpret_cast<uint32_t*>(to);
  int64_t s = 0;
  for (; s + kLanes <= whole; s += kLanes) {
    transpose_groups(at, groups + s * kPackedPitch);
    for (int i = 0; i < kPackedPitch; ++i) at[i] += kLanes;
  }
  for (int i = 0; i < count; ++i) {
    for (int64_t t = s; t < whole; ++t) std::memcpy(groups + t * kPackedPitch + i, at[i] + (t - s), sizeof(uint32_t));
    if (whole * Dot::kPack < features)
      copy_padded<Dot>(rows[i] + whole * Dot::kPack, features - whole * Dot::kPack,
                       to + (whole * kPackedPitch + i) * Dot::kPack);
  }
}

// The rows of one product, ready to be read tile by tile. Source gives them, one by one:
//   in_place()          whether source[i] is there from the start
//   kParts              rows of a tile that each row of the product takes
//   source[i]           row i of the tiles, once source.prepare(i / kParts) has been called
//   source.stride()     elements from one row to the next; 0 = they do not follow one another
//   source.features()   elements of a row
template <class Dot, class Source>
class StagedRows {
 public:
  using Element = typename Dot::Element;
  static constexpr int kParts = Source::kParts;

  StagedRows(const Source& source, int64_t count)
      : tiles(count, kTiles.packed.rows / kParts, kTiles.alone.rows / kParts, kFewestTiles),
        steps((source.features() + Dot::kPack - 1) / Dot::kPack),
        source_(source),
        copies_(tiles.count > 1 || source.stride() == 0 || source.features() % Dot::kPack != 0) {}

  const Source& source() const { return source_; }
  // Elements that `stage` writes beside what the source keeps.
  int64_t staged_elements() const {
    if (!copies_) return 0;
    return tiles.count > 1 ? tiles.count * tile_elements() : tiles.rows * kParts * steps * Dot::kPack;
  }
  void stage_into(Element* memory) { staged_ = memory; }
  // Elements that have to be moved before tiles can be read; 0 = none.
  int64_t staging_work() const { return copies_ || !source_.in_place() ? rows() * source_.features() : 0; }
  // A thread's part of the work; all threads meet before the tiles are read.
  void stage(int thread, int team) const {
    const Range mine = share_of(tiles.count > 1 ? tiles.count : tiles.rows, thread, team);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      if (tiles.count > 1) {
        pack(i);
      } else {
        source_.prepare(i);
        for (int64_t row = i * kParts; copies_ && row < (i + 1) * kParts; ++row)
          copy_padded<Dot>(source_[row], source_.features(), staged_ + row * steps * Dot::kPack);
      }
    }
  }

  PackedRows<Dot> packed(int64_t tile) const { return PackedRows<Dot>(staged_ + tile * tile_elements()); }
  template <int ROWS>
  RowsInPlace<Dot, ROWS> in_place() const {
    return copies_ ? RowsInPlace<Dot, ROWS>(staged_, steps * Dot::kPack)
                   : RowsInPlace<Dot, ROWS>(source_[0], source_.stride());
  }

  const RowTiles tiles;
  const int64_t steps;

 private:
  int64_t rows() const { return tiles.count ? tiles.begin(tiles.count) : 0; }
  int64_t tile_elements() const { return steps * kPackedPitch * Dot::kPack; }
  void pack(int64_t tile) const {
    const Element* rows[kPackedPitch];
    const int count = tiles.size(tile) * kParts;
    for (int i = 0; i < count; ++i) {
      const int64_t row = tiles.begin(tile) * kParts + i;
      if (i % kParts == 0) source_.prepare(row / kParts);
      rows[i] = source_[row];
    }
    pack_tile<Dot>(rows, count, source_.features(), staged_ + tile * tile_elements());
  }

  Source source_;
  bool copies_;
  Element* staged_ = nullptr;
};

}  // namespace polybatch
