// The shims of packed_linear and packed_expert_linear.
#include "linear_panels.h"
#include "shim_tensor.h"

namespace polybatch {
namespace {

// What both linears check and fill in: everything but the rows' experts. `experts` stacked weights and biases.
AOTITorchError fill_linear(const char* op, const Tensor& x, const Tensor& weight, AtenTensorHandle* bias_handle,
                           int64_t experts, int64_t out_features, PolybatchLinear& call) {
  if (!x.ok || !weight.ok) return fail(op, "cannot read the arguments");
  if (x.dim < 1) return fail(op, "x needs at least one dimension");
  const int64_t element = element_of(weight.dtype);
  if (element < 0) return fail(op, "the weight must be float32 or bfloat16");
  if (x.dtype != weight.dtype) return fail(op, "x and the weight must have the same dtype");
  const int64_t in_features = x.size_from_end(1);
  const int64_t pack = element == kPolybatchBFloat16 ? DotBF16::kPack : DotF32::kPack;
  if (weight.numel != experts * panels_of(out_features) * kPanel * ((in_features + pack - 1) / pack * pack))
    return fail(op, "the packed weight does not have x.size(-1) x out_features elements");
  call.element = element;
  call.in_features = in_features, call.out_features = out_features;
  call.weight = weight.data, call.bias = nullptr;
  if (bias_handle != nullptr) {
    const Tensor b(*bias_handle);
    if (!b.ok || b.dtype != aoti_torch_dtype_float32() || b.numel != experts * out_features || !b.is_contiguous())
      return fail(op, "the bias must be float32 [out_features] (of every expert), contiguous");
    call.bias = static_cast<const float*>(b.data);
  }
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError new_result(const Tensor& x, int64_t out_features, AtenTensorHandle* result) {
  std::vector<int64_t> sizes(x.sizes, x.sizes + x.dim);
  sizes.back() = out_features;
  return new_contiguous(sizes, x.dtype, result);
}

int64_t element_size(int64_t element) { return element == kPolybatchBFloat16 ? sizeof(BFloat16) : sizeof(float); }

AOTITorchError packed_linear(AtenTensorHandle x_handle, AtenTensorHandle weight_handle, AtenTensorHandle* bias,
                             int64_t out_features, AtenTensorHandle* result) {
  const Tensor x(x_handle), weight(weight_handle);
  PolybatchLinear call{};
  const AOTITorchError error = fill_linear("packed_linear", x, weight, bias, 1, out_features, call);
  if (error != AOTI_TORCH_SUCCESS) return error;
  if (new_result(x, out_features, result) != AOTI_TORCH_SUCCESS) return AOTI_TORCH_FAILURE;
  const Rows rows(x, element_size(call.element));
  call.rows = rows.count, call.x = rows.data, call.x_row_stride = rows.stride, call.y = Tensor(*result).data;
  polybatch_packed_linear(&call);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError packed_expert_linear(AtenTensorHandle x_handle, AtenTensorHandle weight_handle, AtenTensorHandle* bias,
                                    AtenTensorHandle expert_index_handle, int64_t out_features,
                                    AtenTensorHandle* result) {
  constexpr const char* kOp = "packed_expert_linear";
  const Tensor x(x_handle), weight(weight_handle), index(expert_index_handle);
  if (!index.ok || index.dtype != aoti_torch_dtype_int64() || index.dim != 1 || !index.is_contiguous())
    return fail(kOp, "expert_index must be int64 [rows], contiguous");
  if (x.dim != 2 || index.numel != x.sizes[0] || weight.dim < 3)
    return fail(kOp, "expected x [rows, in_features], one expert index a row and weight [experts, panels, ...]");
  PolybatchExpertLinear call{};
  call.experts = weight.sizes[0];
  const AOTITorchError error = fill_linear(kOp, x, weight, bias, call.experts, out_features, call.linear);
  if (error != AOTI_TORCH_SUCCESS) return error;
  call.expert_index = static_cast<const int64_t*>(index.data);
  for (int64_t row = 0; row < index.numel; ++row)
    if (call.expert_index[row] < 0 || call.expert_index[row] >= call.experts)
      return fail(kOp, "an expert_index is not an expert of the weight");
  if (new_result(x, out_features, result) != AOTI_TORCH_SUCCESS) return AOTI_TORCH_FAILURE;
  const Rows rows(x, element_size(call.linear.element));
  call.linear.rows = rows.count, call.linear.x = rows.data, call.linear.x_row_stride = rows.stride;
  call.linear.y = Tensor(*result).data;
  polybatch_packed_expert_linear(&call);
  return AOTI_TORCH_SUCCESS;
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

POLYBATCH_EXPORT AOTITorchError aoti_torch_cpu_packed_expert_linear(AtenTensorHandle x, AtenTensorHandle weight,
                                                                    AtenTensorHandle* bias,
                                                                    AtenTensorHandle expert_index,
                                                                    int64_t out_features, AtenTensorHandle* ret0) {
  return polybatch::guarded("packed_expert_linear", [&] {
    return polybatch::packed_expert_linear(x, weight, bias, expert_index, out_features, ret0);
  });
}

}  // extern "C"
