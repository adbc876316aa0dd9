// Where the K and V of one position lie inside one slot. packing.py holds the same layout for tensors.
//
// A layer's K are kv_heads stretches of k_head_elements, its V kv_heads stretches of v_head_elements. With P = Dot::kPack
// (1 for fp32, 2 for bf16) and ctx = ctx_len rounded up to whole position groups of 16:
//   K of a head  [ctx / 16][ceil(D / P)][16][P]   16 positions side by side: one step of q . K needs no horizontal adds
//   V of a head  [ctx / P][DV][P]                 positions in groups of P: one step of p . V adds P positions
#pragma once

#include "tile.h"

namespace polybatch {

template <class Dot>
struct CacheLayout {
  static constexpr int kPack = Dot::kPack;
  int64_t ctx, head_steps, value_dim;

  CacheLayout(int64_t ctx_len, int64_t head_dim, int64_t value_dim)
      : ctx((ctx_len + kLanes - 1) / kLanes * kLanes), head_steps((head_dim + kPack - 1) / kPack), value_dim(value_dim) {}

  int64_t k_head_elements() const { return ctx * head_steps * kPack; }
  int64_t v_head_elements() const { return ctx * value_dim; }
  // Elements from one group of 16 positions to the next.
  int64_t k_group() const { return head_steps * kLanes * kPack; }
  int64_t k_step() const { return kLanes * kPack; }
  int64_t v_step() const { return value_dim * kPack; }

  using Element = typename Dot::Element;
  void write_k(Element* head, int64_t position, const Element* k, int64_t head_dim) const {
    Element* to = head + position / kLanes * k_group() + position % kLanes * kPack;
    for (int64_t step = 0; step < head_steps; ++step, to += k_step()) {
      for (int e = 0; e < kPack; ++e) {
        const int64_t d = step * kPack + e;
        to[e] = d < head_dim ? k[d] : Element{};
      }
    }
  }
  void write_v(Element* head, int64_t position, const Element* v) const {
    Element* to = head + position / kPack * v_step() + position % kPack;
    for (int64_t d = 0; d < value_dim; ++d) to[d * kPack] = v[d];
  }
};

}  // namespace polybatch
