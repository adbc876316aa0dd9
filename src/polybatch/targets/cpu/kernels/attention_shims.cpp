// The shim of slot_attention.
#include "cache_layout.h"
#include "shim_tensor.h"

namespace polybatch {
namespace {

template <class Dot>
bool fits_in_chunk(const CacheLayout<Dot>& layout, int64_t kv_heads, int64_t k_offset, int64_t v_offset) {
  const int64_t to_last = kv_heads * layout.head_elements() - layout.block_elements();
  return k_offset >= 0 && v_offset >= 0 && k_offset + to_last + layout.k_elements() <= layout.chunk_elements &&
         v_offset + to_last + kBlock * layout.value_dim <= layout.chunk_elements;
}

AOTITorchError slot_attention(AtenTensorHandle q_handle, AtenTensorHandle k_handle, AtenTensorHandle v_handle,
                              AtenTensorHandle cache_handle, AtenTensorHandle batch_index_handle,
                              AtenTensorHandle position_ids_handle, AtenTensorHandle* sinks_handle, int64_t k_offset,
                              int64_t v_offset, int64_t ctx_len, double scale, int64_t window, double softcap,
                              AtenTensorHandle* rope_cos_handle, AtenTensorHandle* rope_sin_handle,
                              AtenTensorHandle* result) {
  constexpr const char* kOp = "slot_attention";
  const Tensor q(q_handle), k(k_handle), v(v_handle), cache(cache_handle), index(batch_index_handle),
      positions(position_ids_handle);
  if (!q.ok || !k.ok || !v.ok || !cache.ok || !index.ok || !positions.ok) return fail(kOp, "cannot read the arguments");
  if (q.dim != 4 || k.dim != 4 || v.dim != 4 || cache.dim != 2 || index.dim < 1 || positions.dim != 2)
    return fail(kOp, "expected q, k, v of 4 dimensions, cache and position_ids of 2, batch_index of 1 or 2");
  const int64_t element = element_of(q.dtype);
  if (element < 0 || k.dtype != q.dtype || v.dtype != q.dtype || cache.dtype != q.dtype)
    return fail(kOp, "q, k, v and the cache must all be float32 or all be bfloat16");
  if (index.dtype != aoti_torch_dtype_int64() || positions.dtype != aoti_torch_dtype_int64())
    return fail(kOp, "batch_index and position_ids must be int64");
  if (!q.rows_are_contiguous() || !k.rows_are_contiguous() || !v.rows_are_contiguous() || !cache.is_contiguous())
    return fail(kOp, "the last dimension of q, k and v must be contiguous, and the cache in all dimensions");
  const int64_t batch = q.sizes[0], heads = q.sizes[1], tokens = q.sizes[2], head_dim = q.sizes[3];
  const int64_t kv_heads = k.sizes[1], value_dim = v.sizes[3];
  if (k.sizes[0] != batch || v.sizes[0] != batch || k.sizes[2] != tokens || v.sizes[2] != tokens ||
      k.sizes[3] != head_dim || v.sizes[1] != kv_heads || kv_heads == 0 || heads % kv_heads != 0 ||
      index.numel != batch || positions.sizes[0] != batch || positions.sizes[1] != tokens)
    return fail(kOp, "the shapes of q, k, v, batch_index and position_ids do not fit together");
  const bool fits = element == kPolybatchBFloat16
                        ? fits_in_chunk<DotBF16>({ctx_len, cache.sizes[1], head_dim, value_dim}, kv_heads, k_offset, v_offset)
                        : fits_in_chunk<DotF32>({ctx_len, cache.sizes[1], head_dim, value_dim}, kv_heads, k_offset, v_offset);
  if (!fits) return fail(kOp, "the layer's K or V lies outside the slot");
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t slot = static_cast<const int64_t*>(index.data)[b * index.strides[0]];
    for (int64_t s = 0; s < tokens; ++s) {
      const int64_t p =
          static_cast<const int64_t*>(positions.data)[b * positions.strides[0] + s * positions.strides[1]];
      if (p < 0) continue;
      if (p >= ctx_len) return fail(kOp, "a position is not below ctx_len");
      if (slot < 0 || slot >= cache.sizes[0]) return fail(kOp, "a batch_index is not a slot of the cache");
    }
  }
  const float* sinks = nullptr;
  if (sinks_handle != nullptr) {
    const Tensor s(*sinks_handle);
    if (!s.ok || s.dtype != aoti_torch_dtype_float32() || s.numel != heads || !s.rows_are_contiguous())
      return fail(kOp, "the sinks must be float32 [heads], contiguous");
    sinks = static_cast<const float*>(s.data);
  }
  PolybatchSlotAttention call{};
  if (rope_cos_handle != nullptr && rope_sin_handle != nullptr) {
    const Tensor cos(*rope_cos_handle), sin(*rope_sin_handle);
    for (const Tensor& t : {cos, sin})
      if (!t.ok || t.dim != 3 || t.dtype != aoti_torch_dtype_float32() || t.sizes[0] != batch || t.sizes[1] != tokens ||
          t.sizes[2] != head_dim || head_dim % 2 != 0 || !t.rows_are_contiguous() || t.strides[0] != cos.strides[0] ||
          t.strides[1] != cos.strides[1])
        return fail(kOp, "rope_cos and rope_sin must be float32 [batch, tokens, head_dim] with the same strides");
    call.rope_cos = static_cast<const float*>(cos.data), call.rope_sin = static_cast<const float*>(sin.data);
    call.rope_batch_stride = cos.strides[0], call.rope_token_stride = cos.strides[1];
  }
  if (new_contiguous({batch, tokens, heads, value_dim}, q.dtype, result) != AOTI_TORCH_SUCCESS)
    return AOTI_TORCH_FAILURE;
  call.element = element;
  call.batch = batch, call.heads = heads, call.kv_heads = kv_heads, call.tokens = tokens;
  call.head_dim = head_dim, call.value_dim = value_dim;
  call.q = q.data, call.q_batch_stride = q.strides[0], call.q_head_stride = q.strides[1];
  call.k = k.data, call.k_batch_stride = k.strides[0], call.k_head_stride = k.strides[1];
  call.v = v.data, call.v_batch_stride = v.strides[0], call.v_head_stride = v.strides[1];
  call.q_token_stride = q.strides[2], call.k_token_stride = k.strides[2], call.v_token_stride = v.strides[2];
  call.cache = cache.data, call.slot_elements = cache.sizes[1];
  call.k_offset = k_offset, call.v_offset = v_offset, call.ctx_len = ctx_len;
  call.batch_index = static_cast<const int64_t*>(index.data), call.batch_index_stride = index.strides[0];
  call.position_ids = static_cast<const int64_t*>(positions.data);
  call.position_batch_stride = positions.strides[0], call.position_token_stride = positions.strides[1];
  call.sinks = sinks, call.scale = static_cast<float>(scale), call.softcap = static_cast<float>(softcap);
  call.window = window, call.out = Tensor(*result).data;
  polybatch_slot_attention(&call);
  return AOTI_TORCH_SUCCESS;
}

}  // namespace
}  // namespace polybatch

extern "C" {

POLYBATCH_EXPORT AOTITorchError aoti_torch_cpu_slot_attention(
    AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v, AtenTensorHandle cache, AtenTensorHandle batch_index,
    AtenTensorHandle position_ids, AtenTensorHandle* sinks, int64_t k_offset, int64_t v_offset, int64_t ctx_len,
    double scale, int64_t window, double softcap, AtenTensorHandle* rope_cos, AtenTensorHandle* rope_sin,
    AtenTensorHandle* ret0) {
  return polybatch::guarded("slot_attention", [&] {
    return polybatch::slot_attention(q, k, v, cache, batch_index, position_ids, sinks, k_offset, v_offset, ctx_len,
                                     scale, window, softcap, rope_cos, rope_sin, ret0);
  });
}

}  // extern "C"
