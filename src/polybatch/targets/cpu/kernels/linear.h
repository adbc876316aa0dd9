// Running one linear, or one for each expert, over a team of threads.
//
// Rows are sorted by expert, so that each expert's weight is read once. Every thread takes the same share of every expert's
// units, which balances any routing.
#pragma once

#include <algorithm>
#include <vector>

#include "linear_panels.h"

namespace polybatch {

// Rows by expert: rows[begin[e] .. begin[e + 1] - 1] are those of expert e.
class RowsByExpert {
 public:
  const int64_t* rows = nullptr;
  const int64_t* begin = nullptr;

  void sort(const int64_t* expert_index, int64_t count, int64_t experts) {
    int64_t* sorted = rows_.get<int64_t>(count);
    int64_t* at = begin_.get<int64_t>(experts + 2);  // at[e + 1] moves from the begin to the end of e
    std::fill_n(at, experts + 2, 0);
    for (int64_t i = 0; i < count; ++i) ++at[expert_index[i] + 2];
    for (int64_t e = 0; e < experts; ++e) at[e + 2] += at[e + 1];
    for (int64_t i = 0; i < count; ++i) sorted[at[expert_index[i] + 1]++] = i;
    rows = sorted, begin = at;
  }

 private:
  Scratch rows_, begin_;
};

template <class Format>
class LinearCall {
 public:
  // expert_index null: one weight for all rows.
  void run(const PolybatchLinear& call, const int64_t* expert_index, int64_t experts) {
    call_ = &call;
    products_.clear();
    if (expert_index == nullptr) {
      add(nullptr, 0, call.rows, 0);
    } else {
      sorted_.sort(expert_index, call.rows, experts);
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t begin = sorted_.begin[e], rows = sorted_.begin[e + 1] - begin;
        if (rows > 0) add(sorted_.rows + begin, begin, rows, e);
      }
    }
    run_products();
  }

 private:
  using Input = typename Format::Input;
  using Out = typename Format::Out;
  using Weight = typename Format::Dot::Weight;

  // The rows that `order` names, or all; what is quantized for them lies at first_row.
  void add(const int64_t* order, int64_t first_row, int64_t rows, int64_t expert) {
    const PolybatchLinear& call = *call_;
    const int64_t n = call.out_features;
    const RowNorm norm{call.norm_weight, call.norm_bias, call.norm_eps};
    Input* const normalized = norm.weight ? normalized_.get<Input>(call.rows * call.in_features) : nullptr;
    const MatrixRows<Input> x(call.x, call.x_row_stride, order, call.in_features, norm, normalized);
    float* const y_float = call.float_result ? static_cast<float*>(call.y) : nullptr;
    LinearOutput<Out> out{static_cast<Out*>(call.y), y_float, order, n, call.bias ? call.bias + expert * n : nullptr,
                          call.scale ? call.scale + expert * n : nullptr, nullptr, call.gated != 0,
                          static_cast<const Out*>(call.residual), call.residual_row_stride};
    if constexpr (std::is_same_v<typename Format::Rows, MatrixRows<Input>>) {
      products_.push_back({{x, rows}, out});
    } else {
      const int64_t padded = Format::Rows::padded(call.in_features);
      float* scales = scales_.get<float>(call.rows) + first_row;
      constexpr int kParts = Format::Rows::kParts;
      uint8_t* bytes = bytes_.get<uint8_t>(call.rows * kParts * padded) + first_row * kParts * padded;
      out.row_scale = scales;
      products_.push_back({{{x, bytes, scales}, rows}, out});
    }
    Product<Format>& p = products_.back();
    p.weight = static_cast<const Weight*>(call.weight) + expert * panels_of(n) * p.panel_elements();
  }

  void run_products() {
    constexpr int64_t kAloneStaging = 1 << 13;  // elements that one thread moves sooner than threads meet
    int64_t elements = 0, staging = 0, units = 0;
    for (const Product<Format>& p : products_) elements += p.x.staged_elements();
    auto* memory = staged_.get<typename Format::Dot::Element>(elements);
    for (Product<Format>& p : products_) {
      p.x.stage_into(memory);
      memory += p.x.staged_elements();
      staging += p.x.staging_work();
      units = std::max(units, p.units());
    }
    const int threads = threads_for(units, call_->rows * call_->in_features * call_->out_features);
    const bool together = threads > 1 && staging > kAloneStaging;
    if (!together)
      for (const Product<Format>& p : products_) p.x.stage(0, 1);
    run_team(threads, [&](int thread, int team) {
      if (together) {
        for (const Product<Format>& p : products_) p.x.stage(thread, team);
        meet(team);
      }
      for (const Product<Format>& p : products_) run_share(p, thread, team);
    });
  }

  void run_share(const Product<Format>& p, int thread, int team) const {
    const Range units = share_of(p.units(), thread, team);
    for (int64_t unit = units.begin; unit < units.end; ++unit)
      run_unit(p, unit / p.x.tiles.count, unit % p.x.tiles.count);
  }

  const PolybatchLinear* call_ = nullptr;
  std::vector<Product<Format>> products_;
  RowsByExpert sorted_;
  Scratch normalized_, staged_, bytes_, scales_;
};

template <class Format>
void run_linear(const PolybatchLinear& call, const int64_t* expert_index, int64_t experts) {
  static thread_local LinearCall<Format> kept;  // its memory serves the next call
  kept.run(call, expert_index, experts);
}

// One translation unit each: they take long to compile.
extern template void run_linear<FloatFormat<DotF32>>(const PolybatchLinear&, const int64_t*, int64_t);
extern template void run_linear<FloatFormat<DotF32Narrow>>(const PolybatchLinear&, const int64_t*, int64_t);
extern template void run_linear<FloatFormat<DotBF16>>(const PolybatchLinear&, const int64_t*, int64_t);
extern template void run_linear<Int8Format<float, 1>>(const PolybatchLinear&, const int64_t*, int64_t);
extern template void run_linear<Int8Format<float, 3>>(const PolybatchLinear&, const int64_t*, int64_t);
extern template void run_linear<Int8Format<BFloat16, 1>>(const PolybatchLinear&, const int64_t*, int64_t);
extern template void run_linear<Int8Format<BFloat16, 2>>(const PolybatchLinear&, const int64_t*, int64_t);

}  // namespace polybatch
