#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference_tape.h"
#include "terrace/model/config.h"

namespace terrace::model::reference {

/// Whole models in plain loops, written from the papers and Hugging Face's layouts and sharing
/// nothing with the code under test but `Config`. `Real` is double, or `Var` for gradients.
///
/// Source: Touvron et al. 2023 (Llama: RMSNorm, rotary positions by halves, grouped queries,
/// SwiGLU); Radford et al. 2019 (GPT-2: LayerNorm, learned positions, GELU in its tanh form).
template <class Real>
class ReferenceModel {
 public:
  using Vector = std::vector<Real>;
  using Weights = std::map<std::string, Vector>;

  /// `weights` outlives the model.
  ReferenceModel(const Config& config, const Weights& weights)
      : config_(config),
        weights_(weights),
        gpt2_(config.architecture == Architecture::gpt2),
        c_(size(config.hidden_size)),
        f_(size(config.intermediate_size)),
        h_(size(config.num_attention_heads)),
        g_(size(config.num_key_value_heads)),
        d_(size(config.head_dim)) {}

  /// Logits of each position of one row of tokens: [T][V].
  [[nodiscard]] std::vector<Vector> logits(const std::vector<std::int32_t>& tokens) const {
    std::vector<Vector> stream = embed(tokens);
    for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      const std::string prefix =
          (gpt2_ ? "transformer.h." : "model.layers.") + std::to_string(layer) + ".";
      gpt2_ ? gpt2_block(prefix, stream) : llama_block(prefix, stream);
    }
    const std::string table = gpt2_ ? "transformer.wte.weight" : "model.embed_tokens.weight";
    const Vector& vocabulary = at(config_.tie_word_embeddings ? table : "lm_head.weight");
    std::vector<Vector> result;
    for (const Vector& x : stream) {
      result.push_back(linear(normed(gpt2_ ? "transformer.ln_f" : "model.norm", x), vocabulary));
    }
    return result;
  }

