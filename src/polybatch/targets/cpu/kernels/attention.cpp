// slot_attention: writes the new K and V rows of a step into the cache, in place, then lets each query row attend to the
// live positions of its own slot. Cache layout: cache_layout.h.
//
// A query at position p sees positions max(0, p - window + 1) .. p. Score = (q . k) * scale, then softcap * tanh(score /
// softcap) if asked, in fp32. A token with position -1 is padding: it writes nothing and its output is 0.
//
// Order of arithmetic for one output row, whatever the batch, tokens, tiles and threads:
//   positions go by blocks of kBlock aligned at 0, blocks by chunks of kChunk aligned at 0;
//   q . k           d = 0, 1, ... in groups of Dot::kPack, one accumulator
//   in a block      new maximum; sum = sum * c + p, p added by vectors of 16 positions in ascending order;
//                   out = out * c, then out += p . v for ascending positions in groups of Dot::kPack (p rounded to bf16
//                   in bf16 mode), one accumulator
//   chunks          each from an empty state, then merged left to right (softmax_state.h)
// Masked positions get p = 0 by selection, so a block (or a part of one) that a row does not see changes nothing in its
// state, and is skipped where no row of the tile sees it. Positions past the end of a tile's rows are not read as values.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "api.h"
#include "cache_layout.h"
#include "parallel.h"
#include "rotary.h"
#include "row_tiles.h"
#include "softmax_state.h"

namespace polybatch {
namespace {

constexpr int kBlock = 64;
constexpr int kBlockVectors = kBlock / kLanes;
constexpr int kChunk = 256;
constexpr int kRowBlock = 60;  // query rows whose state stays in the L1 cache beside a block of K and V
constexpr int kMaxRows = kTiles.attention.rows;
constexpr int kVectors = kTiles.attention.vectors;
constexpr int kItemsPerThread = 4;  // fewer independent items than this: split them further

// One query row: a head of a token.
struct Row {
  int64_t token, head, position;
};

// The part of the work that one thread does without talking to others.
struct Item {
  int64_t batch, kv_head;
  int64_t row_begin, row_end;      // of the live rows of this sequence and head
  int64_t chunk_begin, chunk_end;
  int64_t partial;                 // where its state goes when chunks are split, else -1
  int64_t cost;
};

// What a thread works in.
struct Workspace {
  Scratch queries, state, scores, weights;
  std::vector<Row> rows;
};

template <class Dot>
class SlotAttention {
 public:
  explicit SlotAttention(const PolybatchSlotAttention& call)
      : call_(call),
        layout_(call.ctx_len, call.head_dim, call.value_dim),
        group_(call.heads / call.kv_heads),
        width_((call.value_dim + kLanes - 1) / kLanes * kLanes) {}

  void run();

 private:
  using Element = typename Dot::Element;
  static constexpr int kPack = Dot::kPack;

  // The rows of an item and the stretches of cache they read.
  struct View {
    const Row* rows;
    int64_t count;
    const Element* queries;  // [count][head_steps * kPack]
    const Element* k;
    const Element* v;
    float* scores;           // [kMaxRows][kBlock]
    Element* weights;        // [kMaxRows][kBlock]
  };
  using TileKernel = void (SlotAttention::*)(const View&, SoftmaxState&, int64_t row, int64_t block) const;

  int64_t position(int64_t b, int64_t s) const {
    return call_.position_ids[b * call_.position_batch_stride + s * call_.position_token_stride];
  }
  Element* slot(int64_t b) const {
    return static_cast<Element*>(call_.cache) + call_.batch_index[b * call_.batch_index_stride] * call_.slot_stride;
  }
  Element* k_head(int64_t b, int64_t h) const { return slot(b) + call_.k_offset + h * layout_.k_head_elements(); }
  Element* v_head(int64_t b, int64_t h) const { return slot(b) + call_.v_offset + h * layout_.v_head_elements(); }
  int64_t first_seen(int64_t p) const { return call_.window > 0 ? std::max<int64_t>(0, p - call_.window + 1) : 0; }
  Element* out_row(int64_t b, int64_t s, int64_t head) const {
    return static_cast<Element*>(call_.out) + ((b * call_.tokens + s) * call_.heads + head) * call_.value_dim;
  }

