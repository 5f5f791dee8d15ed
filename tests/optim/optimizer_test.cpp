#include "terrace/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/exact_trajectory.h"
#include "terrace/core/error.h"

namespace terrace::optim {
namespace {

using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

OptimizerOptions with(OptimizerType type) { return OptimizerOptions::defaults_of(type); }

TEST(Optimizer, lion_steps_by_the_sign_of_the_interpolated_momentum) {
  // Program 1 of the Lion paper by hand, with numbers that FP32 holds exactly.
  OptimizerOptions options = with(OptimizerType::lion);
  options.beta1 = 0.5;
  options.beta2 = 0.75;
  PlainState state(options, {1, 1, 1});
  Workers workers(1);
  const double rate = 0.25;
  const double decay = 0.5;
  state.update(workers, std::vector<float>{2, -4, 0}, {1, rate, 1, decay});
  // m = 0: direction = g / 2; p (1 - 0.125) -+ 0.25. m becomes g / 4: 0.5, -1, 0.
  EXPECT_EQ(state.master(), (std::vector<float>{0.625F, 1.125F, 0.875F}));
  state.update(workers, std::vector<float>{-0.25F, 1, 1}, {2, rate, 1, 0});
  // Directions 0.125, 0, 0.5.
  EXPECT_EQ(state.master(), (std::vector<float>{0.375F, 1.125F, 0.625F}));
}

TEST(Optimizer, gradient_scale_is_applied_before_everything_else) {
  Workers workers(1);
  PlainState scaled(with(OptimizerType::adam), {1, 2});
  PlainState plain(with(OptimizerType::adam), {1, 2});
  for (std::int64_t step = 1; step <= 5; ++step) {
    scaled.update(workers, std::vector<float>{0.5F * 1024, -3 * 1024}, {step, 0.1, 0x1p-10, 0.1});
    plain.update(workers, std::vector<float>{0.5F, -3}, {step, 0.1, 1, 0.1});
  }
  EXPECT_EQ(scaled.master(), plain.master());
}

TEST(Optimizer, first_adam_step_is_the_learning_rate_whatever_the_gradient) {
  // m / sqrt(v) is the gradient's sign after correction, so the step is lr to within a few
  // roundings and eps / |g|. Without correction it is lr 0.1 / sqrt(0.001).
  Workers workers(1);
  OptimizerOptions options;
  PlainState corrected(options, {1});
  corrected.update(workers, std::vector<float>{-7}, {1, 1e-2, 1, 0});
  EXPECT_NEAR(corrected.master()[0], 1.01, 4 * 0x1p-24 * 1.01);
  options.bias_correction = false;
  PlainState uncorrected(options, {1});
  uncorrected.update(workers, std::vector<float>{-7}, {1, 1e-2, 1, 0});
  EXPECT_NEAR(uncorrected.master()[0], 1 + 1e-2 * 0.1 / std::sqrt(0.001), 4 * 0x1p-24 * 1.04);
}

TEST(Optimizer, out_of_place_leaves_the_source_as_it_was) {
  Workers workers(2);
  const Optimizer optimizer({}, {{MasterFormat::split, DType::f32}, DType::bf16, DType::bf16, 0});
  constexpr std::size_t kCount = 40'000;
  std::vector<std::uint16_t> remainder(kCount, 77), new_remainder(kCount);
  std::vector<Bf16> parameter(kCount, to_bf16(1)), new_parameter(kCount);
  std::vector<Bf16> gradient(kCount, to_bf16(-0.5));
  std::vector<float> m(kCount, 0.25F), v(kCount, 0.125F), new_m(kCount), new_v(kCount);
  ChunkViews chunk;
  chunk.count = kCount;
  const auto bytes = [](auto& values) {
    return device::Span(std::as_writable_bytes(std::span(values)));
  };
  chunk.source = {bytes(remainder), bytes(m), bytes(v), bytes(parameter), bytes(gradient)};
  chunk.target = {bytes(new_remainder), bytes(new_m), bytes(new_v), bytes(new_parameter)};
  kernels::make_cpu_optimizer_ops(workers)->run(*device::make_inline_stream(),
                                                optimizer.step(chunk, {1, 1e-3, 1, 0}));
  EXPECT_THAT(remainder, ::testing::Each(77));
  EXPECT_THAT(parameter, ::testing::Each(to_bf16(1)));
  EXPECT_THAT(m, ::testing::Each(0.25F));
  EXPECT_THAT(v, ::testing::Each(0.125F));
  EXPECT_THAT(new_m, ::testing::Each(::testing::FloatEq(0.175F)));
  EXPECT_THAT(new_parameter, ::testing::Each(new_parameter[0]));
}

TEST(Optimizer, refuses_bad_options_by_their_key) {
  const auto refusal = [](const std::string& text) {
    return Throws<Error>(::testing::AllOf(Property(&Error::kind, ErrorKind::usage),
                                          Property(&Error::what, HasSubstr(text))));
  };
  OptimizerOptions options;
  options.beta2 = 1;
  EXPECT_THAT([&] { Optimizer(options, {}); }, refusal("optimizer.params.betas[1] is 1"));
  options = {};
  options.beta1 = std::nan("");
  EXPECT_THAT([&] { Optimizer(options, {}); }, refusal("optimizer.params.betas[0]"));
  options = {};
  options.eps = 0;
  EXPECT_THAT([&] { Optimizer(options, {}); }, refusal("optimizer.params.eps is 0"));
  options = {};
  options.weight_decay = -0.1;
  EXPECT_THAT([&] { Optimizer(options, {}); }, refusal("weight_decay is -0.1"));
  const Optimizer::Formats formats{{MasterFormat::split, DType::f32}, DType::bf16, DType::f16, 0};
  EXPECT_THAT([&] { Optimizer({}, formats); }, refusal("the parameter is fp16"));
}

}  // namespace
}  // namespace terrace::optim
