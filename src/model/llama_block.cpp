#include <array>

#include "linear.h"
#include "unit.h"

// Llama: x1 = x + attention(rms_norm(x)), y = x1 + swiglu(rms_norm(x1)), without biases.
// Source: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023,
// section 2.2; layout and names as in Hugging Face's LlamaForCausalLM.
//
// Legend: N tokens, C hidden size, F intermediate size, Q = H*D and K = G*D widths of the queries
// and of the keys, W = Q + 2 K width of the packed three.

namespace terrace::model {
namespace {

using kernels::NormKind;
using kernels::View;

enum Weight : std::size_t { kNorm1, kQuery, kKey, kValue, kOutput, kNorm2, kGate, kUp, kDown };

class LlamaBlock final : public Unit {
 public:
  LlamaBlock(const Config& config, DType compute)
      : config_(config),
        compute_(compute),
        c_(config.hidden_size),
        f_(config.intermediate_size),
        q_(config.num_attention_heads * config.head_dim),
        k_(config.num_key_value_heads * config.head_dim),
        w_(q_ + 2 * k_),
        qkv_outputs_{q_, k_, k_},
        gate_up_outputs_{f_, f_} {}

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
    device::Pointer statistics1;  ///< f32 [N]
    device::Pointer statistics2;  ///< f32 [N]
    device::Pointer log_sum_exp;  ///< f32 [B, H, T]
    View h1;                      ///< [N, C], the first norm's output
    View qkv;                     ///< [N, W], after the rotation
    View attention;               ///< [N, Q]
    View x1;                      ///< [N, C], the residual stream between the halves
    View h2;                      ///< [N, C], the second norm's output
    View gate_up;                 ///< [N, 2 F]; backward leaves the gradients there
  };

  Saved carve_saved(Carver& carver, BatchShape shape) const {
    const std::int64_t n = shape.tokens();
    return {.statistics1 = carver.view(DType::f32, n).data,
            .statistics2 = carver.view(DType::f32, n).data,
            .log_sum_exp = carver.view(DType::f32, n * config_.num_attention_heads).data,
            .h1 = carver.view(compute_, n * c_),
            .qkv = carver.view(compute_, n * w_),
            .attention = carver.view(compute_, n * q_),
            .x1 = carver.view(compute_, n * c_),
            .h2 = carver.view(compute_, n * c_),
            .gate_up = carver.view(compute_, n * 2 * f_)};
  }

  [[nodiscard]] Linear linear(BatchShape shape, std::int64_t inputs, std::int64_t outputs) const {
    return {shape.tokens(), inputs, outputs, WeightLayout::out_in};
  }
  [[nodiscard]] SideBySide to_qkv(BatchShape shape) const {
    return {shape.tokens(), c_, qkv_outputs_};
  }
  [[nodiscard]] SideBySide widen(BatchShape shape) const {
    return {shape.tokens(), c_, gate_up_outputs_};
  }
  [[nodiscard]] kernels::NormArgs norm(BatchShape shape) const {
    return {.kind = NormKind::rms,
            .epsilon = static_cast<float>(config_.norm_eps),
            .rows = shape.tokens(),
            .columns = c_};
  }
  [[nodiscard]] kernels::RotaryArgs rotary(BatchShape shape, View qkv, bool inverse) const {
    return {.rows = shape.rows,
            .sequence = shape.sequence,
            .heads = config_.num_attention_heads + config_.num_key_value_heads,
            .head_size = config_.head_dim,
            .theta = static_cast<float>(config_.rope_theta),
            .inverse = inverse,
            .values = qkv,
            .stride = w_};
  }
  [[nodiscard]] kernels::SwigluArgs swiglu(BatchShape shape, const Saved& saved,
                                           View output) const {
    return {.rows = shape.tokens(),
            .columns = f_,
            .gate = saved.gate_up,
            .up = saved.gate_up.offset(f_),
            .stride = 2 * f_,
            .output = output};
  }

  void forward_attention(Work& work, const Pass& pass, const Saved& saved) const {
    const View x{pass.activations.input, compute_};
    kernels::NormArgs norm1 = norm(pass.shape);
    norm1.input = x;
    norm1.weight = pass.weights[kNorm1];
    norm1.output = saved.h1;
    norm1.statistics = saved.statistics1;
    work.norm_forward(norm1);

    to_qkv(pass.shape).forward(work, {saved.h1}, pass.weights.subspan(kQuery, 3), {saved.qkv, w_});
    work.rotary(rotary(pass.shape, saved.qkv, false));
    work.attention_forward(
        packed_attention(config_, pass.shape, saved.qkv, saved.attention, saved.log_sum_exp));

    linear(pass.shape, q_, c_)
        .forward(work, {.x = {saved.attention},
                        .weight = pass.weights[kOutput],
                        .residual = x,
                        .y = {saved.x1}});
  }

