// slot_attention: writes the new K and V rows of a step into the cache, in place, then lets each query row attend to the
// live positions of its own slot. Cache layout: cache_layout.h.
//
// A query at position p sees positions max(0, p - window + 1) .. p. Score = (q . k) * scale, then softcap * tanh(score /
// softcap) if asked, in fp32. A token with position -1 is padding: it writes nothing and its output is 0. In a call of one
// token per row, neighbouring rows of one slot are one sequence, and see each other like the tokens of a row: that is how
// rows of different lengths run without padding.
//
// Order of arithmetic for one output row, whatever the batch, tokens, tiles and threads: positions go by blocks of kBlock
// aligned at 0 (attention_tile.h), blocks by chunks of kChunk aligned at 0; each chunk starts from an empty state, and
// chunks are merged left to right (softmax_state.h). A block that a row does not see, or a part of one, changes nothing in
// its state, and is skipped where no row of the tile sees it.
#include <atomic>
#include <vector>

#include "attention_call.h"
#include "attention_plan.h"
#include "attention_tile.h"
#include "row_tiles.h"

namespace polybatch {
namespace {

// What a thread works in.
struct Workspace {
  Scratch queries, state, scores, weights;
  std::vector<QueryRow> rows;
};

template <class Dot>
class SlotAttention {
 public:
  SlotAttention(const PolybatchSlotAttention& args, AttentionPlan& plan, float* partial_states)
      : call_(args), plan_(plan), partial_states_(partial_states), width_(state_width(args)) {}

  // Floats that the states of `plan`'s chunks take.
  static int64_t partial_floats(const PolybatchSlotAttention& args, const AttentionPlan& plan) {
    return plan.splits.empty() ? 0 : static_cast<int64_t>(plan.items.size()) * item_floats(args);
  }

  void work(int thread, int team) {
    if (plan_.rows_are_cut) {
      const int64_t tokens = call_.args.tokens, heads = call_.args.kv_heads;
      const Range mine = share_of(call_.args.batch * heads * tokens, thread, team);
      for (int64_t i = mine.begin; i < mine.end; ++i) call_.write_token(i / tokens / heads, i / tokens % heads, i % tokens);
      meet(team);
    }
    const Range mine = plan_.share(thread, team);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const Item& item = plan_.items[i];
      if (!plan_.rows_are_cut) write_tokens(item);
      if (item.row_begin < item.row_end) attend(i, i + 1 < mine.end ? plan_.items[i + 1] : item);
    }
  }

 private:
  using Element = typename Dot::Element;
  static constexpr int kMaxRows = kTiles.attention.rows;

  static int64_t state_width(const PolybatchSlotAttention& args) { return (args.value_dim + kLanes - 1) / kLanes * kLanes; }
  static int64_t item_floats(const PolybatchSlotAttention& args) {
    return kRowBlock * SoftmaxState::floats_per_row(state_width(args));
  }
  SoftmaxState partial_state(int64_t item) const {
    return SoftmaxState(partial_states_ + item * item_floats(call_.args), kRowBlock, width_);
  }

  // The tokens that nobody but this item reads.
  void write_tokens(const Item& item) const {
    for (int64_t s = 0; s < item.tokens; ++s) {
      const int64_t p = call_.position(item.batch, s);
      const bool mine = p < 0 ? item.chunk_end * kChunk >= item.end
                              : p >= item.chunk_begin * kChunk && p < item.chunk_end * kChunk;
      if (mine) call_.write_token(item.batch, item.kv_head, s);
    }
  }

  void attend(int64_t index, const Item& next) {
    static thread_local Workspace work;
    const Item& item = plan_.items[index];
    const AttentionRows<Dot> on = rows_of(item, work);
    if (item.split >= 0) {
      SoftmaxState state = partial_state(index);
      attend_chunk(item, item.chunk_begin, on, state, next);
      Split& split = plan_.splits[item.split];
      if (std::atomic_ref(split.unfinished).fetch_sub(1, std::memory_order_acq_rel) > 1) return;
      SoftmaxState first = partial_state(split.first_item);
      for (int64_t i = 1; i < split.items; ++i) merge(on.count, first, partial_state(split.first_item + i));
      finish(item, on, first);
      return;
    }
    const int64_t floats = on.count * SoftmaxState::floats_per_row(width_);
    float* memory = work.state.get<float>(2 * floats);
    SoftmaxState state(memory, on.count, width_), chunk_state(memory + floats, on.count, width_);
    attend_chunk(item, item.chunk_begin, on, state, next);
    for (int64_t chunk = item.chunk_begin + 1; chunk < item.chunk_end; ++chunk) {
      attend_chunk(item, chunk, on, chunk_state, next);
      merge(on.count, state, chunk_state);
    }
    finish(item, on, state);
  }

