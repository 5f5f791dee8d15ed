#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/parsed_json.h"
#include "rig.h"
#include "shapes.h"

// Losses and gradients of Hugging Face's own models, from parameters of the same names, layouts and
// values. tests/golden/make_huggingface_models.py made the numbers and has the values' formula.

namespace terrace::model {
namespace {

/// As derived in gradient_test.cpp for f32, twice: Hugging Face's norms and rotations compute in
/// FP32 even within a double-precision model.
constexpr double kTolerance = 2 * 1.3e-5;

std::uint32_t mixed(std::uint32_t parameter, std::uint32_t element) {
  std::uint32_t h = element + (parameter << 20);
  h = (h ^ (h >> 16)) * 0x7feb352dU;
  h = (h ^ (h >> 15)) * 0x846ca68bU;
  return h ^ (h >> 16);
}

std::vector<double> values(std::size_t parameter, std::size_t count, double centre, double width) {
  std::vector<double> result;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits =
        mixed(static_cast<std::uint32_t>(parameter), static_cast<std::uint32_t>(i));
    result.push_back(centre + width * (static_cast<double>(bits % 1025) - 512) / 512);
  }
  return result;
}

/// Place of the parameter in the golden file, which keys the formula.
std::size_t place_of(const nlohmann::json& tensors, const ParameterSpec& parameter) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].at("name") != parameter.name) continue;
    EXPECT_EQ(tensors[i].at("shape").get<std::vector<std::int64_t>>(), parameter.shape);
    return i;
  }
  ADD_FAILURE() << "Hugging Face's model has no " << parameter.name;
  return 0;
}

std::vector<std::vector<float>> weights_for(const Model& model, const nlohmann::json& tensors) {
  std::vector<std::vector<float>> weights;
  for (const ParameterSpec& parameter : model.parameters()) {
    const double centre = parameter.initial == Initial::ones ? 1 : 0;
    const auto exact = values(place_of(tensors, parameter),
                              static_cast<std::size_t>(parameter.elements()), centre, 0.5);
    weights.emplace_back(exact.begin(), exact.end());
  }
  return weights;
}

void expect_agreement(const Config& config, const std::string& name) {
  SCOPED_TRACE(name);
  const nlohmann::json golden =
      testing::read_json(TERRACE_GOLDEN "/huggingface_models.json").at("models").at(name);
  const HostBatch batch{golden.at("tokens").get<std::vector<std::vector<std::int32_t>>>(),
                        golden.at("targets").get<std::vector<std::vector<std::int32_t>>>()};
  const nlohmann::json& tensors = golden.at("gradients");
  Rig rig(config, DType::f32, batch.shape());
  ASSERT_EQ(tensors.size(), rig.model().parameters().size());
  rig.set_weights(weights_for(rig.model(), tensors));
  EXPECT_NEAR(rig.step(batch) / golden.at("loss").get<double>(), 1, kTolerance);

  double longest = 0;
  for (const auto& tensor : tensors) longest = std::max(longest, tensor.at("length").get<double>());
  const auto gradients = rig.gradients();
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    const ParameterSpec& parameter = rig.model().parameters()[p];
    const std::size_t place = place_of(tensors, parameter);
    const std::vector<double> direction = values(place + 500, gradients[p].size(), 0, 1);
    double squares = 0, product = 0, direction_squares = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      const double g = gradients[p][i];
      squares += g * g;
      product += g * direction[i];
      direction_squares += direction[i] * direction[i];
    }
    const double length = tensors[place].at("length").get<double>();
    const double bound = kTolerance * std::max(length, 0.1 * longest);
    EXPECT_NEAR(std::sqrt(squares), length, bound) << parameter.name;
    EXPECT_NEAR(product, tensors[place].at("product").get<double>(),
                bound * std::sqrt(direction_squares))
        << parameter.name;
  }
}

TEST(HuggingFace, llama_has_the_same_loss_and_gradients) {
  expect_agreement(awkward_llama(false), "llama");
  expect_agreement(awkward_llama(true), "llama_tied");
}

TEST(HuggingFace, gpt2_has_the_same_loss_and_gradients) {
  expect_agreement(awkward_gpt2(false), "gpt2");
  expect_agreement(awkward_gpt2(true), "gpt2_tied");
}

}  // namespace
}  // namespace terrace::model