  // q or k of one token and head, rotated into `out` if the call asks for it.
  void copy_head(const Element* x, int64_t b, int64_t s, Element* out) const {
    if (call_.rope_cos == nullptr) {
      std::copy_n(x, call_.head_dim, out);
      return;
    }
    const int64_t at = b * call_.rope_batch_stride + s * call_.rope_token_stride;
    rotate_head(x, call_.rope_cos + at, call_.rope_sin + at, call_.head_dim, out);
  }

  void plan(int threads, std::vector<Item>& items, int64_t& partial_states) const;
  void write_token(int64_t b, int64_t kv_head, int64_t s) const;
  void gather_rows(const Item& item, Workspace& work) const;
  View view_of(const Item& item, Workspace& work) const;
  void attend_chunk(const View& view, SoftmaxState& state, int64_t chunk) const;
  template <int ROWS>
  void attend_tile(const View& view, SoftmaxState& state, int64_t row, int64_t block) const;
  template <int ROWS, int VECTORS>
  void score_vectors(const View& view, int64_t row, int64_t group, float* scores) const;
  void finish(const Item& item, const View& view, const SoftmaxState& state) const;

  template <size_t... I>
  static constexpr std::array<TileKernel, sizeof...(I)> tile_kernels(std::index_sequence<I...>) {
    return {&SlotAttention::template attend_tile<static_cast<int>(I) + 1>...};
  }

  const PolybatchSlotAttention& call_;
  const CacheLayout<Dot> layout_;
  const int64_t group_;
  const int64_t width_;
};

// Also zeroes the output of a padding token.
template <class Dot>
void SlotAttention<Dot>::write_token(int64_t b, int64_t kv_head, int64_t s) const {
  const int64_t p = position(b, s);
  if (p < 0) {
    std::fill_n(out_row(b, s, kv_head * group_), group_ * call_.value_dim, Element{});
    return;
  }
  const auto* k = static_cast<const Element*>(call_.k);
  const auto* v = static_cast<const Element*>(call_.v);
  static thread_local Scratch scratch;
  Element* key = scratch.get<Element>(call_.head_dim);
  copy_head(k + b * call_.k_batch_stride + kv_head * call_.k_head_stride + s * call_.k_token_stride, b, s, key);
  layout_.write_k(k_head(b, kv_head), p, key, call_.head_dim);
  layout_.write_v(v_head(b, kv_head), p,
                  v + b * call_.v_batch_stride + kv_head * call_.v_head_stride + s * call_.v_token_stride);
}

// Items cover each live row once (and each chunk of it once). Their order keeps a sequence's heads together.
template <class Dot>
void SlotAttention<Dot>::plan(int threads, std::vector<Item>& items, int64_t& partial_states) const {
  struct Sequence {
    int64_t rows, chunk_begin, chunk_end, seen;
  };
  std::vector<Sequence> sequences(call_.batch);
  int64_t whole_items = 0;
  for (int64_t b = 0; b < call_.batch; ++b) {
    int64_t live = 0, low = call_.ctx_len, high = -1;
    for (int64_t s = 0; s < call_.tokens; ++s) {
      const int64_t p = position(b, s);
      if (p < 0) continue;
      ++live;
      low = std::min(low, first_seen(p));
      high = std::max(high, p);
    }
    sequences[b] = {live * group_, low / kChunk, high / kChunk + 1, high + 1 - low};
    if (live > 0) whole_items += call_.kv_heads;
  }
  const bool split = threads > 1 && whole_items < kItemsPerThread * threads;
  partial_states = 0;
  for (int64_t b = 0; b < call_.batch; ++b) {
    const Sequence& q = sequences[b];
    for (int64_t h = 0; h < call_.kv_heads; ++h) {
      const int64_t rows_per_item = split ? kRowBlock : std::max<int64_t>(q.rows, 1);
      for (int64_t r = 0; r == 0 || r < q.rows; r += rows_per_item) {
        const int64_t row_end = std::min(q.rows, r + rows_per_item);
        const bool split_chunks = split && q.rows <= kRowBlock && q.chunk_end - q.chunk_begin > 1;
        if (!split_chunks) {
          items.push_back({b, h, r, row_end, q.chunk_begin, q.chunk_end, -1, std::max<int64_t>(1, q.seen * q.rows)});
          continue;
        }
        for (int64_t c = q.chunk_begin; c < q.chunk_end; ++c)
          items.push_back({b, h, r, row_end, c, c + 1, partial_states++, kChunk * q.rows});
      }
    }
  }
}

template <class Dot>
void SlotAttention<Dot>::gather_rows(const Item& item, Workspace& work) const {
  work.rows.clear();
  int64_t row = 0;
  for (int64_t s = 0; s < call_.tokens; ++s) {  // token-major: the rows of a tile have close positions
    const int64_t p = position(item.batch, s);
    if (p < 0) continue;
    for (int64_t g = 0; g < group_; ++g, ++row)
      if (row >= item.row_begin && row < item.row_end) work.rows.push_back({s, item.kv_head * group_ + g, p});
  }
}

template <class Dot>
typename SlotAttention<Dot>::View SlotAttention<Dot>::view_of(const Item& item, Workspace& work) const {
  gather_rows(item, work);
  const int64_t count = static_cast<int64_t>(work.rows.size());
  const int64_t q_width = layout_.head_steps * kPack;
  Element* queries = work.queries.get<Element>(count * q_width);
  for (int64_t r = 0; r < count; ++r) {
    const Row& row = work.rows[r];
    const Element* q = static_cast<const Element*>(call_.q) + item.batch * call_.q_batch_stride +
                       row.head * call_.q_head_stride + row.token * call_.q_token_stride;
    copy_head(q, item.batch, row.token, queries + r * q_width);
    std::fill(queries + r * q_width + call_.head_dim, queries + (r + 1) * q_width, Element{});
  }
  return {work.rows.data(),
          count,
          queries,
          k_head(item.batch, item.kv_head),
          v_head(item.batch, item.kv_head),
          work.scores.get<float>(kMaxRows * kBlock),
          work.weights.get<Element>(kMaxRows * kBlock)};
}

// Scores of ROWS rows against VECTORS groups of 16 positions, scaled.
template <class Dot>
template <int ROWS, int VECTORS>
void SlotAttention<Dot>::score_vectors(const View& view, int64_t row, int64_t group, float* scores) const {
  const int64_t q_width = layout_.head_steps * kPack;
  F16 acc[ROWS][VECTORS];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) acc[i][j] = zero();
  const RowsInPlace<Dot, ROWS> queries(view.queries + row * q_width, q_width);
  const Columns<Dot> keys{view.k + group * layout_.k_group(), layout_.k_step(), layout_.k_group()};
  accumulate_tile<Dot>(acc, queries, keys, layout_.head_steps);
  const F16 scale = broadcast(call_.scale);
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; ++j) store(scores + i * kBlock + j * kLanes, acc[i][j] * scale);
}

