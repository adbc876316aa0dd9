// How the work of a slot_attention call is cut: into items, which threads take in contiguous ranges of equal cost.
//
// A sequence is a row of the call, or in a call of one token per row all neighbouring rows of one slot.
// Enough sequences and K/V heads: an item is one of these pairs, whole. Too few for the threads: a pair of few rows is cut
// by chunks of positions, whose states are merged left to right by whichever thread finishes the last one; a pair of many
// rows (a prefill chunk) is cut by rows. The cut never changes a row's arithmetic.
#pragma once

#include <algorithm>
#include <vector>

#include "api.h"
#include "attention_call.h"

namespace polybatch {

inline constexpr int kRowBlock = 60;  // query rows whose state stays in the L1 cache beside a block of K and V

struct Item {
  int64_t batch, tokens, kv_head;  // the first row of the sequence, and its tokens from there on
  int64_t row_begin, row_end;      // of the live rows of this sequence and K/V head
  int64_t first, end;              // positions that some row of the sequence sees
  int64_t chunk_begin, chunk_end;
  int64_t split = -1;              // index of the pair among those cut by chunks, else -1
  int64_t cost = 0;

  int64_t first_block() const { return std::max(first, chunk_begin * kChunk) / kBlock; }
  int64_t end_block() const { return (std::min(end, chunk_end * kChunk) + kBlock - 1) / kBlock; }
};

// A sequence and K/V head whose chunks are items of their own, `items` of them from `first_item` on.
struct Split {
  int64_t first_item, items;
  int unfinished;
};

class AttentionPlan {
 public:
  std::vector<Item> items;
  std::vector<Split> splits;
  bool rows_are_cut = false;  // several items read what each token writes: all is written first

  void make(const PolybatchSlotAttention& args, int threads) {
    items.clear(), splits.clear(), sequences_.clear();
    rows_are_cut = false;
    int64_t pairs = 0;
    for (int64_t b = 0; b < args.batch; b += args.tokens == 1 ? sequences_.back().tokens : 1) {
      sequences_.push_back(sequence(args, b, args.tokens == 1 ? rows_of_one_slot(args, b) : args.tokens));
      if (sequences_.back().rows > 0) pairs += args.kv_heads;
    }
    constexpr int64_t kItemsPerThread = 4;
    const bool cut = threads > 1 && pairs < kItemsPerThread * threads;
    for (const Sequence& q : sequences_)
      for (int64_t h = 0; h < args.kv_heads; ++h) {
        const Item whole{q.batch, q.tokens, h, 0, q.rows, q.first, q.end, q.first / kChunk, (q.end + kChunk - 1) / kChunk};
        if (cut && q.rows > kRowBlock) {
          add_row_blocks(whole);
        } else if (cut && whole.chunk_end - whole.chunk_begin > 1) {
          add_chunks(whole);
        } else {
          add(whole);
        }
      }
  }

  // A thread's share of the items.
  Range share(int thread, int threads) const { return {first_at(thread, threads), first_at(thread + 1, threads)}; }

 private:
  struct Sequence {
    int64_t batch, tokens;
    int64_t rows, first, end;  // as of an item
  };

  static int64_t rows_of_one_slot(const PolybatchSlotAttention& args, int64_t b) {
    int64_t rows = 1;
    while (b + rows < args.batch && slot_of(args, b + rows) == slot_of(args, b)) ++rows;
    return rows;
  }

  static Sequence sequence(const PolybatchSlotAttention& args, int64_t b, int64_t tokens) {
    int64_t live = 0, first = args.ctx_len, end = 0;
    for (int64_t s = 0; s < tokens; ++s) {
      const int64_t p = position_of(args, b, s);
      if (p < 0) continue;
      ++live;
      first = std::min(first, first_seen(args, p));
      end = std::max(end, p + 1);
    }
    return {b, tokens, live * (args.heads / args.kv_heads), live ? first : 0, end};
  }

  void add(Item item) {
    constexpr int64_t kReadCost = 4;  // what reading a position costs, in rows that use it
    const int64_t seen = std::min(item.end, item.chunk_end * kChunk) - std::max(item.first, item.chunk_begin * kChunk);
    item.cost = 1 + seen * (item.row_end - item.row_begin + kReadCost);
    cost_ = item.cost + (items.empty() ? 0 : cost_);
    items.push_back(item);
  }
  void add_row_blocks(const Item& whole) {
    rows_are_cut = true;
    for (int64_t row = 0; row < whole.row_end; row += kRowBlock) {
      Item item = whole;
      item.row_begin = row, item.row_end = std::min(whole.row_end, row + kRowBlock);
      add(item);
    }
  }
  void add_chunks(const Item& whole) {
    const int64_t chunks = whole.chunk_end - whole.chunk_begin;
    const int64_t split = static_cast<int64_t>(splits.size());
    splits.push_back({static_cast<int64_t>(items.size()), chunks, static_cast<int>(chunks)});
    for (int64_t chunk = whole.chunk_begin; chunk < whole.chunk_end; ++chunk) {
      Item item = whole;
      item.chunk_begin = chunk, item.chunk_end = chunk + 1, item.split = split;
      add(item);
    }
  }
  int64_t first_at(int thread, int threads) const {
    const int64_t count = static_cast<int64_t>(items.size());
    if (thread == threads) return count;
    int64_t before = 0, i = 0;
    for (; i < count && (before + items[i].cost / 2) * threads < cost_ * thread; ++i) before += items[i].cost;
    return i;
  }

  std::vector<Sequence> sequences_;
  int64_t cost_ = 0;
};

}  // namespace polybatch
