// packed_linear and packed_expert_linear: the format of a call, from its element types. See linear_formats.h.
#include "linear.h"

namespace polybatch {
namespace {

void run(const PolybatchLinear& call, const int64_t* expert_index, int64_t experts) {
  if (call.rows == 0 || call.out_features == 0) return;
  const bool bf16 = call.element == kPolybatchBFloat16;
  const auto format = call.scale == nullptr ? (bf16 ? run_linear<FloatFormat<DotBF16>> : run_linear<FloatFormat<DotF32>>)
                      : call.quantize_rows  ? (bf16 ? run_linear<Int8Format<BFloat16>> : run_linear<Int8Format<float>>)
                      : bf16                ? run_linear<Int8WeightFormat<DotBF16>>
                                            : run_linear<Int8WeightFormat<DotF32>>;
  format(call, expert_index, experts);
}

}  // namespace
}  // namespace polybatch

void polybatch_packed_linear(const PolybatchLinear* call) { polybatch::run(*call, nullptr, 1); }

void polybatch_packed_expert_linear(const PolybatchExpertLinear* call) {
  polybatch::run(call->linear, call->expert_index, call->experts);
}
