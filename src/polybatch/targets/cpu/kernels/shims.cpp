// The entry points: AOTInductor's C shims (tensors as handles) and the plain C functions of api.h.
//
// Generated code calls aoti_torch_cpu_<op> with the op's arguments in schema order (an optional tensor is a pointer to its
// handle, or null) and then one handle to fill per returned tensor. A shim returns an error code and never throws; what
// was wrong goes to stderr.
#include <omp.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "api.h"
#include "cache_layout.h"

namespace polybatch {
namespace {

constexpr int64_t kLinearPanel = 32;  // columns of a weight panel, as in linear.cpp

struct Tensor {
  void* data = nullptr;
  int64_t dim = 0;
  int64_t* sizes = nullptr;
  int64_t* strides = nullptr;
  int64_t numel = 0;
  int32_t dtype = 0;

  explicit Tensor(AtenTensorHandle handle) {
    ok = aoti_torch_get_data_ptr(handle, &data) == AOTI_TORCH_SUCCESS &&
         aoti_torch_get_dim(handle, &dim) == AOTI_TORCH_SUCCESS &&
         aoti_torch_get_sizes(handle, &sizes) == AOTI_TORCH_SUCCESS &&
         aoti_torch_get_strides(handle, &strides) == AOTI_TORCH_SUCCESS &&
         aoti_torch_get_numel(handle, &numel) == AOTI_TORCH_SUCCESS &&
         aoti_torch_get_dtype(handle, &dtype) == AOTI_TORCH_SUCCESS;
  }
  bool ok = false;
  int64_t size_from_end(int64_t i) const { return sizes[dim - i]; }
  bool rows_are_contiguous() const { return size_from_end(1) <= 1 || strides[dim - 1] == 1; }
};

AOTITorchError fail(const char* op, const char* why) {
  std::fprintf(stderr, "polybatch::%s: %s\n", op, why);
  return AOTI_TORCH_FAILURE;
}

int64_t element_of(int32_t dtype) {
  if (dtype == aoti_torch_dtype_float32()) return kPolybatchFloat32;
  if (dtype == aoti_torch_dtype_bfloat16()) return kPolybatchBFloat16;
  return -1;
}

AOTITorchError new_contiguous(const std::vector<int64_t>& sizes, int32_t dtype, AtenTensorHandle* result) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= sizes[i]) strides[i] = stride;
  return aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                                  aoti_torch_device_type_cpu(), 0, result);
}

// The rows of a tensor [..., K] as one matrix: in place when its leading dimensions lie one after the other, else copied.
struct Rows {
  const char* data;
  int64_t count, stride;
  std::vector<char> copy;

  Rows(const Tensor& x, int64_t element_size) : data(static_cast<const char*>(x.data)), count(1), stride(0) {
    const int64_t leading = x.dim - 1, width = x.sizes[leading];
    stride = width;
    bool in_place = x.rows_are_contiguous();
    for (int64_t i = leading; i-- > 0;) {
      if (x.sizes[i] == 1) continue;
      if (count == 1) stride = x.strides[i];
      in_place = in_place && x.strides[i] == stride * count;
      count *= x.sizes[i];
    }
    if (in_place || x.numel == 0) return;
    copy.resize(count * width * element_size);
    std::vector<int64_t> index(leading, 0);
    char* to = copy.data();
    for (int64_t row = 0; row < count; ++row) {
      int64_t offset = 0;
      for (int64_t i = 0; i < leading; ++i) offset += index[i] * x.strides[i];
      for (int64_t k = 0; k < width; ++k, to += element_size)
        std::memcpy(to, data + (offset + k * x.strides[leading]) * element_size, element_size);
      for (int64_t i = leading; i-- > 0;) {
        if (++index[i] < x.sizes[i]) break;
        index[i] = 0;
      }
    }
    data = copy.data();
    stride = width;
  }
};

