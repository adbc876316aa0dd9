// packed_linear: see linear_panels.h.
#include "linear_panels.h"

namespace polybatch {
namespace {

template <class Dot>
void linear(const PolybatchLinear& call) {
  using Element = typename Dot::Element;
  const OrderedRows<Element> rows{static_cast<const Element*>(call.x), call.x_row_stride, nullptr};
  Product<Dot> p{{rows, call.rows, call.in_features},
                 static_cast<const Element*>(call.weight),
                 call.bias,
                 static_cast<Element*>(call.y),
                 nullptr,
                 call.out_features};
  static thread_local Scratch scratch;
  const int64_t staged = p.x.staged_elements();
  if (staged > 0) p.x.stage_into(scratch.get<Element>(staged));
  run_team(threads_for(p.units(), call.rows * call.in_features * call.out_features), [&](int thread, int team) {
    if (staged > 0) {
      p.x.stage(thread, team);
      meet(team);
    }
    run_units(p, share_of(p.units(), thread, team));
  });
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
