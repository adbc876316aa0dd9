// packed_expert_linear: row i of y = x[i] @ W[expert_index[i]]^T (+ bias[expert_index[i]]).
//
// Rows are sorted by expert, so that each expert's weight is read once; the arithmetic of a row is that of packed_linear
// (linear_panels.h). Every thread takes the same share of every expert's panels, which balances any routing.
#include "linear_panels.h"

namespace polybatch {
namespace {

struct Sorted {
  Scratch row_memory, begin_memory, x;
  int64_t* rows = nullptr;   // rows of x, ordered by expert
  int64_t* begin = nullptr;  // [experts + 1], where each expert's rows begin

  void sort(const int64_t* expert_index, int64_t count, int64_t experts) {
    rows = row_memory.get<int64_t>(count);
    begin = begin_memory.get<int64_t>(experts + 2);
    std::fill_n(begin, experts + 2, 0);
    for (int64_t i = 0; i < count; ++i) ++begin[expert_index[i] + 2];
    for (int64_t e = 0; e < experts; ++e) begin[e + 2] += begin[e + 1];
    for (int64_t i = 0; i < count; ++i) rows[begin[expert_index[i] + 1]++] = i;
  }
};

template <class Dot>
void expert_linear(const PolybatchExpertLinear& call) {
  using Element = typename Dot::Element;
  const PolybatchLinear& all = call.linear;
  static thread_local Sorted kept;
  Sorted& sorted = kept;
  sorted.sort(call.expert_index, all.rows, call.experts);
  const int64_t steps = (all.in_features + Dot::kPack - 1) / Dot::kPack;
  const int64_t padded = steps * Dot::kPack;
  const int64_t panels = panels_of(all.out_features);
  const int64_t weight_size = panels * kPanel * padded;
  Element* x = sorted.x.get<Element>(all.rows * padded);
  const int threads = threads_for(panels, all.rows * all.in_features * all.out_features);

  const auto work_on = [&](int thread, int team) {
    const Range mine = share_of(all.rows, thread, team);
    for (int64_t i = mine.begin; i < mine.end; ++i)
      copy_padded<Dot>(static_cast<const Element*>(all.x) + sorted.rows[i] * all.x_row_stride, all.in_features, padded,
                       x + i * padded);
    meet(team);
    for (int64_t e = 0; e < call.experts; ++e) {
      const int64_t begin = sorted.begin[e], rows = sorted.begin[e + 1] - begin;
      if (rows == 0) continue;
      const Problem<Dot> p{x + begin * padded,
                           padded,
                           static_cast<const Element*>(all.weight) + e * weight_size,
                           all.bias ? all.bias + e * all.out_features : nullptr,
                           static_cast<Element*>(all.y),
                           sorted.rows + begin,
                           rows,
                           steps,
                           all.out_features};
      run_panels(p, share_of(panels, thread, team));
    }
  };
  if (threads == 1) {
    work_on(0, 1);
    return;
  }
#pragma omp parallel num_threads(threads)
  work_on(omp_get_thread_num(), omp_get_num_threads());
}

}  // namespace
}  // namespace polybatch

void polybatch_packed_expert_linear(const PolybatchExpertLinear* call) {
  if (call->linear.rows == 0 || call->linear.out_features == 0) return;
  if (call->linear.element == kPolybatchBFloat16) {
    polybatch::expert_linear<polybatch::DotBF16>(*call);
  } else {
    polybatch::expert_linear<polybatch::DotF32>(*call);
  }
}
