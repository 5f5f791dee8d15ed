#include "linear.h"
#include "unit.h"

// GPT-2: x1 = x + attention(layer_norm(x)), y = x1 + gelu_mlp(layer_norm(x1)), with biases; weights
// lie [in, out].
// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3;
// layout and names as in Hugging Face's GPT2LMHeadModel.
//
// Legend: N tokens, C hidden size, F intermediate size.

namespace terrace::model {
namespace {

using kernels::NormKind;
using kernels::View;

enum Weight : std::size_t {
  kNorm1Weight,
  kNorm1Bias,
  kQkvWeight,
  kQkvBias,
  kOutputWeight,
  kOutputBias,
  kNorm2Weight,
  kNorm2Bias,
  kWidenWeight,
  kWidenBias,
  kNarrowWeight,
  kNarrowBias
};

class Gpt2Block final : public Unit {
 public:
  Gpt2Block(const Config& config, DType compute)
      : config_(config), compute_(compute), c_(config.hidden_size), f_(config.intermediate_size) {}

  [[nodiscard]] std::uint64_t saved_bytes(BatchShape shape) const override {
    Carver carver(nowhere());
    carve_saved(carver, shape);
    return carver.peak();
  }

  void forward(Work& work, const Pass& pass) const override {
    Carver carver(pass.activations.saved);
    const Saved saved = carve_saved(carver, pass.shape);
    forward_attention(work, pass, saved);
    forward_mlp(work, pass, saved);
  }

  void backward(Work& work, const Pass& pass) const override {
    Carver carver(pass.activations.saved);
    const Saved saved = carve_saved(carver, pass.shape);
    backward_mlp(work, pass, saved);
    backward_attention(work, pass, saved);
  }

 private:
  struct Saved {
    device::Pointer statistics1;  ///< f32 [N, 2]
    device::Pointer statistics2;  ///< f32 [N, 2]
    device::Pointer log_sum_exp;  ///< f32 [B, H, T]
    View h1;                      ///< [N, C], the first norm's output
    View qkv;                     ///< [N, 3 C]
    View attention;               ///< [N, C]
    View x1;                      ///< [N, C], the residual stream between the halves
    View h2;                      ///< [N, C], the second norm's output
    View wide;                    ///< [N, F], before the GELU
  };

  Saved carve_saved(Carver& carver, BatchShape shape) const {
    const std::int64_t n = shape.tokens();
    return {.statistics1 = carver.view(DType::f32, 2 * n).data,
            .statistics2 = carver.view(DType::f32, 2 * n).data,
            .log_sum_exp = carver.view(DType::f32, n * config_.num_attention_heads).data,
            .h1 = carver.view(compute_, n * c_),
            .qkv = carver.view(compute_, n * 3 * c_),
            .attention = carver.view(compute_, n * c_),
            .x1 = carver.view(compute_, n * c_),
            .h2 = carver.view(compute_, n * c_),
            .wide = carver.view(compute_, n * f_)};
  }

  [[nodiscard]] Linear linear(BatchShape shape, std::int64_t inputs, std::int64_t outputs) const {
    return {shape.tokens(), inputs, outputs, WeightLayout::in_out};
  }

  struct Norm {
    View input;
    device::Pointer statistics;
    View result;  ///< the output, in backward its gradient
    Weight weight;
    Weight bias;
  };
  void forward_norm(Work& work, const Pass& pass, const Norm& norm) const {
    work.norm_forward({.kind = NormKind::layer,
                       .epsilon = static_cast<float>(config_.norm_eps),
                       .rows = pass.shape.tokens(),
                       .columns = c_,
                       .input = norm.input,
                       .weight = pass.weights[norm.weight],
                       .bias = pass.weights[norm.bias],
                       .output = norm.result,
                       .statistics = norm.statistics});
  }
  /// Adds the gradient through the norm to d_boundary, which the residual stream carries past it.
  void backward_norm(Work& work, const Pass& pass, const Norm& norm) const {
    const View d_stream{pass.d_boundary, compute_};
    work.norm_backward({.kind = NormKind::layer,
                        .rows = pass.shape.tokens(),
                        .columns = c_,
                        .input = norm.input,
                        .weight = pass.weights[norm.weight],
                        .statistics = norm.statistics,
                        .d_output = norm.result,
                        .d_residual = d_stream,
                        .d_input = d_stream,
                        .d_weight = pass.gradients[norm.weight].values,
                        .d_bias = pass.gradients[norm.bias].values,
                        .accumulate_weight = pass.gradients[norm.weight].accumulate,
                        .accumulate_bias = pass.gradients[norm.bias].accumulate});
  }

