// What the C shims of AOTInductor (tensors as handles) have in common.
//
// Generated code calls aoti_torch_cpu_<op> with the op's arguments in schema order (an optional tensor is a pointer to its
// handle, or null) and then one handle to fill per returned tensor. A shim returns an error code and never throws; what
// was wrong goes to stderr.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "api.h"

namespace polybatch {

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
  bool is_contiguous() const {
    int64_t stride = 1;
    for (int64_t i = dim; i-- > 0; stride *= sizes[i])
      if (sizes[i] > 1 && strides[i] != stride) return false;
    return true;
  }
  bool rows_are_contiguous() const { return size_from_end(1) <= 1 || strides[dim - 1] == 1; }
};

inline AOTITorchError fail(const char* op, const char* why) {
  std::fprintf(stderr, "polybatch::%s: %s\n", op, why);
  return AOTI_TORCH_FAILURE;
}

inline int64_t element_of(int32_t dtype) {
  if (dtype == aoti_torch_dtype_float32()) return kPolybatchFloat32;
  if (dtype == aoti_torch_dtype_bfloat16()) return kPolybatchBFloat16;
  return -1;
}

inline AOTITorchError new_contiguous(const std::vector<int64_t>& sizes, int32_t dtype, AtenTensorHandle* result) {
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

// The error of an exception that must not cross into C.
template <class Call>
AOTITorchError guarded(const char* op, Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return fail(op, error.what());
  }
}

}  // namespace polybatch

