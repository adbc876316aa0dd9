// packed_linear and packed_expert_linear: the format of a call, from its element types. See linear_formats.h.
#include "linear.h"

namespace polybatch {
namespace {

using Format = void (*)(const PolybatchLinear&, const int64_t*, int64_t);

Format float_format(const PolybatchLinear& call) {
  if (call.element == kPolybatchBFloat16) return run_linear<FloatFormat<DotBF16>>;
  return call.weight_element == kPolybatchBFloat16 ? run_linear<FloatFormat<DotF32Narrow>> : run_linear<FloatFormat<DotF32>>;
}

Format int8_format(const PolybatchLinear& call) {
  if (call.element == kPolybatchBFloat16)
    return call.narrow_rows ? run_linear<Int8Format<BFloat16, 1>> : run_linear<Int8Format<BFloat16, 2>>;
  return call.narrow_rows ? run_linear<Int8Format<float, 1>> : run_linear<Int8Format<float, 3>>;
}

void run(const PolybatchLinear& call, const int64_t* expert_index, int64_t experts) {
  if (call.rows == 0 || call.out_features == 0) return;
  const Format format = call.scale == nullptr ? float_format(call) : int8_format(call);
  format(call, expert_index, experts);
}

}  // namespace
}  // namespace polybatch

void polybatch_packed_linear(const PolybatchLinear* call) { polybatch::run(*call, nullptr, 1); }

void polybatch_packed_expert_linear(const PolybatchExpertLinear* call) {
  polybatch::run(call->linear, call->expert_index, call->experts);
}
