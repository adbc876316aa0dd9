// The arguments of one slot_attention call by role: where a token's q, k, v and output lie, what it sees. Token s of b is
// that of row b, and in a call of one token per row that of row b + s.
#pragma once

#include <algorithm>

#include "api.h"
#include "cache_layout.h"
#include "parallel.h"
#include "rotary.h"

namespace polybatch {

inline int64_t position_of(const PolybatchSlotAttention& args, int64_t b, int64_t s) {
  return args.position_ids[b * args.position_batch_stride + s * args.position_token_stride];
}
inline int64_t slot_of(const PolybatchSlotAttention& args, int64_t b) { return args.batch_index[b * args.batch_index_stride]; }

// The first position that a query at p sees; it sees all from there to p.
inline int64_t first_seen(const PolybatchSlotAttention& args, int64_t p) {
  return args.window > 0 ? std::max<int64_t>(0, p - args.window + 1) : 0;
}

// The same call with token strides that lead to the next row where a row has but one token.
inline PolybatchSlotAttention over_rows(PolybatchSlotAttention args) {
  if (args.tokens == 1) {
    args.q_token_stride = args.q_batch_stride, args.k_token_stride = args.k_batch_stride;
    args.v_token_stride = args.v_batch_stride, args.rope_token_stride = args.rope_batch_stride;
    args.position_token_stride = args.position_batch_stride;
  }
  return args;
}

template <class Dot>
struct AttentionCall {
  using Element = typename Dot::Element;

  const PolybatchSlotAttention& args;
  const CacheLayout<Dot> layout;
  const int64_t group;  // query heads of a K/V head

  explicit AttentionCall(const PolybatchSlotAttention& args)
      : args(args), layout(args.ctx_len, args.slot_elements, args.head_dim, args.value_dim), group(args.heads / args.kv_heads) {}

  int64_t position(int64_t b, int64_t s) const { return position_of(args, b, s); }
  Element* k_head(int64_t b, int64_t h) const { return slot(b) + args.k_offset + h * layout.head_elements(); }
  Element* v_head(int64_t b, int64_t h) const { return slot(b) + args.v_offset + h * layout.head_elements(); }
  Element* out_row(int64_t b, int64_t s, int64_t head) const {
    return static_cast<Element*>(args.out) + ((b * args.tokens + s) * args.heads + head) * args.value_dim;
  }

  int64_t query_width() const { return layout.head_steps * Dot::kPack; }
  // q of one token and head, rotated if the call asks for it, padded to whole groups.
  void copy_query(int64_t b, int64_t s, int64_t head, Element* to) const {
    const auto* q = static_cast<const Element*>(args.q);
    copy_head(q + b * args.q_batch_stride + head * args.q_head_stride + s * args.q_token_stride, b, s, to);
    std::fill(to + args.head_dim, to + query_width(), Element{});
  }
  // Puts a token's k and v into the cache; a padding token gets output 0 instead.
  void write_token(int64_t b, int64_t kv_head, int64_t s) const {
    const int64_t p = position(b, s);
    if (p < 0) {
      std::fill_n(out_row(b, s, kv_head * group), group * args.value_dim, Element{});
      return;
    }
    const auto* k = static_cast<const Element*>(args.k);
    const auto* v = static_cast<const Element*>(args.v);
    static thread_local Scratch scratch;
    Element* key = scratch.get<Element>(args.head_dim);
    copy_head(k + b * args.k_batch_stride + kv_head * args.k_head_stride + s * args.k_token_stride, b, s, key);
    layout.write_k(k_head(b, kv_head), p, key, args.head_dim);
    layout.write_v(v_head(b, kv_head), p,
                   v + b * args.v_batch_stride + kv_head * args.v_head_stride + s * args.v_token_stride);
  }

 private:
  Element* slot(int64_t b) const {
    return static_cast<Element*>(args.cache) + slot_of(args, b) * args.slot_elements;
  }
  void copy_head(const Element* x, int64_t b, int64_t s, Element* to) const {
    if (args.rope_cos == nullptr) {
      std::copy_n(x, args.head_dim, to);
      return;
    }
    const int64_t at = b * args.rope_batch_stride + s * args.rope_token_stride;
    rotate_head(x, args.rope_cos + at, args.rope_sin + at, args.head_dim, to);
  }
};

}  // namespace polybatch