  /// Sum of the negative log likelihoods of the targets that are not -1, in nats.
  [[nodiscard]] Real loss(const std::vector<std::int32_t>& tokens,
                          const std::vector<std::int32_t>& targets) const {
    const std::vector<Vector> all = logits(tokens);
    Real sum(0.0);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      if (targets[t] >= 0) sum = sum + nll(all[t], size(targets[t]));
    }
    return sum;
  }

 private:
  static std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

  const Vector& at(const std::string& name) const {
    const auto found = weights_.find(name);
    if (found == weights_.end()) throw std::out_of_range("the reference lacks " + name);
    return found->second;
  }

  std::vector<Vector> embed(const std::vector<std::int32_t>& tokens) const {
    const Vector& table = at(gpt2_ ? "transformer.wte.weight" : "model.embed_tokens.weight");
    std::vector<Vector> stream;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      Vector x;
      for (std::size_t i = 0; i < c_; ++i) {
        const Real& value = table.at(size(tokens[t]) * c_ + i);
        x.push_back(gpt2_ ? value + at("transformer.wpe.weight").at(t * c_ + i) : value);
      }
      stream.push_back(x);
    }
    return stream;
  }

  void llama_block(const std::string& prefix, std::vector<Vector>& stream) const {
    std::vector<Vector> q, k, v;
    for (std::size_t t = 0; t < stream.size(); ++t) {
      const Vector x = normed(prefix + "input_layernorm", stream[t]);
      q.push_back(rotated(linear(x, at(prefix + "self_attn.q_proj.weight")), t));
      k.push_back(rotated(linear(x, at(prefix + "self_attn.k_proj.weight")), t));
      v.push_back(linear(x, at(prefix + "self_attn.v_proj.weight")));
    }
    for (std::size_t t = 0; t < stream.size(); ++t) {
      add(stream[t], linear(attended(q, k, v, t), at(prefix + "self_attn.o_proj.weight")));
      const Vector x = normed(prefix + "post_attention_layernorm", stream[t]);
      const Vector gate = linear(x, at(prefix + "mlp.gate_proj.weight"));
      Vector hidden = linear(x, at(prefix + "mlp.up_proj.weight"));
      for (std::size_t i = 0; i < f_; ++i) {
        hidden[i] = hidden[i] * (gate[i] / (Real(1.0) + exp(Real(0.0) - gate[i])));
      }
      add(stream[t], linear(hidden, at(prefix + "mlp.down_proj.weight")));
    }
  }

  void gpt2_block(const std::string& prefix, std::vector<Vector>& stream) const {
    std::vector<Vector> q, k, v;
    for (const Vector& row : stream) {
      const Vector all = conv1d(prefix + "attn.c_attn", normed(prefix + "ln_1", row), 3 * c_);
      const auto third = [&](std::size_t i) {
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(i * c_);
        return Vector(first, first + static_cast<std::ptrdiff_t>(c_));
      };
      q.push_back(third(0));
      k.push_back(third(1));
      v.push_back(third(2));
    }
    for (std::size_t t = 0; t < stream.size(); ++t) {
      add(stream[t], conv1d(prefix + "attn.c_proj", attended(q, k, v, t), c_));
      Vector hidden = conv1d(prefix + "mlp.c_fc", normed(prefix + "ln_2", stream[t]), f_);
      for (Real& x : hidden) {
        const Real inner = Real(std::sqrt(2 / M_PI)) * (x + Real(0.044715) * x * x * x);
        x = Real(0.5) * x * (Real(1.0) + tanh(inner));
      }
      add(stream[t], conv1d(prefix + "mlp.c_proj", hidden, c_));
    }
  }

  static void add(Vector& target, const Vector& values) {
    for (std::size_t i = 0; i < target.size(); ++i) target[i] = target[i] + values[i];
  }

  /// weight [out, in].
  static Vector linear(const Vector& x, const Vector& weight) {
    Vector y;
    for (std::size_t o = 0; o < weight.size() / x.size(); ++o) {
      y.push_back(dot(x.data(), 1, weight.data() + o * x.size(), 1, x.size()));
    }
    return y;
  }

  /// weight [in, out], bias [out].
  Vector conv1d(const std::string& name, const Vector& x, std::size_t outputs) const {
    const Vector &weight = at(name + ".weight"), &bias = at(name + ".bias");
    Vector y;
    for (std::size_t o = 0; o < outputs; ++o) {
      y.push_back(dot(x.data(), 1, weight.data() + o, outputs, x.size()) + bias[o]);
    }
    return y;
  }

  Vector normed(const std::string& name, const Vector& x) const {
    const Real count(static_cast<double>(c_));
    Vector centred = x;
    if (gpt2_) {
      Real sum(0.0);
      for (const Real& value : x) sum = sum + value;
      for (Real& value : centred) value = value - sum / count;
    }
    const Real square = dot(centred.data(), 1, centred.data(), 1, c_) / count;
    const Real deviation = sqrt(square + Real(config_.norm_eps));
    Vector y;
    for (std::size_t i = 0; i < c_; ++i) {
      Real value = centred[i] / deviation * at(name + ".weight")[i];
      y.push_back(gpt2_ ? value + at(name + ".bias")[i] : value);
    }
    return y;
  }

  Vector rotated(const Vector& x, std::size_t position) const {
    Vector y = x;
    const std::size_t half = d_ / 2;
    for (std::size_t head = 0; head < x.size() / d_; ++head) {
      for (std::size_t i = 0; i < half; ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(d_);
        const double angle = static_cast<double>(position) * std::pow(config_.rope_theta, exponent);
        const Real cosine(std::cos(angle)), sine(std::sin(angle));
        const Real &a = x[head * d_ + i], &b = x[head * d_ + i + half];
        y[head * d_ + i] = a * cosine - b * sine;
        y[head * d_ + i + half] = b * cosine + a * sine;
      }
    }
    return y;
  }

  /// What position t takes from positions 0 to t.
  Vector attended(const std::vector<Vector>& q, const std::vector<Vector>& k,
                  const std::vector<Vector>& v, std::size_t t) const {
    Vector result;
    const Real scale(1 / std::sqrt(static_cast<double>(d_)));
    for (std::size_t head = 0; head < h_; ++head) {
      const std::size_t shared = head / (h_ / g_) * d_;
      Vector weight;
      Real total(0.0);
      for (std::size_t s = 0; s <= t; ++s) {
        weight.push_back(exp(scale * dot(&q[t][head * d_], 1, &k[s][shared], 1, d_)));
        total = total + weight.back();
      }
      for (std::size_t i = 0; i < d_; ++i) {
        Real sum(0.0);
        for (std::size_t s = 0; s <= t; ++s) sum = sum + weight[s] * v[s][shared + i];
        result.push_back(sum / total);
      }
    }
    return result;
  }

  /// Plain exponentials: the tests' logits are far from overflowing a double.
  static Real nll(const Vector& logits, std::size_t target) {
    Real total(0.0);
    for (const Real& logit : logits) total = total + exp(logit);
    return log(total) - logits[target];
  }

  // Both kinds of `Real`, for members would hide the functions of the namespaces.
  static double exp(double x) { return std::exp(x); }
  static double log(double x) { return std::log(x); }
  static double sqrt(double x) { return std::sqrt(x); }
  static double tanh(double x) { return std::tanh(x); }
  static Var exp(const Var& x) { return reference::exp(x); }
  static Var log(const Var& x) { return reference::log(x); }
  static Var sqrt(const Var& x) { return reference::sqrt(x); }
  static Var tanh(const Var& x) { return reference::tanh(x); }

  Config config_;
  const Weights& weights_;
  bool gpt2_;
  std::size_t c_, f_, h_, g_, d_;
};

/// A batch's loss and its gradient by every weight.
struct LossAndGradients {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
};

/// `tokens` and `targets`: [rows][T].
inline LossAndGradients differentiate(const Config& config,
                                      const std::map<std::string, std::vector<double>>& weights,
                                      const std::vector<std::vector<std::int32_t>>& tokens,
                                      const std::vector<std::vector<std::int32_t>>& targets) {
  LossAndGradients result;
  for (const auto& [name, values] : weights) {
    result.gradients[name].assign(values.size(), 0.0);
  }
  for (std::size_t row = 0; row < tokens.size(); ++row) {  // a tape a row bounds its memory
    Tape tape;
    ReferenceModel<Var>::Weights variables;
    for (const auto& [name, values] : weights) {
      for (const double value : values) variables[name].push_back(tape.variable(value));
    }
    const Var loss = ReferenceModel<Var>(config, variables).loss(tokens[row], targets[row]);
    result.loss += loss.value;
    const std::vector<double> adjoints = tape.adjoints(loss);
    for (const auto& [name, vars] : variables) {
      std::vector<double>& sums = result.gradients[name];
      for (std::size_t i = 0; i < vars.size(); ++i) sums[i] += adjoints[vars[i].node];
    }
  }
  return result;
}

}  // namespace terrace::model::reference
