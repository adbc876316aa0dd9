// The shims of packed_linear and packed_expert_linear.
#include "linear_formats.h"
#include "shim_tensor.h"

namespace polybatch {
namespace {

// A float vector of every expert.
AOTITorchError float_vector(const char* op, const char* why, AtenTensorHandle handle, int64_t count, const float*& to) {
  const Tensor t(handle);
  if (!t.ok || t.dtype != aoti_torch_dtype_float32() || t.numel != count || !t.is_contiguous()) return fail(op, why);
  to = static_cast<const float*>(t.data);
  return AOTI_TORCH_SUCCESS;
}

// What all linears check and fill in, but for the rows' experts. The weight, scale and bias are those of `experts` stacked.
AOTITorchError fill_linear(const char* op, const Tensor& x, const Tensor& weight, AtenTensorHandle* scale,
                           AtenTensorHandle* bias, int64_t experts, int64_t out_features, PolybatchLinear& call) {
  if (!x.ok || !weight.ok) return fail(op, "cannot read the arguments");
  if (x.dim < 1) return fail(op, "x needs at least one dimension");
  call.element = element_of(x.dtype);
  if (call.element < 0) return fail(op, "x must be float32 or bfloat16");
  call.weight_element = element_of(weight.dtype);
  if (scale && weight.dtype != aoti_torch_dtype_int8()) return fail(op, "the weight must be int8");
  if (!scale && call.weight_element != call.element && call.weight_element != kPolybatchBFloat16)
    return fail(op, "the weight must have x's dtype, or be bfloat16");
  call.in_features = x.size_from_end(1), call.out_features = out_features;
  const int64_t pack = call.element == kPolybatchBFloat16 ? DotBF16::kPack : DotF32::kPack;
  const int64_t panel = scale ? int8_panel_elements(call.in_features) : (call.in_features + pack - 1) / pack * pack * kPanel;
  if (weight.numel != experts * panels_of(out_features) * panel)
    return fail(op, "the packed weight does not have x.size(-1) x out_features elements");
  if (!weight.is_contiguous()) return fail(op, "the packed weight must be contiguous");
  call.weight = weight.data;
  AOTITorchError error = AOTI_TORCH_SUCCESS;
  if (scale != nullptr)
    error = float_vector(op, "the scale must be float32 [out_features] (of every expert), contiguous", *scale,
                         experts * out_features, call.scale);
  if (error == AOTI_TORCH_SUCCESS && bias != nullptr)
    error = float_vector(op, "the bias must be float32 [out_features] (of every expert), contiguous", *bias,
                         experts * out_features, call.bias);
  return error;
}

AOTITorchError new_result(const Tensor& x, const PolybatchLinear& call, AtenTensorHandle* result) {
  std::vector<int64_t> sizes(x.sizes, x.sizes + x.dim);
  sizes.back() = call.gated ? call.out_features / 2 : call.out_features;
  return new_contiguous(sizes, call.float_result ? aoti_torch_dtype_float32() : x.dtype, result);
}

int64_t element_size(int64_t element) { return element == kPolybatchBFloat16 ? sizeof(BFloat16) : sizeof(float); }

AOTITorchError packed_linear(const char* op, AtenTensorHandle x_handle, AtenTensorHandle weight_handle,
                             AtenTensorHandle* scale, AtenTensorHandle* bias, int64_t out_features, bool narrow_rows,
                             bool float_result, bool gated, AtenTensorHandle* result) {
  const Tensor x(x_handle), weight(weight_handle);
  PolybatchLinear call{};
  const AOTITorchError error = fill_linear(op, x, weight, scale, bias, 1, out_features, call);
  if (error != AOTI_TORCH_SUCCESS) return error;
  call.narrow_rows = narrow_rows, call.float_result = float_result, call.gated = gated;
  if (gated && (!kHasGates || out_features % kPanel != 0))
    return fail(op, "gates need whole panels and an instruction set whose tiles hold them");
  if (new_result(x, call, result) != AOTI_TORCH_SUCCESS) return AOTI_TORCH_FAILURE;
  const Rows rows(x, element_size(call.element));
  call.rows = rows.count, call.x = rows.data, call.x_row_stride = rows.stride, call.y = Tensor(*result).data;
  polybatch_packed_linear(&call);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError packed_expert_linear(const char* op, AtenTensorHandle x_handle, AtenTensorHandle weight_handle,
                                    AtenTensorHandle* scale, AtenTensorHandle* bias,
                                    AtenTensorHandle expert_index_handle, int64_t out_features, bool narrow_rows,
                                    AtenTensorHandle* result) {
  const Tensor x(x_handle), weight(weight_handle), index(expert_index_handle);
  if (!index.ok || index.dtype != aoti_torch_dtype_int64() || index.dim != 1 || !index.is_contiguous())
    return fail(op, "expert_index must be int64 [rows], contiguous");
  if (x.dim != 2 || index.numel != x.sizes[0] || weight.dim < 3)
    return fail(op, "expected x [rows, in_features], one expert index a row and weight [experts, panels, ...]");
  PolybatchExpertLinear call{};
  call.experts = weight.sizes[0];
  const AOTITorchError error = fill_linear(op, x, weight, scale, bias, call.experts, out_features, call.linear);
  if (error != AOTI_TORCH_SUCCESS) return error;
  call.expert_index = static_cast<const int64_t*>(index.data);
  for (int64_t row = 0; row < index.numel; ++row)
    if (call.expert_index[row] < 0 || call.expert_index[row] >= call.experts)
      return fail(op, "an expert_index is not an expert of the weight");
  if (new_result(x, call.linear, result) != AOTI_TORCH_SUCCESS) return AOTI_TORCH_FAILURE;
  const Rows rows(x, element_size(call.linear.element));
  call.linear.rows = rows.count, call.linear.x = rows.data, call.linear.x_row_stride = rows.stride;
  call.linear.y = Tensor(*result).data, call.linear.narrow_rows = narrow_rows;
  polybatch_packed_expert_linear(&call);
  return AOTI_TORCH_SUCCESS;
}

}  // namespace
}  // namespace polybatch

extern "C" {

POLYBATCH_EXPORT AOTITorchError aoti_torch_cpu_packed_linear(AtenTensorHandle x, AtenTensorHandle weight,
                                                             AtenTensorHandle* bias, int64_t out_features,
                                                             int32_t float_result, int32_t gated,
                                                             AtenTensorHandle* ret0) {
  constexpr const char* kOp = "packed_linear";
  return polybatch::guarded(kOp, [&] {
    return polybatch::packed_linear(kOp, x, weight, nullptr, bias, out_features, false, float_result != 0, gated != 0,
                                    ret0);
  });
}

POLYBATCH_EXPORT AOTITorchError aoti_torch_cpu_packed_linear_int8(AtenTensorHandle x, AtenTensorHandle weight,
                                                                  AtenTensorHandle scale, AtenTensorHandle* bias,
                                                                  int64_t out_features, int32_t narrow_activations,
                                                                  int32_t float_result, int32_t gated,
                                                                  AtenTensorHandle* ret0) {
  constexpr const char* kOp = "packed_linear_int8";
  return polybatch::guarded(kOp, [&] {
    return polybatch::packed_linear(kOp, x, weight, &scale, bias, out_features, narrow_activations != 0,
                                    float_result != 0, gated != 0, ret0);
  });
}

POLYBATCH_EXPORT AOTITorchError aoti_torch_cpu_packed_expert_linear(AtenTensorHandle x, AtenTensorHandle weight,
                                                                    AtenTensorHandle* bias,
                                                                    AtenTensorHandle expert_index,
                                                                    int64_t out_features, AtenTensorHandle* ret0) {
  constexpr const char* kOp = "packed_expert_linear";
  return polybatch::guarded(kOp, [&] {
    return polybatch::packed_expert_linear(kOp, x, weight, nullptr, bias, expert_index, out_features, false, ret0);
  });
}

POLYBATCH_EXPORT AOTITorchError aoti_torch_cpu_packed_expert_linear_int8(
    AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle scale, AtenTensorHandle* bias,
    AtenTensorHandle expert_index, int64_t out_features, int32_t narrow_activations, AtenTensorHandle* ret0) {
  constexpr const char* kOp = "packed_expert_linear_int8";
  return polybatch::guarded(kOp, [&] {
    return polybatch::packed_expert_linear(kOp, x, weight, &scale, bias, expert_index, out_features,
                                           narrow_activations != 0, ret0);
  });
}

}  // extern "C"