  AttentionRows<Dot> rows_of(const Item& item, Workspace& work) const {
    work.rows.clear();
    int64_t row = 0;
    for (int64_t s = 0; s < item.tokens; ++s) {  // token-major: the rows of a tile have close positions
      const int64_t p = call_.position(item.batch, s);
      if (p < 0) continue;
      for (int64_t g = 0; g < call_.group; ++g, ++row)
        if (row >= item.row_begin && row < item.row_end) work.rows.push_back({s, item.kv_head * call_.group + g, p});
    }
    const int64_t count = static_cast<int64_t>(work.rows.size()), width = call_.query_width();
    Element* queries = work.queries.get<Element>(count * width);
    for (int64_t r = 0; r < count; ++r)
      call_.copy_query(item.batch, work.rows[r].token, work.rows[r].head, queries + r * width);
    return {work.rows.data(),
            count,
            queries,
            call_.k_head(item.batch, item.kv_head),
            call_.v_head(item.batch, item.kv_head),
            work.scores.get<float>(kMaxRows * kBlock),
            work.weights.get<Element>(kMaxRows * kBlock)};
  }

  void attend_chunk(const Item& item, int64_t chunk, const AttentionRows<Dot>& on, SoftmaxState& state,
                    const Item& next) const {
    static constexpr auto kFirst = attention_tile_kernels<Dot, true>(std::make_index_sequence<kMaxRows>{});
    static constexpr auto kOthers = attention_tile_kernels<Dot, false>(std::make_index_sequence<kMaxRows>{});
    constexpr int64_t kBlocks = kChunk / kBlock;
    state.clear(on.count);
    const int64_t begin = std::max(chunk * kBlocks, item.first_block());
    const int64_t end = std::min((chunk + 1) * kBlocks, item.end_block());
    for (int64_t row_block = 0; row_block < on.count; row_block += kRowBlock) {
      const RowTiles tiles(std::min<int64_t>(kRowBlock, on.count - row_block), kMaxRows, kMaxRows);
      for (int64_t block = begin; block < end; ++block) {
        const NextBlock ahead = block_after(item, block, next);
        for (int64_t tile = 0; tile < tiles.count; ++tile)
          (tile == 0 ? kFirst : kOthers)[tiles.size(tile) - 1](call_, on, state, row_block + tiles.begin(tile), block, ahead);
      }
    }
  }

  // The block to bring nearer: the next one of this item if much of it is live, else the first one of the next item.
  NextBlock block_after(const Item& item, int64_t block, const Item& next) const {
    const bool here = (block + 1) * kBlock + kBlock / 2 <= std::min(item.end, item.chunk_end * kChunk);
    const Item& of = here ? item : next;
    const int64_t b = here ? block + 1 : next.first_block();
    const int64_t at = call_.layout.block_offset(b);
    return {reinterpret_cast<const char*>(call_.k_head(of.batch, of.kv_head) + at),
            reinterpret_cast<const char*>(call_.v_head(of.batch, of.kv_head) + at)};
  }

  static void merge(int64_t rows, SoftmaxState& state, const SoftmaxState& later) {
    for (int64_t r = 0; r < rows; ++r) state.merge_row(r, later);
  }

  void finish(const Item& item, const AttentionRows<Dot>& on, const SoftmaxState& state) const {
    for (int64_t r = 0; r < on.count; ++r) {
      const QueryRow& row = on.rows[r];
      const float sink = call_.args.sinks ? call_.args.sinks[row.head] * kLog2E : kMinusInfinity;
      state.finish_row(r, sink, call_.out_row(item.batch, row.token, row.head), call_.args.value_dim);
    }
  }

  const AttentionCall<Dot> call_;
  AttentionPlan& plan_;
  float* const partial_states_;
  const int64_t width_;
};

template <class Dot>
void slot_attention(const PolybatchSlotAttention& args) {
  static thread_local AttentionPlan plan;
  static thread_local Scratch partial_states;
  int64_t seen = 0;
  for (int64_t b = 0; b < args.batch; ++b)
    for (int64_t s = 0; s < args.tokens; ++s) seen += position_of(args, b, s) + 1;
  const int64_t work = seen * args.heads * (args.head_dim + args.value_dim);
  const int threads = threads_for(omp_get_max_threads(), work);
  plan.make(args, threads);
  SlotAttention<Dot> attention(args, plan, partial_states.get<float>(SlotAttention<Dot>::partial_floats(args, plan)));
  run_team(threads, [&](int thread, int team) { attention.work(thread, team); });
}

}  // namespace
}  // namespace polybatch

void polybatch_slot_attention(const PolybatchSlotAttention* call) {
  if (call->batch == 0 || call->tokens == 0) return;
  const PolybatchSlotAttention args = polybatch::over_rows(*call);
  if (args.element == kPolybatchBFloat16) {
    polybatch::slot_attention<polybatch::DotBF16>(args);
  } else {
    polybatch::slot_attention<polybatch::DotF32>(args);
  }
}