template <class Dot>
template <int ROWS>
void SlotAttention<Dot>::attend_tile(const View& view, SoftmaxState& state, int64_t row, int64_t block) const {
  const Row* rows = view.rows + row;
  const int64_t base = block * kBlock;
  int64_t low = kBlock, high = 0;  // the positions of this block that some row of the tile sees
  int first[ROWS], last[ROWS];     // those that each row sees
  for (int i = 0; i < ROWS; ++i) {
    first[i] = static_cast<int>(std::clamp<int64_t>(first_seen(rows[i].position) - base, 0, kBlock));
    last[i] = static_cast<int>(std::clamp<int64_t>(rows[i].position + 1 - base, 0, kBlock));
    if (first[i] >= last[i]) continue;
    low = std::min<int64_t>(low, first[i]);
    high = std::max<int64_t>(high, last[i]);
  }
  if (low >= high) return;
  const int vector_begin = static_cast<int>(low) / kLanes;
  const int vector_end = static_cast<int>(high + kLanes - 1) / kLanes;

  float* scores = view.scores;
  const int64_t group = base / kLanes;
  int vector = vector_begin;
  for (; vector + kVectors <= vector_end; vector += kVectors)
    score_vectors<ROWS, kVectors>(view, row, group + vector, scores + vector * kLanes);
  if constexpr (kVectors > 1)
    for (; vector < vector_end; ++vector) score_vectors<ROWS, 1>(view, row, group + vector, scores + vector * kLanes);

  alignas(64) float scale_of[kLanes];
  for (int i = 0; i < ROWS; ++i) {
    float* s = scores + i * kBlock;
    F16 highest = broadcast(kMinusInfinity);
    for (int j = vector_begin; j < vector_end; ++j) {
      F16 x = load(s + j * kLanes);
      if (call_.softcap > 0) x = broadcast(call_.softcap) * tanh(x / broadcast(call_.softcap));
      x = keep_lanes(x, std::clamp(first[i] - j * kLanes, 0, kLanes), std::clamp(last[i] - j * kLanes, 0, kLanes),
                     broadcast(kMinusInfinity));
      store(s + j * kLanes, x);
      highest = max(highest, x);
    }
    const float before = state.maximum[row + i];
    const float here = reduce_max(highest);
    const float after = before > here ? before : here;  // in this order a NaN stays NaN
    state.maximum[row + i] = after;
    const F16 shift = broadcast(after == kMinusInfinity ? 0.0f : after);
    scale_of[i] = before == after ? 0.0f : before - after;
    F16 sum = zero();
    for (int j = vector_begin; j < vector_end; ++j) {
      const F16 p = exp(load(s + j * kLanes) - shift);
      sum = sum + p;
      store(view.weights + i * kBlock + j * kLanes, p);
    }
    store(s, sum);  // the scores are used up
  }
  for (int i = ROWS; i < kLanes; ++i) scale_of[i] = 0.0f;
  store(scale_of, exp(load(scale_of)));
  for (int i = 0; i < ROWS; ++i) {
    float* sum = state.sum + (row + i) * kLanes;
    store(sum, fma(load(sum), broadcast(scale_of[i]), load(scores + i * kBlock)));
  }

  const int64_t begin = low / kPack * kPack;
  const int steps = static_cast<int>(high - begin) / kPack;
  const bool half = (high - begin) % kPack != 0;
  const auto add_values = [&]<int VECTORS, class Loader>(int64_t d, std::integral_constant<int, VECTORS>, Loader loader) {
    F16 acc[ROWS][VECTORS];
    float* out = state.out + row * state.width + d;
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j)
        acc[i][j] = load(out + i * state.width + j * kLanes) * broadcast(scale_of[i]);
    const RowsInPlace<Dot, ROWS> weights(view.weights + begin, kBlock);
    const Columns<Dot> values{view.v + (base + begin) / kPack * layout_.v_step() + d * kPack, layout_.v_step(),
                              kLanes * kPack};
    accumulate_tile<Dot>(acc, weights, values, steps, NoPrefetch{}, loader);
    if (half) {
      const RowsInPlace<Dot, ROWS> last_weights(view.weights + begin + steps * kPack, kBlock);
      const Columns<Dot> last{values.first + steps * values.step, values.step, values.vector};
      accumulate_half_step<Dot>(acc, last_weights, last, loader);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < VECTORS; ++j) store(out + i * state.width + j * kLanes, acc[i][j]);
  };
  constexpr std::integral_constant<int, kVectors> kAll;
  constexpr std::integral_constant<int, 1> kOne;
  const int64_t value_dim = call_.value_dim;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= value_dim; d += kVectors * kLanes) add_values(d, kAll, WholeVectors{});
  if constexpr (kVectors > 1)
    for (; d + kLanes <= value_dim; d += kLanes) add_values(d, kOne, WholeVectors{});
  if (d < value_dim) add_values(d, kOne, FirstLanes{static_cast<int>(value_dim - d)});
}

