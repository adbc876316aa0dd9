// Where the K and V of one position lie inside one slot. cache_packing.py holds the same layout for tensors.
//
// A slot is a row of chunks of kChunk positions (of one chunk, of whole blocks, where ctx_len is shorter), and a chunk holds
// its positions of every layer: a sequence takes memory as it grows, in large pieces. A layer's part of a chunk is
//   [kv_heads][blocks of kBlock positions][K of the block, then V of the block]
// so that attention reads each head from front to back. With P = Dot::kPack (1 for fp32, 2 for bf16):
//   K of a block  [kBlock / 16][ceil(D / P)][16][P]   16 positions side by side: one step of q . K needs no horizontal adds
//   V of a block  [kBlock / P][DV][P]                 positions in groups of P: one step of p . V adds P positions
#pragma once

#include <algorithm>

#include "tile.h"

namespace polybatch {

inline constexpr int kBlock = 64;   // positions of one step of the running softmax
inline constexpr int kChunk = 256;  // positions of one running softmax
inline constexpr int kChunkBlocks = kChunk / kBlock;

template <class Dot>
struct CacheLayout {
  static constexpr int kPack = Dot::kPack;
  using Element = typename Dot::Element;
  int64_t chunks, blocks, chunk_elements;  // blocks of a chunk
  int64_t head_steps, value_dim;

  CacheLayout(int64_t ctx_len, int64_t slot_elements, int64_t head_dim, int64_t value_dim)
      : chunks((ctx_len + kChunk - 1) / kChunk),
        blocks(std::min<int64_t>(kChunkBlocks, (ctx_len + kBlock - 1) / kBlock)),
        chunk_elements(slot_elements / std::max<int64_t>(chunks, 1)),
        head_steps((head_dim + kPack - 1) / kPack),
        value_dim(value_dim) {}

  int64_t k_elements() const { return kBlock * head_steps * kPack; }  // of a block
  int64_t block_elements() const { return k_elements() + kBlock * value_dim; }
  int64_t head_elements() const { return blocks * block_elements(); }  // in a chunk
  // From a head's first K (or V) to the first K (or V) of a block.
  int64_t block_offset(int64_t block) const {
    return block / kChunkBlocks * chunk_elements + block % kChunkBlocks * block_elements();
  }
  // Elements from one group of 16 positions to the next.
  int64_t k_group() const { return head_steps * kLanes * kPack; }
  int64_t k_step() const { return kLanes * kPack; }
  int64_t v_step() const { return value_dim * kPack; }

  void write_k(Element* head, int64_t position, const Element* k, int64_t head_dim) const {
    const int64_t in_block = position % kBlock;
    Element* to = head + block_offset(position / kBlock) + in_block / kLanes * k_group() + in_block % kLanes * kPack;
    for (int64_t step = 0; step < head_steps; ++step, to += k_step()) {
      for (int e = 0; e < kPack; ++e) {
        const int64_t d = step * kPack + e;
        to[e] = d < head_dim ? k[d] : Element{};
      }
    }
  }
  void write_v(Element* head, int64_t position, const Element* v) const {
    const int64_t in_block = position % kBlock;
    Element* to = head + block_offset(position / kBlock) + in_block / kPack * v_step() + in_block % kPack;
    for (int64_t d = 0; d < value_dim; ++d) to[d * kPack] = v[d];
  }
};

}  // namespace polybatch