AOTITorchError packed_linear(AtenTensorHandle x_handle, AtenTensorHandle weight_handle, AtenTensorHandle* bias_handle,
                             int64_t out_features, AtenTensorHandle* result) {
  constexpr const char* kOp = "packed_linear";
  const Tensor x(x_handle), weight(weight_handle);
  if (!x.ok || !weight.ok) return fail(kOp, "cannot read the arguments");
  if (x.dim < 1) return fail(kOp, "x needs at least one dimension");
  const int64_t element = element_of(weight.dtype);
  if (element < 0) return fail(kOp, "the weight must be float32 or bfloat16");
  if (x.dtype != weight.dtype) return fail(kOp, "x and the weight must have the same dtype");
  const int64_t in_features = x.size_from_end(1);
  const int64_t pack = element == kPolybatchBFloat16 ? 2 : 1;
  const int64_t panels = (out_features + kLinearPanel - 1) / kLinearPanel;
  if (weight.numel != panels * kLinearPanel * ((in_features + pack - 1) / pack * pack))
    return fail(kOp, "the packed weight does not have x.size(-1) x out_features elements");
  const float* bias = nullptr;
  if (bias_handle != nullptr) {
    const Tensor b(*bias_handle);
    if (!b.ok || b.dtype != aoti_torch_dtype_float32() || b.numel != out_features || !b.rows_are_contiguous())
      return fail(kOp, "the bias must be float32 [out_features], contiguous");
    bias = static_cast<const float*>(b.data);
  }
  std::vector<int64_t> sizes(x.sizes, x.sizes + x.dim);
  sizes.back() = out_features;
  if (new_contiguous(sizes, x.dtype, result) != AOTI_TORCH_SUCCESS) return AOTI_TORCH_FAILURE;
  const Rows rows(x, element == kPolybatchBFloat16 ? sizeof(BFloat16) : sizeof(float));
  const PolybatchLinear call{element, rows.count,  in_features, out_features, rows.data,
                             rows.stride, weight.data, bias,   Tensor(*result).data};
  polybatch_packed_linear(&call);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError slot_attention(AtenTensorHandle q_handle, AtenTensorHandle k_handle, AtenTensorHandle v_handle,
                              AtenTensorHandle cache_handle, AtenTensorHandle batch_index_handle,
                              AtenTensorHandle position_ids_handle, AtenTensorHandle* sinks_handle, int64_t k_offset,
                              int64_t v_offset, int64_t ctx_len, double scale, int64_t window, double softcap,
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
  if (!q.rows_are_contiguous() || !k.rows_are_contiguous() || !v.rows_are_contiguous() || !cache.rows_are_contiguous())
    return fail(kOp, "the last dimension of q, k, v and the cache must be contiguous");
  const int64_t batch = q.sizes[0], heads = q.sizes[1], tokens = q.sizes[2], head_dim = q.sizes[3];
  const int64_t kv_heads = k.sizes[1], value_dim = v.sizes[3];
  if (k.sizes[0] != batch || v.sizes[0] != batch || k.sizes[2] != tokens || v.sizes[2] != tokens ||
      k.sizes[3] != head_dim || v.sizes[1] != kv_heads || kv_heads == 0 || heads % kv_heads != 0 ||
      index.numel != batch || positions.sizes[0] != batch || positions.sizes[1] != tokens)
    return fail(kOp, "the shapes of q, k, v, batch_index and position_ids do not fit together");
  const CacheLayout<DotF32> fp32(ctx_len, head_dim, value_dim);
  const CacheLayout<DotBF16> bf16(ctx_len, head_dim, value_dim);
  const bool is_bf16 = element == kPolybatchBFloat16;
  const int64_t k_end = k_offset + kv_heads * (is_bf16 ? bf16.k_head_elements() : fp32.k_head_elements());
  const int64_t v_end = v_offset + kv_heads * (is_bf16 ? bf16.v_head_elements() : fp32.v_head_elements());
  if (k_offset < 0 || v_offset < 0 || k_end > cache.sizes[1] || v_end > cache.sizes[1])
    return fail(kOp, "the layer's K or V lies outside the slot");
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
  if (new_contiguous({batch, tokens, heads, value_dim}, q.dtype, result) != AOTI_TORCH_SUCCESS)
    return AOTI_TORCH_FAILURE;
  PolybatchSlotAttention call{};
  call.element = element;
  call.batch = batch, call.heads = heads, call.kv_heads = kv_heads, call.tokens = tokens;
  call.head_dim = head_dim, call.value_dim = value_dim;
  call.q = q.data, call.q_batch_stride = q.strides[0], call.q_head_stride = q.strides[1];
  call.k = k.data, call.k_batch_stride = k.strides[0], call.k_head_stride = k.strides[1];
  call.v = v.data, call.v_batch_stride = v.strides[0], call.v_head_stride = v.strides[1];
  call.q_token_stride = q.strides[2], call.k_token_stride = k.strides[2], call.v_token_stride = v.strides[2];
  call.cache = cache.data, call.slot_stride = cache.strides[0];
  call.k_offset = k_offset, call.v_offset = v_offset, call.ctx_len = ctx_len;
  call.batch_index = static_cast<const int64_t*>(index.data), call.batch_index_stride = index.strides[0];
  call.position_ids = static_cast<const int64_t*>(positions.data);
  call.position_batch_stride = positions.strides[0], call.position_token_stride = positions.strides[1];
  call.sinks = sinks, call.scale = static_cast<float>(scale), call.softcap = static_cast<float>(softcap);
  call.window = window, call.out = Tensor(*result).data;
  polybatch_slot_attention(&call);
  return AOTI_TORCH_SUCCESS;
}

// The error of an exception that must not cross into C.
template <class Call>
AOTITorchError guarded(const char* op, Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return fail(op, error.what());
  }
}

}  // namespace
}  // namespace polybatch

extern "C" {

POLYBATCH_EXPORT AOTITorchError aoti_torch_cpu_packed_linear(AtenTensorHandle x, AtenTensorHandle weight,
                                                             AtenTensorHandle* bias, int64_t out_features,
                                                             AtenTensorHandle* ret0) {
  return polybatch::guarded("packed_linear",
                            [&] { return polybatch::packed_linear(x, weight, bias, out_features, ret0); });
}

POLYBATCH_EXPORT AOTITorchError aoti_torch_cpu_slot_attention(
    AtenTensorHandle q, AtenTensorHandle k, AtenTensorHandle v, AtenTensorHandle cache, AtenTensorHandle batch_index,
    AtenTensorHandle position_ids, AtenTensorHandle* sinks, int64_t k_offset, int64_t v_offset, int64_t ctx_len,
    double scale, int64_t window, double softcap, AtenTensorHandle* ret0) {
  return polybatch::guarded("slot_attention", [&] {
    return polybatch::slot_attention(q, k, v, cache, batch_index, position_ids, sinks, k_offset, v_offset, ctx_len,
                                     scale, window, softcap, ret0);
  });
}

int polybatch_set_num_threads(int threads) {
  const int previous = omp_get_max_threads();
  omp_set_num_threads(threads);
  return previous;
}

const char* polybatch_isa() { return polybatch::kIsaName; }

}  // extern "C"
