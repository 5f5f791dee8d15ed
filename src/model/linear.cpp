#include "linear.h"

namespace terrace::model {

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

}  // namespace terrace::model
