// packed_expert_linear: row i of y = x[i] @ W[expert_index[i]]^T (+ bias[expert_index[i]]).
//
// Rows are sorted by expert, so that each expert's weight is read once; the arithmetic of a row is that of packed_linear
// (linear_panels.h). Every thread takes the same share of every expert's units, which balances any routing.
#include <vector>

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
  static thread_local std::vector<Product<Dot>> kept_products;
  Sorted& sorted = kept;
  std::vector<Product<Dot>>& products = kept_products;
  sorted.sort(call.expert_index, all.rows, call.experts);
  products.clear();
  int64_t staged = 0;
  for (int64_t e = 0; e < call.experts; ++e) {
    const int64_t begin = sorted.begin[e], rows = sorted.begin[e + 1] - begin;
    if (rows == 0) continue;
    const OrderedRows<Element> x{static_cast<const Element*>(all.x), all.x_row_stride, sorted.rows + begin};
    products.push_back({{x, rows, all.in_features},
                        nullptr,
                        all.bias ? all.bias + e * all.out_features : nullptr,
                        static_cast<Element*>(all.y),
                        sorted.rows + begin,
                        all.out_features});
    Product<Dot>& p = products.back();
    p.weight = static_cast<const Element*>(all.weight) + e * panels_of(all.out_features) * p.panel_elements();
    staged += p.x.staged_elements();
  }
  Element* memory = sorted.x.get<Element>(staged);
  for (Product<Dot>& p : products) {
    p.x.stage_into(memory);
    memory += p.x.staged_elements();
  }
  const int64_t work = all.rows * all.in_features * all.out_features;
  run_team(threads_for(panels_of(all.out_features), work), [&](int thread, int team) {
    for (const Product<Dot>& p : products) p.x.stage(thread, team);
    meet(team);
    for (const Product<Dot>& p : products) run_units(p, share_of(p.units(), thread, team));
  });
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
