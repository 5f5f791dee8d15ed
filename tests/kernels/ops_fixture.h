#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "terrace/device/device.h"
#include "terrace/kernels/cpu.h"

// What the tests of `Ops` share: tensors made of doubles that the dtype can hold exactly, so that a
// reference in double starts from the same numbers, and the bound that a result is held to.

namespace terrace::kernels {

using Values = std::vector<double>;

inline double rounded(double value, DType dtype) {
  const auto narrow = static_cast<float>(value);
  return static_cast<double>(dtype == DType::bf16 ? to_float(to_bf16(narrow)) : narrow);
}

/// Uniform in [-scale, scale], each exact in `dtype`.
inline Values random_values(std::int64_t count, unsigned seed, DType dtype, double scale = 1) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> distribution(-scale, scale);
  Values values(static_cast<std::size_t>(count));
  for (double& value : values) value = rounded(distribution(generator), dtype);
  return values;
}

/// Device memory of one dtype with `shift` bytes before it, so that alignment can be varied.
class Tensor {
 public:
  Tensor(device::Device& device, DType dtype, std::int64_t count, std::size_t shift = 0)
      : dtype_(dtype),
        count_(count),
        shift_(shift),
        buffer_(device.allocate(static_cast<std::size_t>(count) * size_of(dtype) + shift + 64,
                                "a test's tensor")) {
    std::memset(raw(), 0xff, bytes());  // what is not written stays NaN
  }

  [[nodiscard]] std::byte* raw() const { return buffer_.pointer().raw() + shift_; }
  [[nodiscard]] device::Pointer pointer() const { return device::Pointer(raw()); }
  [[nodiscard]] View view() const { return {pointer(), dtype_}; }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(count_) * size_of(dtype_);
  }
  [[nodiscard]] std::string bits() const { return {reinterpret_cast<const char*>(raw()), bytes()}; }

  void write(const Values& values) const {
    ASSERT_EQ(values.size(), static_cast<std::size_t>(count_));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      if (dtype_ == DType::bf16) {
        reinterpret_cast<Bf16*>(raw())[i] = to_bf16(value);
      } else {
        reinterpret_cast<float*>(raw())[i] = value;
      }
    }
  }
  [[nodiscard]] Values read() const {
    Values values(static_cast<std::size_t>(count_));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>(dtype_ == DType::bf16
                                          ? to_float(reinterpret_cast<const Bf16*>(raw())[i])
                                          : reinterpret_cast<const float*>(raw())[i]);
    }
    return values;
  }

 private:
  DType dtype_;
  std::int64_t count_;
  std::size_t shift_;
  device::Buffer buffer_;
};

/// A host device, a stream, and the operations on one instruction set and number of threads.
class Machine {
 public:
  explicit Machine(int threads = 2, CpuTarget target = {}, bool bf16_products = true)
      : device_(device::make_host_device()),
        stream_(device_->make_stream("test")),
        log_([](LogLevel, std::string_view) {}),
        ops_(make_cpu_ops({threads, bf16_products, target}, log_)) {}

  [[nodiscard]] Ops& ops() const { return *ops_; }
  [[nodiscard]] device::Stream& stream() const { return *stream_; }
  [[nodiscard]] const Log& log() const { return log_; }

  [[nodiscard]] Tensor empty(DType dtype, std::int64_t count, std::size_t shift = 0) const {
    return {*device_, dtype, count, shift};
  }
  [[nodiscard]] Tensor tensor(DType dtype, const Values& values, std::size_t shift = 0) const {
    Tensor made = empty(dtype, static_cast<std::int64_t>(values.size()), shift);
    made.write(values);
    return made;
  }
  [[nodiscard]] Tensor integers(const std::vector<std::int32_t>& values) const {
    Tensor made = empty(DType::i32, static_cast<std::int64_t>(values.size()));
    std::memcpy(made.raw(), values.data(), made.bytes());
    return made;
  }
  [[nodiscard]] Tensor scratch(std::uint64_t bytes) const {
    return empty(DType::i32, static_cast<std::int64_t>(bytes + 3) / 4);
  }

 private:
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  Log log_;
  std::unique_ptr<Ops> ops_;
};

/// Calls body(machine) on every instruction set that this machine has.
template <class Body>
void on_every_target(const Body& body) {
  for (const CpuTarget target : CpuTarget::all()) {
    SCOPED_TRACE(std::string(target.name()));
    const Machine machine(2, target);
    body(machine);
  }
}

/// Half the distance of two neighbours, relative: the error of one rounding.
inline double unit_roundoff(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-24; }

/// |got - expected| <= one rounding of the result to `dtype` + `error`, where `error[i]` bounds
/// what the computation before that rounding may be off.
inline void expect_near(const Values& got, const Values& expected, const Values& error,
                        DType dtype) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double bound =
        unit_roundoff(dtype) * (std::abs(expected[i]) + error[i]) + error[i] + 1e-37;
    // Not EXPECT_NEAR, which a NaN would not fail.
    ASSERT_TRUE(std::abs(got[i] - expected[i]) <= bound)
        << "element " << i << ": " << got[i] << ", expected " << expected[i] << " to " << bound;
  }
}

/// The same with one bound, relative to each element's `magnitude` (the sum of the absolute values
/// of what is summed up to it).
inline void expect_near(const Values& got, const Values& expected, const Values& magnitude,
                        double relative, DType dtype) {
  Values error(magnitude);
  for (double& value : error) value *= relative;
  expect_near(got, expected, error, dtype);
}

}  // namespace terrace::kernels
