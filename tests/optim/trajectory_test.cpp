#include <gtest/gtest.h>

#include <random>

#include "core/parsed_json.h"
#include "optim/exact_trajectory.h"

namespace terrace::optim {
namespace {

constexpr OptimizerType kTypes[] = {OptimizerType::adamw, OptimizerType::adam,
                                    OptimizerType::adagrad};

double units_in_last_place(double error, double value) {
  return std::abs(error) / std::ldexp(1.0, std::ilogb(value) - 23);
}

TEST(Trajectory, stays_within_the_derived_bound_of_double_over_a_thousand_steps) {
  constexpr std::size_t kCount = 64;
  constexpr double kRate = 1e-3;
  constexpr double kDecay = 0.1;
  Workers workers(1);
  for (const OptimizerType type : kTypes) {
    SCOPED_TRACE(name_of(type));
    const OptimizerOptions options = OptimizerOptions::defaults_of(type);
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    std::vector<float> initial(kCount);
    for (float& value : initial) value = normal(random);
    PlainState state(options, initial);
    std::vector<ExactTrajectory> exact;
    for (const float value : initial) exact.emplace_back(options, kDecay, value);
    double worst_ulps = 0;
    for (std::int64_t step = 1; step <= 1000; ++step) {
      std::vector<float> gradient(kCount);
      // Scales over several powers of ten; a drift so that moments do not cancel out. With L2 the
      // worst case of an error of p grows by (1 + rate decay / |g|) a step, so |g| is not small.
      const int lowest = type == OptimizerType::adamw ? -6 : -1;
      for (std::size_t i = 0; i < kCount; ++i) {
        const int exponent = lowest + static_cast<int>(i) % (3 - lowest);
        gradient[i] = std::pow(10.0F, static_cast<float>(exponent)) * (normal(random) + 0.3F);
      }
      state.update(workers, gradient, {step, kRate, 1, kDecay});
      for (std::size_t i = 0; i < kCount; ++i) {
        exact[i].update(gradient[i], step, kRate);
        const double error = state.master()[i] - exact[i].value();
        ASSERT_LE(std::abs(error), exact[i].bound()) << "step " << step << ", parameter " << i;
        if (std::abs(exact[i].value()) > 0.05) {
          worst_ulps = std::max(worst_ulps, units_in_last_place(error, exact[i].value()));
        }
      }
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      // The bound itself says something: a thousandth of the distance of a thousand steps.
      EXPECT_LT(exact[i].bound(), 1e-3 * 1000 * kRate);
    }
    RecordProperty(std::string(name_of(type)) + "_worst_ulps", std::to_string(worst_ulps));
  }
}

TEST(Trajectory, follows_pytorch) {
  const auto golden = testing::read_json(TERRACE_GOLDEN "/optimizer_trajectories.json");
  Workers workers(1);
  ASSERT_GE(golden["cases"].size(), 14U);
  for (const auto& golden_case : golden["cases"]) {
    SCOPED_TRACE(golden_case["name"].get<std::string>());
    OptimizerOptions options;
    options.type = optimizer_type_named(golden_case["type"].get<std::string>()).value();
    options.beta1 = golden_case["betas"][0];
    options.beta2 = golden_case["betas"][1];
    options.eps = golden_case["eps"];
    const double decay = golden_case["weight_decay"];
    const double rate = golden_case["lr"];
    const auto initial = golden_case["initial"].get<std::vector<float>>();
    PlainState state(options, initial);
    std::vector<ExactTrajectory> exact;
    for (const float value : initial) exact.emplace_back(options, decay, value);
    std::int64_t step = 0;
    for (const auto& gradient_values : golden_case["gradients"]) {
      const auto expected =
          golden_case["parameters"][static_cast<std::size_t>(step)].get<std::vector<float>>();
      const auto gradient = gradient_values.get<std::vector<float>>();
      ++step;
      state.update(workers, gradient, {step, rate, 1, decay});
      for (std::size_t i = 0; i < initial.size(); ++i) {
        exact[i].update(gradient[i], step, rate);
        // Each side is within the bound of the exact value (see ExactTrajectory).
        const double bound = exact[i].bound();
        ASSERT_NEAR(expected[i], exact[i].value(), bound) << "PyTorch, step " << step;
        ASSERT_NEAR(state.master()[i], exact[i].value(), bound) << "Terrace, step " << step;
        ASSERT_LE(bound, 1e-3 * std::max(1.0, std::abs(exact[i].value())));
      }
    }
  }
}

}  // namespace
}  // namespace terrace::optim