  void forward_attention(Work& work, const Pass& pass, const Saved& saved) const {
    const View x{pass.activations.input, compute_};
    forward_norm(work, pass, {x, saved.statistics1, saved.h1, kNorm1Weight, kNorm1Bias});
    linear(pass.shape, c_, 3 * c_)
        .forward(work, {.x = {saved.h1},
                        .weight = pass.weights[kQkvWeight],
                        .bias = pass.weights[kQkvBias],
                        .y = {saved.qkv}});
    work.attention_forward(
        packed_attention(config_, pass.shape, saved.qkv, saved.attention, saved.log_sum_exp));
    linear(pass.shape, c_, c_)
        .forward(work, {.x = {saved.attention},
                        .weight = pass.weights[kOutputWeight],
                        .bias = pass.weights[kOutputBias],
                        .residual = x,
                        .y = {saved.x1}});
  }

  void forward_mlp(Work& work, const Pass& pass, const Saved& saved) const {
    const std::int64_t n = pass.shape.tokens();
    forward_norm(work, pass, {saved.x1, saved.statistics2, saved.h2, kNorm2Weight, kNorm2Bias});
    linear(pass.shape, c_, f_)
        .forward(work, {.x = {saved.h2},
                        .weight = pass.weights[kWidenWeight],
                        .bias = pass.weights[kWidenBias],
                        .y = {saved.wide}});
    const View hidden = work.scratch().view(compute_, n * f_);
    work.gelu_forward({.count = n * f_, .input = saved.wide, .output = hidden});
    linear(pass.shape, f_, c_)
        .forward(work, {.x = {hidden},
                        .weight = pass.weights[kNarrowWeight],
                        .bias = pass.weights[kNarrowBias],
                        .residual = saved.x1,
                        .y = {{pass.activations.output, compute_}}});
  }

  /// d_boundary: from the gradient of y to that of x1.
  void backward_mlp(Work& work, const Pass& pass, const Saved& saved) const {
    const std::int64_t n = pass.shape.tokens();
    const std::uint64_t mark = work.scratch().used();
    const View d_y{pass.d_boundary, compute_};
    const View hidden = work.scratch().view(compute_, n * f_);
    const View d_wide = work.scratch().view(compute_, n * f_);  // first the gradient of `hidden`
    const View d_h2 = work.scratch().view(DType::f32, n * c_);

    const Linear narrow = linear(pass.shape, f_, c_), widen = linear(pass.shape, c_, f_);
    narrow.backward_input(work, {d_y}, pass.weights[kNarrowWeight], {d_wide});
    work.gelu_backward({.count = n * f_,
                        .input = saved.wide,
                        .d_output = d_wide,
                        .d_input = d_wide,
                        .output = hidden});
    narrow.backward_weight(work, {d_y}, {hidden}, pass.gradients[kNarrowWeight]);
    narrow.backward_bias(work, {d_y}, pass.gradients[kNarrowBias]);

    widen.backward_weight(work, {d_wide}, {saved.h2}, pass.gradients[kWidenWeight]);
    widen.backward_bias(work, {d_wide}, pass.gradients[kWidenBias]);
    widen.backward_input(work, {d_wide}, pass.weights[kWidenWeight], {d_h2});
    backward_norm(work, pass, {saved.x1, saved.statistics2, d_h2, kNorm2Weight, kNorm2Bias});
    work.scratch().rewind(mark);
  }

  /// d_boundary: from the gradient of x1 to that of x.
  void backward_attention(Work& work, const Pass& pass, const Saved& saved) const {
    const std::int64_t n = pass.shape.tokens();
    const View x{pass.activations.input, compute_}, d_x1{pass.d_boundary, compute_};
    const View d_attention = work.scratch().view(compute_, n * c_);
    const View d_qkv = work.scratch().view(compute_, n * 3 * c_);
    const View d_h1 = work.scratch().view(DType::f32, n * c_);

    const Linear from_attention = linear(pass.shape, c_, c_);
    from_attention.backward_weight(work, {d_x1}, {saved.attention}, pass.gradients[kOutputWeight]);
    from_attention.backward_bias(work, {d_x1}, pass.gradients[kOutputBias]);
    from_attention.backward_input(work, {d_x1}, pass.weights[kOutputWeight], {d_attention});
    work.attention_backward(packed_attention_backward(
        packed_attention(config_, pass.shape, saved.qkv, saved.attention, saved.log_sum_exp),
        d_attention, d_qkv));

    const Linear to_qkv = linear(pass.shape, c_, 3 * c_);
    to_qkv.backward_weight(work, {d_qkv}, {saved.h1}, pass.gradients[kQkvWeight]);
    to_qkv.backward_bias(work, {d_qkv}, pass.gradients[kQkvBias]);
    to_qkv.backward_input(work, {d_qkv}, pass.weights[kQkvWeight], {d_h1});
    backward_norm(work, pass, {x, saved.statistics1, d_h1, kNorm1Weight, kNorm1Bias});
  }

  Config config_;
  DType compute_;
  std::int64_t c_, f_;
};

}  // namespace

std::unique_ptr<Unit> make_gpt2_block(const Config& config, DType compute) {
  return std::make_unique<Gpt2Block>(config, compute);
}

}  // namespace terrace::model
