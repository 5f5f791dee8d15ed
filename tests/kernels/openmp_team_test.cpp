#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cstdlib>
#include <functional>
#include <iostream>

#include "kernels/cpu_ops.h"
#include "terrace/core/error.h"
#include "terrace/device/inline_stream.h"

// What a host program, or the environment that it is started in, may have set of OpenMP.

namespace terrace::kernels {
namespace {

using ::testing::ExitedWithCode;

constexpr std::int64_t kRows = 256;
constexpr std::int64_t kColumns = 384;
constexpr std::int64_t kInner = 128;

/// A product of two matrices of ones: each of its elements is exactly `kInner`, in any order.
class ProductOfOnes {
 public:
  explicit ProductOfOnes(const Machine& machine)
      : machine_(machine),
        a_(machine.tensor(DType::bf16, Values(kRows * kInner, 1.0))),
        b_(machine.tensor(DType::bf16, Values(kInner * kColumns, 1.0))),
        target_(machine.empty(DType::f32, kRows * kColumns)) {
    args_.m = kRows;
    args_.n = kColumns;
    args_.k = kInner;
    args_.a = a_.view();
    args_.b = b_.view();
    args_.target = target_.view();
  }

  void run(device::Stream& stream) {
    const Tensor scratch = machine_.scratch(machine_.ops().scratch_bytes(args_));
    args_.scratch = scratch.pointer();
    machine_.ops().run(stream, args_);
    stream.synchronize();
  }
  [[nodiscard]] bool is_whole() const {
    return target_.read() == Values(static_cast<std::size_t>(kRows * kColumns), double{kInner});
  }

 private:
  const Machine& machine_;
  Tensor a_;
  Tensor b_;
  Tensor target_;
  MatmulArgs args_;
};

TEST(OpenMpTeam, what_the_caller_has_set_leaves_no_part_undone_and_stays) {
  const Machine machine = cpu_machine();
  // There the caller's settings of OpenMP are those of the products.
  const auto stream = device::make_inline_stream();
  const int threads = omp_get_max_threads();
  const int levels = omp_get_max_active_levels();
  const std::function<void()> settings[] = {[] { omp_set_dynamic(1); },
                                            [] { omp_set_num_threads(1); },
                                            [] { omp_set_max_active_levels(0); }};
  for (const auto& set : settings) {
    set();
    ProductOfOnes product(machine);
    product.run(*stream);
    EXPECT_TRUE(product.is_whole());
  }
  EXPECT_EQ(omp_get_dynamic(), 1);
  EXPECT_EQ(omp_get_max_threads(), 1);
  EXPECT_EQ(omp_get_max_active_levels(), 0);
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
  omp_set_max_active_levels(levels);
}

TEST(OpenMpTeam, a_product_begun_in_a_region_of_the_caller_is_whole_on_a_stream_or_refused) {
  bool whole = false;
  std::string refusal;
#pragma omp parallel num_threads(2)
  {
#pragma omp single
    {
      const Machine machine = cpu_machine();
      ProductOfOnes product(machine);
      product.run(machine.stream());
      whole = product.is_whole();
      const auto stream = device::make_inline_stream();
      try {
        product.run(*stream);
      } catch (const Error& error) {
        refusal = error.what();
      }
    }
  }
  EXPECT_TRUE(whole);
  EXPECT_THAT(refusal, ::testing::HasSubstr("inside an OpenMP parallel region"));
}

/// A death test begins this program anew, so that OpenMP reads the environment again.
class OpenMpEnvironmentDeathTest : public ::testing::Test {
 protected:
  OpenMpEnvironmentDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

/// Ends the process: 0 with a whole product, 1 with another, an error's exit code with its message.
[[noreturn]] void multiply_and_exit() {
  try {
    const Machine machine = cpu_machine();
    ProductOfOnes product(machine);
    product.run(machine.stream());
    std::_Exit(product.is_whole() ? 0 : 1);
  } catch (const Error& error) {
    std::cerr << error.what();
    std::_Exit(exit_code(error.kind()));
  }
}

TEST_F(OpenMpEnvironmentDeathTest, settings_that_can_be_overruled_are) {
  for (const char* name : {"OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS", "OMP_NUM_THREADS"}) {
    ::setenv(name, std::string_view(name) == "OMP_MAX_ACTIVE_LEVELS" ? "0" : "1", 1);
    EXPECT_EXIT(multiply_and_exit(), ExitedWithCode(0), "") << name;
    ::unsetenv(name);
  }
}

TEST_F(OpenMpEnvironmentDeathTest, a_limit_of_threads_is_refused_by_its_name) {
  ::setenv("OMP_THREAD_LIMIT", "1", 1);
  EXPECT_EXIT(multiply_and_exit(), ExitedWithCode(2), "OMP_THREAD_LIMIT allows 1 of the 2");
  ::unsetenv("OMP_THREAD_LIMIT");
}

}  // namespace
}  // namespace terrace::kernels
