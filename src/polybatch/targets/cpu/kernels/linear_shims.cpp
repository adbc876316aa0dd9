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

// What packed_linear and packed_linear_int8 are asked for beside the product.
struct Options {
  bool narrow_rows;
  bool float_result, gated;
  AtenTensorHandle *norm_weight, *norm_bias;
  double norm_eps;
  AtenTensorHandle* residual;
};

AOTITorchError fill_options(const char* op, const Options& options, PolybatchLinear& call) {
  call.narrow_rows = options.narrow_rows, call.float_result = options.float_result, call.gated = options.gated;
  call.norm_eps = static_cast<float>(options.norm_eps);
  if (call.gated && (!kHasGates || call.out_features % kPanel != 0))
    return fail(op, "gates need whole panels and an instruction set whose tiles hold them");
  if (options.residual && (call.gated || call.float_result || call.out_features % kLanes != 0))
    return fail(op, "a residual needs whole vectors of results in x's dtype");
  constexpr const char* kWhy = "the norm's weight and bias must be float32 [x.size(-1)], contiguous";
  AOTITorchError error = AOTI_TORCH_SUCCESS;
  if (options.norm_weight) error = float_vector(op, kWhy, *options.norm_weight, call.in_features, call.norm_weight);
  if (error == AOTI_TORCH_SUCCESS && options.norm_bias)
    error = float_vector(op, kWhy, *options.norm_bias, call.in_features, call.norm_bias);
  return error;
}

AOTITorchError packed_linear(const char* op, AtenTensorHandle x_handle, AtenTensorHandle weight_handle,
                             AtenTensorHandle* scale, AtenTensorHandle* bias, int64_t out_features,
                             const Options& options, AtenTensorHandle* result) {
  const Tensor x(x_handle), weight(weight_handle);
  PolybatchLinear call{};
  AOTITorchError error = fill_linear(op, x, weight, scale, bias, 1, out_features, call);
  if (error == AOTI_TORCH_SUCCESS) error = fill_options(op, options, call);
  if (error != AOTI_TORCH_SUCCESS) return error;
  if (new_result(x, call, result) != AOTI_TORCH_SUCCESS) return AOTI_TORCH_FAILURE;
  const Rows rows(x, element_size(call.element));
  call.rows = rows.count, call.x = rows.data, call.x_row_stride = rows.stride, call.y = Tensor(*result).data;
  if (options.residual == nullptr) {
    polybatch_packed_linear(&call);
    return AOTI_TORCH_SUCCESS;
  }
  const Tensor added(*options.residual);
  if (!added.ok || added.dtype != x.dtype || added.dim < 1 || added.size_from_end(1) != out_features ||
      added.numel != call.rows * out_features)
    return fail(op, "the residual must have the shape and dtype of the result");
  const Rows residual(added, element_size(call.element));
  call.residual = residual.data, call.residual_row_stride = residual.stride;
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
                                                             AtenTensorHandle* norm_weight,
                                                             AtenTensorHandle* norm_bias, double norm_eps,
                                                             AtenTensorHandle* residual, AtenTensorHandle* ret0) {
  constexpr const char* kOp = "packed_linear";
  return polybatch::guarded(kOp, [&] {
    const polybatch::Options options{false,     float_result != 0, gated != 0, norm_weight,
                                     norm_bias, norm_eps,          residual};
    return polybatch::packed_linear(kOp, x, weight, nullptr, bias, out_features, options, ret0);
  });
}

POLYBATCH_EXPORT AOTITorchError aoti_torch_cpu_packed_linear_int8(AtenTensorHandle x, AtenTensorHandle weight,
                                                                  AtenTensorHandle scale, AtenTensorHandle* bias,
                                                                  int64_t out_features, int32_t narrow_activations,
                                                                  int32_t float_result, int32_t gated,
                                                                  AtenTensorHandle* norm_weight,
                                                                  AtenTensorHandle* norm_bias, double norm_eps,
                                                                  AtenTensorHandle* residual, AtenTensorHandle* ret0) {
  constexpr const char* kOp = "packed_linear_int8";
  return polybatch::guarded(kOp, [&] {
    const polybatch::Options options{narrow_activations != 0, float_result != 0, gated != 0, norm_weight,
                                     norm_bias,               norm_eps,          residual};
    return polybatch::packed_linear(kOp, x, weight, &scale, bias, out_features, options, ret0);
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