template <class Dot>
void SlotAttention<Dot>::attend_chunk(const View& view, SoftmaxState& state, int64_t chunk) const {
  static constexpr auto kTiles = tile_kernels(std::make_index_sequence<kMaxRows>{});
  state.clear(view.count);
  constexpr int64_t kBlocks = kChunk / kBlock;
  for (int64_t row_block = 0; row_block < view.count; row_block += kRowBlock) {
    const int64_t rows = std::min<int64_t>(kRowBlock, view.count - row_block);
    const RowTiles tiles(rows, kMaxRows, kMaxRows);
    for (int64_t block = chunk * kBlocks; block < (chunk + 1) * kBlocks; ++block) {
      int64_t row = row_block;
      for (int64_t tile = 0; tile < tiles.count; ++tile) {
        const int size = tiles.size(tile);
        (this->*kTiles[size - 1])(view, state, row, block);
        row += size;
      }
    }
  }
}

template <class Dot>
void SlotAttention<Dot>::finish(const Item& item, const View& view, const SoftmaxState& state) const {
  for (int64_t r = 0; r < view.count; ++r) {
    const Row& row = view.rows[r];
    state.finish_row(r, call_.sinks ? call_.sinks[row.head] : kMinusInfinity, out_row(item.batch, row.token, row.head),
                     call_.value_dim);
  }
}

