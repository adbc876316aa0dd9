// packed_linear: see linear_panels.h.
#include "linear_panels.h"

namespace polybatch {
namespace {

template <class Dot>
void linear(const PolybatchLinear& call) {
  using Element = typename Dot::Element;
  Problem<Dot> p{static_cast<const Element*>(call.x),
                 call.x_row_stride,
                 static_cast<const Element*>(call.weight),
                 call.bias,
                 static_cast<Element*>(call.y),
                 nullptr,
                 call.rows,
                 (call.in_features + Dot::kPack - 1) / Dot::kPack,
                 call.out_features};
  if (call.in_features % Dot::kPack != 0) {  // the last group of a row would read its neighbour
    static thread_local Scratch scratch;
    const int64_t padded = p.steps * Dot::kPack;
    Element* copy = scratch.get<Element>(p.rows * padded);
    for (int64_t row = 0; row < p.rows; ++row)
      copy_padded<Dot>(p.x + row * call.x_row_stride, call.in_features, padded, copy + row * padded);
    p.x = copy;
    p.x_row_stride = padded;
  }
  const int64_t panels = panels_of(p.out_features);
  const int threads = threads_for(panels, p.rows * call.in_features * p.out_features);
  if (threads == 1) {
    run_panels(p, {0, panels});
    return;
  }
#pragma omp parallel num_threads(threads)
  run_panels(p, share_of(panels, omp_get_thread_num(), omp_get_num_threads()));
}

}  // namespace
}  // namespace polybatch

void polybatch_packed_linear(const PolybatchLinear* call) {
  if (call->rows == 0 || call->out_features == 0) return;
  if (call->element == kPolybatchBFloat16) {
    polybatch::linear<polybatch::DotBF16>(*call);
  } else {
    polybatch::linear<polybatch::DotF32>(*call);
  }
}
