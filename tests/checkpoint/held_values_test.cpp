#include "terrace/checkpoint/held_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "core/error_of.h"
#include "terrace/core/error.h"

namespace terrace::checkpoint {
namespace {

using terrace::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// What comes of a weight that is written in the type.
float stored(float value, DType dtype) {
  if (dtype == DType::f16) return to_float(to_f16(value));
  return dtype == DType::bf16 ? to_float(to_parameter_bf16(value)) : value;
}

/// Tensors of a few values each.
class FewValues final : public StateSource {
 public:
  explicit FewValues(std::map<std::string, std::vector<float>> tensors)
      : tensors_(std::move(tensors)) {}
  void read(StateKind, const std::string& tensor, std::int64_t first,
            std::span<float> values) override {
    std::copy_n(tensors_.at(tensor).begin() + first, values.size(), values.begin());
  }
  [[nodiscard]] std::vector<TensorShape> shapes() const {
    std::vector<TensorShape> shapes;
    for (const auto& [name, values] : tensors_) shapes.push_back({name, {std::ssize(values)}});
    return shapes;
  }

 private:
  std::map<std::string, std::vector<float>> tensors_;
};

TEST(HeldValues, a_type_holds_what_is_finite_once_it_is_rounded) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const float largest = largest_of(dtype);
    EXPECT_TRUE(std::isfinite(stored(largest, dtype)));
    EXPECT_EQ(stored(largest, dtype), largest) << "it is a number of the type";
    std::vector<float> values = {0, 1, -largest, largest, kNan, kInfinity, -kInfinity};
    // Both sides of the place where rounding turns to infinity, value by value.
    for (float value = largest; std::isfinite(value) && values.size() < 200'000;) {
      value = std::nextafter(value, kInfinity);
      values.push_back(value);
    }
    for (const float value : values) {
      const std::array one = {value};
      ASSERT_EQ(count_unheld(one, dtype), std::isfinite(stored(value, dtype)) ? 0 : 1)
          << value << " in " << name_of(dtype);
    }
  }
}

TEST(HeldValues, names_the_first_tensor_and_counts_all) {
  FewValues source({{"a", {1, 2}}, {"b", {1, 7e4F, -1e30F}}, {"c", {65504, 65519, 65520}}});
  HeldValues held(source, DType::f16);
  held.read_all(StateKind::master, source.shapes());
  EXPECT_FALSE(held.all_held());
  const Error error = error_of([&] { held.require_all_held("nothing is written"); });
  EXPECT_EQ(error.kind(), ErrorKind::numerics);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("2 values of the tensor \"b\" are too large for fp16"),
                                  HasSubstr("and 1 of 1 other tensor"),
                                  HasSubstr("the first is 70000 (element 1)"),
                                  HasSubstr("holds is 65504: nothing is written")));
  HeldValues wider(source, DType::bf16);
  wider.read_all(StateKind::master, source.shapes());
  EXPECT_TRUE(wider.all_held());
}

TEST(HeldValues, moments_are_stored_in_fp32_whatever_the_weights_are) {
  FewValues source({{"w", {1e30F, kNan}}});
  HeldValues held(source, DType::f16);
  held.read_all(StateKind::exp_avg_sq, source.shapes());
  EXPECT_THAT(held.fault(),
              AllOf(HasSubstr("1 value of the exp_avg_sq of \"w\" is not finite"),
                    HasSubstr("the first is not a number (element 1)"), Not(HasSubstr("nan"))));
}

TEST(HeldValues, replaces_what_is_too_large_and_never_what_is_no_number) {
  FewValues source({{"w", {7e4F, -1e9F, 65504, 3}}, {"x", {kNan, kInfinity, 1}}});
  HeldValues held(source, DType::f16, HeldValues::TooLarge::replaced);
  std::vector<float> values(4);
  held.read(StateKind::master, "w", 0, values);
  EXPECT_EQ(values, (std::vector<float>{65504, -65504, 65504, 3}));
  EXPECT_EQ(held.replaced(), 2);
  EXPECT_TRUE(held.all_held());
  values.resize(3);
  held.read(StateKind::master, "x", 0, values);
  EXPECT_EQ(held.replaced(), 2);
  EXPECT_THAT(held.fault(), HasSubstr("2 values of the tensor \"x\" are not finite"));
}

}  // namespace
}  // namespace terrace::checkpoint
