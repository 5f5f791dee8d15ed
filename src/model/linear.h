#pragma once

#include <cstdint>
#include <span>

#include "terrace/kernels/op_args.h"
#include "terrace/model/model.h"
#include "work.h"

namespace terrace::model {

/// Rows of activations: `stride` elements from one row to the next, 0 meaning dense.
struct Rows {
  kernels::View view;
  std::int64_t stride = 0;
};

/// How a weight lies in memory: as torch's Linear has it, or as GPT-2's Conv1D.
enum class WeightLayout { out_in, in_out };

/// y = x w + b for `rows` rows of activations, and its gradients.
struct Linear {
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  WeightLayout layout = WeightLayout::out_in;

  struct Forward {
    Rows x;                  ///< [rows, inputs]
    kernels::View weight;    ///< [outputs, inputs] or [inputs, outputs]
    kernels::View bias;      ///< optional, [outputs]
    kernels::View residual;  ///< optional, added to the result; [rows, outputs] with y's stride
    Rows y;                  ///< [rows, outputs]
  };
  void forward(Work& work, const Forward& args) const;

  /// d_x [rows, inputs] from d_y [rows, outputs]. Only an f32 d_x can be added to.
  void backward_input(Work& work, Rows d_y, kernels::View weight, Rows d_x,
                      bool accumulate = false) const;
  void backward_weight(Work& work, Rows d_y, Rows x, const GradientView& d_weight) const;
  void backward_bias(Work& work, Rows d_y, const GradientView& d_bias) const;
};

/// Linears ([outputs, inputs], no bias) of one input whose results stand side by side in a row, as
/// queries, keys and values do. Weights that all follow each other in memory without a gap are
/// taken as one matrix, and so are gradients: a larger product is faster, and d_x is not read back
/// to be added to. Otherwise each has a product of its own, which may round d_x in another order.
struct SideBySide {
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::span<const std::int64_t> outputs;  ///< of each linear; their sum is the width of y

  void forward(Work& work, Rows x, std::span<const kernels::View> weights, Rows y) const;
  /// d_x is f32.
  void backward_input(Work& work, Rows d_y, std::span<const kernels::View> weights, Rows d_x) const;
  void backward_weight(Work& work, Rows d_y, Rows x, std::span<const GradientView> d_weights) const;
};

}  // namespace terrace::model
