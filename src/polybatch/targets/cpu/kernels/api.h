// The kernels as plain C: raw pointers, sizes and strides. native.py mirrors these structs; the *_shims.cpp fill them from
// tensors. Strides are in elements. Everything is validated by the caller; the functions themselves cannot fail.
#pragma once

#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

enum PolybatchElement { kPolybatchFloat32 = 0, kPolybatchBFloat16 = 1 };

// y[rows, out_features] = x[rows, in_features] @ W^T (+ bias). x and y have `element`, W has `weight_element` (that of x, or
// bf16) unless there is a scale: then W is int8, a column of it standing for scale times what is stored. With float_result y
// is fp32 in any case: what was summed, not rounded. With gated, panels hold 16 columns of a gate g, then the 16 of u that
// belong to it, and y[rows, out_features / 2] = silu(g) * u. A residual is added to what would be y before the one rounding;
// with a norm, x is what that makes of its rows. y is contiguous. See linear_formats.h.
struct PolybatchLinear {
  int64_t element;
  int64_t rows, in_features, out_features;
  const void* x;
  int64_t x_row_stride;
  const void* weight;  // packed, see linear_panels.h
  int64_t weight_element;
  const float* bias;   // [out_features] or null
  void* y;
  const float* scale;     // [out_features] or null
  int64_t narrow_rows;  // int8 W only: 1 = elements of x become one byte, row by row; 0 = two, or three of fp32
  int64_t float_result;
  int64_t gated;  // only where polybatch_has_gates(), and for whole panels
  const float* norm_weight;  // [in_features]: rows of x are normalized first (row_norm.h); or null
  const float* norm_bias;    // [in_features] or null
  float norm_eps;
  const void* residual;  // [rows, out_features], of x's element: added before the one rounding; or null. Not with gated
  int64_t residual_row_stride;
};

// Row i is multiplied with expert expert_index[i]. linear.weight holds the packed experts one after the other; linear.bias
// and linear.scale are [experts, out_features].
struct PolybatchExpertLinear {
  struct PolybatchLinear linear;
  const int64_t* expert_index;  // [rows], each in 0 .. experts - 1
  int64_t experts;
};

// See attention.cpp. q, k, v, the cache and out have `element`; the last dimension of q, k, v is contiguous. Where tokens is 1,
// neighbouring rows may have one slot.
struct PolybatchSlotAttention {
  int64_t element;
  int64_t batch, heads, kv_heads, tokens, head_dim, value_dim;
  const void* q;  // [batch, heads, tokens, head_dim]
  int64_t q_batch_stride, q_head_stride, q_token_stride;
  const void* k;  // [batch, kv_heads, tokens, head_dim]
  int64_t k_batch_stride, k_head_stride, k_token_stride;
  const void* v;  // [batch, kv_heads, tokens, value_dim]
  int64_t v_batch_stride, v_head_stride, v_token_stride;
  void* cache;
  int64_t slot_elements, k_offset, v_offset, ctx_len;  // slots lie one after the other
  const int64_t* batch_index;   // [batch]
  const int64_t* position_ids;  // [batch, tokens], -1 = padding
  int64_t batch_index_stride, position_batch_stride, position_token_stride;
  const float* sinks;  // [heads] or null
  const float* rope_cos;  // [batch, tokens, head_dim]: q and k are rotated first (rotary.h); or null
  const float* rope_sin;
  int64_t rope_batch_stride, rope_token_stride;  // of both; their last dimension is contiguous
  float scale;
  float softcap;   // 0 = none
  int64_t window;  // 0 = none
  void* out;       // [batch, tokens, heads, value_dim], contiguous
};

#define POLYBATCH_EXPORT __attribute__((visibility("default")))

POLYBATCH_EXPORT void polybatch_packed_linear(const struct PolybatchLinear* call);
POLYBATCH_EXPORT void polybatch_packed_expert_linear(const struct PolybatchExpertLinear* call);
POLYBATCH_EXPORT void polybatch_slot_attention(const struct PolybatchSlotAttention* call);
// Threads of the next kernels (and of torch's OpenMP code) on the calling thread. Returns the previous count.
POLYBATCH_EXPORT int polybatch_set_num_threads(int threads);
// Ends the OpenMP threads that wait for more work of the calling thread; its next parallel region starts new ones.
POLYBATCH_EXPORT void polybatch_release_threads(void);
POLYBATCH_EXPORT const char* polybatch_isa(void);
// Whether linears can be gated: a register tile holds both halves of a panel.
POLYBATCH_EXPORT int polybatch_has_gates(void);

#if defined(__cplusplus)
}
#endif
