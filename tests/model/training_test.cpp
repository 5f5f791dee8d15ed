#include <gtest/gtest.h>

#include <cmath>

#include "rig.h"
#include "shapes.h"

namespace terrace::model {
namespace {

/// Adam in plain loops, so that this test needs no other layer.
class Adam {
 public:
  explicit Adam(std::vector<std::vector<float>> weights) : weights_(std::move(weights)) {
    for (const auto& tensor : weights_) {
      m_.emplace_back(tensor.size(), 0.0);
      v_.emplace_back(tensor.size(), 0.0);
    }
  }
  const std::vector<std::vector<float>>& update(const std::vector<std::vector<float>>& gradients,
                                                double learning_rate) {
    ++step_;
    for (std::size_t p = 0; p < weights_.size(); ++p) {
      for (std::size_t i = 0; i < weights_[p].size(); ++i) {
        const double g = gradients[p][i];
        double &m = m_[p][i], &v = v_[p][i];
        m = 0.9 * m + 0.1 * g;
        v = 0.99 * v + 0.01 * g * g;
        const double m_hat = m / (1 - std::pow(0.9, step_));
        const double v_hat = v / (1 - std::pow(0.99, step_));
        weights_[p][i] -= static_cast<float>(learning_rate * m_hat / (std::sqrt(v_hat) + 1e-8));
      }
    }
    return weights_;
  }

 private:
  std::vector<std::vector<float>> weights_;
  std::vector<std::vector<double>> m_, v_;
  int step_ = 0;
};

/// Trains on one batch from the model's own initial values; the mean loss at the end.
double loss_after_overfitting(const Config& config, DType dtype) {
  constexpr int kSteps = 150;
  const BatchShape shape{2, 16};
  Rig rig(config, dtype, shape);
  std::vector<std::vector<float>> weights;
  for (std::size_t p = 0; p < rig.model().parameters().size(); ++p) {
    weights.emplace_back(static_cast<std::size_t>(rig.model().parameters()[p].elements()));
    rig.model().initial_values(static_cast<int>(p), 42, 0, weights.back());
  }
  rig.set_weights(weights);
  Adam adam(weights);
  const HostBatch batch = random_batch(shape, config.vocab_size, 9);
  double targets = 0;
  for (const auto& row : batch.targets) {
    for (const std::int32_t target : row) targets += target >= 0 ? 1 : 0;
  }
  const double first = rig.loss(batch) / targets;
  // An untrained model guesses evenly.
  EXPECT_NEAR(first, std::log(static_cast<double>(config.vocab_size)), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    rig.step(batch, {.recompute = true, .loss_scale = static_cast<float>(1 / targets)});
    rig.set_weights(adam.update(rig.gradients(), 1e-2));
  }
  return rig.loss(batch) / targets;
}

Config wider(Config config) {
  config.vocab_size = 80;
  config.hidden_size = 32;
  config.head_dim = config.architecture == Architecture::gpt2 ? 8 : 6;
  config.num_attention_heads = config.architecture == Architecture::gpt2 ? 4 : 6;
  config.num_key_value_heads = config.architecture == Architecture::gpt2 ? 4 : 3;
  config.intermediate_size = 64;
  return config;
}

TEST(Training, llama_overfits_one_batch) {
  EXPECT_LT(loss_after_overfitting(wider(awkward_llama(false)), DType::f32), 0.01);
  EXPECT_LT(loss_after_overfitting(wider(awkward_llama(true)), DType::bf16), 0.01);
}

TEST(Training, gpt2_overfits_one_batch) {
  EXPECT_LT(loss_after_overfitting(wider(awkward_gpt2(true)), DType::f32), 0.01);
  EXPECT_LT(loss_after_overfitting(wider(awkward_gpt2(false)), DType::bf16), 0.01);
}

}  // namespace
}  // namespace terrace::model