  void forward_mlp(Work& work, const Pass& pass, const Saved& saved) const {
    kernels::NormArgs norm2 = norm(pass.shape);
    norm2.input = saved.x1;
    norm2.weight = pass.weights[kNorm2];
    norm2.output = saved.h2;
    norm2.statistics = saved.statistics2;
    work.norm_forward(norm2);

    widen(pass.shape)
        .forward(work, {saved.h2}, pass.weights.subspan(kGate, 2), {saved.gate_up, 2 * f_});
    const View hidden = work.scratch().view(compute_, pass.shape.tokens() * f_);
    work.swiglu_forward(swiglu(pass.shape, saved, hidden));

    linear(pass.shape, f_, c_)
        .forward(work, {.x = {hidden},
                        .weight = pass.weights[kDown],
                        .residual = saved.x1,
                        .y = {{pass.activations.output, compute_}}});
  }

  /// d_boundary: from the gradient of y to that of x1.
  void backward_mlp(Work& work, const Pass& pass, const Saved& saved) const {
    const std::int64_t n = pass.shape.tokens();
    const std::uint64_t mark = work.scratch().used();
    const View d_y{pass.d_boundary, compute_};
    const View hidden = work.scratch().view(compute_, n * f_);  // [N, F], its gradient first
    const View d_h2 = work.scratch().view(DType::f32, n * c_);

    const Linear narrow = linear(pass.shape, f_, c_);
    narrow.backward_input(work, {d_y}, pass.weights[kDown], {hidden});
    work.swiglu_backward({.rows = n,
                          .columns = f_,
                          .gate = saved.gate_up,
                          .up = saved.gate_up.offset(f_),
                          .d_output = hidden,
                          .d_gate = saved.gate_up,
                          .d_up = saved.gate_up.offset(f_),
                          .stride = 2 * f_,
                          .output = hidden});
    narrow.backward_weight(work, {d_y}, {hidden}, pass.gradients[kDown]);

    const Rows d_gate_up{saved.gate_up, 2 * f_};
    widen(pass.shape)
        .backward_weight(work, d_gate_up, {saved.h2}, pass.gradients.subspan(kGate, 2));
    widen(pass.shape).backward_input(work, d_gate_up, pass.weights.subspan(kGate, 2), {d_h2});

    backward_norm(work, pass, {saved.x1, saved.statistics2, d_h2, kNorm2});
    work.scratch().rewind(mark);
  }

  /// d_boundary: from the gradient of x1 to that of x.
  void backward_attention(Work& work, const Pass& pass, const Saved& saved) const {
    const std::int64_t n = pass.shape.tokens();
    const View d_x1{pass.d_boundary, compute_};
    const View d_attention = work.scratch().view(compute_, n * q_);
    const View d_qkv = work.scratch().view(compute_, n * w_);
    const View d_h1 = work.scratch().view(DType::f32, n * c_);

    const Linear from_attention = linear(pass.shape, q_, c_);
    from_attention.backward_weight(work, {d_x1}, {saved.attention}, pass.gradients[kOutput]);
    from_attention.backward_input(work, {d_x1}, pass.weights[kOutput], {d_attention});
    work.attention_backward(packed_attention_backward(
        packed_attention(config_, pass.shape, saved.qkv, saved.attention, saved.log_sum_exp),
        d_attention, d_qkv));
    work.rotary(rotary(pass.shape, d_qkv, true));

    to_qkv(pass.shape)
        .backward_weight(work, {d_qkv, w_}, {saved.h1}, pass.gradients.subspan(kQuery, 3));
    to_qkv(pass.shape).backward_input(work, {d_qkv, w_}, pass.weights.subspan(kQuery, 3), {d_h1});

    const View x{pass.activations.input, compute_};
    backward_norm(work, pass, {x, saved.statistics1, d_h1, kNorm1});
  }

  struct NormBackward {
    View input;
    device::Pointer statistics;
    View d_output;
    Weight weight;
  };
  /// Adds the gradient through the norm to d_boundary, which the residual stream carries past it.
  void backward_norm(Work& work, const Pass& pass, const NormBackward& norm) const {
    const View d_stream{pass.d_boundary, compute_};
    work.norm_backward({.kind = NormKind::rms,
                        .rows = pass.shape.tokens(),
                        .columns = c_,
                        .input = norm.input,
                        .weight = pass.weights[norm.weight],
                        .statistics = norm.statistics,
                        .d_output = norm.d_output,
                        .d_residual = d_stream,
                        .d_input = d_stream,
                        .d_weight = pass.gradients[norm.weight].values,
                        .accumulate_weight = pass.gradients[norm.weight].accumulate});
  }

  Config config_;
  DType compute_;
  std::int64_t c_, f_, q_, k_, w_;
  std::array<std::int64_t, 3> qkv_outputs_;
  std::array<std::int64_t, 2> gate_up_outputs_;
};

}  // namespace

std::unique_ptr<Unit> make_llama_block(const Config& config, DType compute) {
  return std::make_unique<LlamaBlock>(config, compute);
}

}  // namespace terrace::model
