#include "linear.h"

#include <numeric>

namespace terrace::model {
namespace {

bool follows(const SideBySide& linears, std::size_t i, const kernels::View& weight,
             const kernels::View& next) {
  return weight.offset(linears.outputs[i] * linears.inputs).data == next.data;
}

/// Whether the weights are one matrix.
bool joined(const SideBySide& linears, std::span<const kernels::View> weights) {
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    if (!follows(linears, i, weights[i], weights[i + 1])) return false;
  }
  return true;
}

bool joined(const SideBySide& linears, std::span<const GradientView> gradients) {
  for (std::size_t i = 0; i + 1 < gradients.size(); ++i) {
    const GradientView &gradient = gradients[i], &next = gradients[i + 1];
    if (gradient.accumulate != next.accumulate) return false;
    if (!follows(linears, i, gradient.values, next.values)) return false;
  }
  return true;
}

/// Calls `use(linear, i, column)` for each product: the linear, the index of its (first) weight and
/// where its part of a row of y begins.
template <class Use>
void for_each_product(const SideBySide& linears, bool as_one, Use use) {
  const auto& [rows, inputs, outputs] = linears;
  if (as_one) {
    const std::int64_t width = std::accumulate(outputs.begin(), outputs.end(), std::int64_t{0});
    use(Linear{rows, inputs, width}, 0, 0);
    return;
  }
  std::int64_t column = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    use(Linear{rows, inputs, outputs[i]}, i, column);
    column += outputs[i];
  }
}

Rows from_column(const Rows& rows, std::int64_t column) {
  return {rows.view.offset(column), rows.stride};
}

}  // namespace

void Linear::forward(Work& work, const Forward& args) const {
  work.matmul({.m = rows,
               .n = outputs,
               .k = inputs,
               .a = args.x.view,
               .a_stride = args.x.stride,
               .b = args.weight,
               .target = args.y.view,
               .target_stride = args.y.stride,
               .bias = args.bias,
               .residual = args.residual,
               .b_transposed = layout == WeightLayout::out_in});
}

void Linear::backward_input(Work& work, Rows d_y, kernels::View weight, Rows d_x,
                            bool accumulate) const {
  work.matmul({.m = rows,
               .n = inputs,
               .k = outputs,
               .a = d_y.view,
               .a_stride = d_y.stride,
               .b = weight,
               .target = d_x.view,
               .target_stride = d_x.stride,
               .b_transposed = layout == WeightLayout::in_out,
               .accumulate = accumulate});
}

void Linear::backward_weight(Work& work, Rows d_y, Rows x, const GradientView& d_weight) const {
  const bool out_in = layout == WeightLayout::out_in;
  const Rows& a = out_in ? d_y : x;
  const Rows& b = out_in ? x : d_y;
  work.matmul({.m = out_in ? outputs : inputs,
               .n = out_in ? inputs : outputs,
               .k = rows,
               .a = a.view,
               .a_stride = a.stride,
               .b = b.view,
               .b_stride = b.stride,
               .target = d_weight.values,
               .a_transposed = true,
               .accumulate = d_weight.accumulate});
}

void Linear::backward_bias(Work& work, Rows d_y, const GradientView& d_bias) const {
  work.bias_gradient({.rows = rows,
                      .columns = outputs,
                      .d_y = d_y.view,
                      .d_y_stride = d_y.stride,
                      .d_bias = d_bias.values,
                      .accumulate = d_bias.accumulate});
}

void SideBySide::forward(Work& work, Rows x, std::span<const kernels::View> weights, Rows y) const {
  for_each_product(
      *this, joined(*this, weights), [&](const Linear& linear, std::size_t i, std::int64_t column) {
        linear.forward(work, {.x = x, .weight = weights[i], .y = from_column(y, column)});
      });
}

void SideBySide::backward_input(Work& work, Rows d_y, std::span<const kernels::View> weights,
                                Rows d_x) const {
  for_each_product(*this, joined(*this, weights),
                   [&](const Linear& linear, std::size_t i, std::int64_t column) {
                     linear.backward_input(work, from_column(d_y, column), weights[i], d_x, i > 0);
                   });
}

void SideBySide::backward_weight(Work& work, Rows d_y, Rows x,
                                 std::span<const GradientView> d_weights) const {
  for_each_product(*this, joined(*this, d_weights),
                   [&](const Linear& linear, std::size_t i, std::int64_t column) {
                     linear.backward_weight(work, from_column(d_y, column), x, d_weights[i]);
                   });
}

}  // namespace terrace::model