// Contiguous items whose cost is this thread's share.
Range share_of_cost(const std::vector<Item>& items, int thread, int threads) {
  int64_t total = 0;
  for (const Item& item : items) total += item.cost;
  const auto first_at = [&](int64_t part) {
    int64_t before = 0, i = 0;
    for (; i < static_cast<int64_t>(items.size()); ++i) {
      if ((before + items[i].cost / 2) * threads >= total * part) break;
      before += items[i].cost;
    }
    return i;
  };
  return {first_at(thread), thread + 1 == threads ? static_cast<int64_t>(items.size()) : first_at(thread + 1)};
}

template <class Dot>
void SlotAttention<Dot>::run() {
  const int64_t pairs = call_.batch * call_.kv_heads;
  const int64_t tokens = pairs * call_.tokens;
  int64_t seen = 0;
  for (int64_t b = 0; b < call_.batch; ++b)
    for (int64_t s = 0; s < call_.tokens; ++s) seen += position(b, s) + 1;
  const int threads = threads_for(omp_get_max_threads(), seen * call_.heads * (call_.head_dim + call_.value_dim));

  std::vector<Item> items;
  int64_t partial_states = 0;
  plan(threads, items, partial_states);
  const bool whole = static_cast<int64_t>(items.size()) == pairs;  // an item is then the only user of its K and V
  const int64_t partial_floats = kRowBlock * SoftmaxState::floats_per_row(width_);
  static thread_local Scratch partial_scratch;
  float* partials = partial_scratch.get<float>(partial_states * partial_floats);

  const auto work_on = [&](int thread, int team) {
    static thread_local Workspace work;
    if (!whole) {
      const Range mine = share_of(tokens, thread, team);
      for (int64_t i = mine.begin; i < mine.end; ++i)
        write_token(i / call_.tokens / call_.kv_heads, i / call_.tokens % call_.kv_heads, i % call_.tokens);
      meet(team);
    }
    const Range mine = share_of_cost(items, thread, team);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const Item& item = items[i];
      if (whole)
        for (int64_t s = 0; s < call_.tokens; ++s) write_token(item.batch, item.kv_head, s);
      if (item.row_begin == item.row_end) continue;
      const View view = view_of(item, work);
      if (item.partial >= 0) {
        SoftmaxState state(partials + item.partial * partial_floats, kRowBlock, width_);
        attend_chunk(view, state, item.chunk_begin);
        continue;
      }
      float* memory = work.state.get<float>(2 * view.count * SoftmaxState::floats_per_row(width_));
      SoftmaxState state(memory, view.count, width_);
      SoftmaxState chunk_state(memory + view.count * SoftmaxState::floats_per_row(width_), view.count, width_);
      attend_chunk(view, state, item.chunk_begin);
      for (int64_t chunk = item.chunk_begin + 1; chunk < item.chunk_end; ++chunk) {
        attend_chunk(view, chunk_state, chunk);
        for (int64_t r = 0; r < view.count; ++r) state.merge_row(r, chunk_state);
      }
      finish(item, view, state);
    }
    if (partial_states == 0) return;
    meet(team);
    // The first chunk of each split item collects the others, left to right.
    int64_t turn = 0;
    for (size_t i = 0; i < items.size();) {
      size_t next = i + 1;
      while (next < items.size() && items[next].partial >= 0 && items[next].chunk_begin > items[next - 1].chunk_begin &&
             items[next].batch == items[i].batch && items[next].kv_head == items[i].kv_head)
        ++next;
      if (items[i].partial >= 0 && turn++ % team == thread) {
        const View view = view_of(items[i], work);
        SoftmaxState state(partials + items[i].partial * partial_floats, kRowBlock, width_);
        for (size_t j = i + 1; j < next; ++j) {
          const SoftmaxState later(partials + items[j].partial * partial_floats, kRowBlock, width_);
          for (int64_t r = 0; r < view.count; ++r) state.merge_row(r, later);
        }
        finish(items[i], view, state);
      }
      i = next;
    }
  };
  run_team(threads, work_on);
}

}  // namespace
}  // namespace polybatch

void polybatch_slot_attention(const PolybatchSlotAttention* call) {
  if (call->batch == 0 || call->tokens == 0) return;
  if (call->element == kPolybatchBFloat16) {
    polybatch::SlotAttention<polybatch::DotBF16>(*call).run();
  } else {
    polybatch::SlotAttention<polybatch::DotF32>(*call).run();
  }
}
