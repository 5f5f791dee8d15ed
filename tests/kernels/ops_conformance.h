#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/device_bytes.h"
#include "terrace/device/device.h"
#include "terrace/kernels/ops.h"

// What every table of operations promises: the tests of this folder that are `OpsConformance`'s. A
// test program instantiates it with its implementations. Only the interfaces are used, so it holds
// for devices whose memory the host cannot touch. Tensors are made of doubles that the dtype can
// hold exactly, so that a reference in double starts from the same numbers.

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

/// Elements of `dtype` as doubles, and back.
inline Values values_of(const std::string& bits, DType dtype) {
  Values values(bits.size() / size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Bf16 narrow;
    float wide = 0;
    std::memcpy(dtype == DType::bf16 ? static_cast<void*>(&narrow) : &wide,
                bits.data() + i * size_of(dtype), size_of(dtype));
    values[i] = static_cast<double>(dtype == DType::bf16 ? to_float(narrow) : wide);
  }
  return values;
}
inline std::string bits_of(const Values& values, DType dtype) {
  std::string bits(values.size() * size_of(dtype), '\0');
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto wide = static_cast<float>(values[i]);
    const Bf16 narrow = to_bf16(wide);
    std::memcpy(bits.data() + i * size_of(dtype),
                dtype == DType::bf16 ? static_cast<const void*>(&narrow) : &wide, size_of(dtype));
  }
  return bits;
}

/// Device memory of one dtype.
class Tensor {
 public:
  Tensor(device::Device& device, device::Stream& stream, DType dtype, std::int64_t count,
         std::size_t shift = 0)
      : dtype_(dtype),
        memory_(device, stream, static_cast<std::size_t>(count) * size_of(dtype), shift) {}

  [[nodiscard]] device::Pointer pointer() const { return memory_.pointer(); }
  [[nodiscard]] View view() const { return {pointer(), dtype_}; }
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }
  [[nodiscard]] std::string bits() const { return memory_.bits(); }
  void write_bits(const std::string& bits) const { memory_.write_bits(bits); }
  [[nodiscard]] Values read() const { return values_of(bits(), dtype_); }
  void write(const Values& values) const { write_bits(bits_of(values, dtype_)); }

 private:
  DType dtype_;
  DeviceBytes memory_;
};

/// How one table of operations is made.
struct Table {
  std::string name;
  std::function<std::unique_ptr<Ops>()> make;
  bool has_other_products = false;  ///< its matrix products are not those of the usual one
};

/// What the suite is held against: a kind of table on a kind of device.
struct Implementation {
  std::string name;
  std::function<std::unique_ptr<device::Device>()> device;
  std::vector<Table> tables;  ///< each is held to the suite; the first is the usual one
  std::vector<Table> twins;   ///< these give the first one's bits
};

/// A device, a stream and a table.
class Machine {
 public:
  Machine(std::unique_ptr<device::Device> device, const Table& table)
      : device_(std::move(device)), stream_(device_->make_stream("test")), ops_(table.make()) {}

  [[nodiscard]] Ops& ops() const { return *ops_; }
  [[nodiscard]] device::Stream& stream() const { return *stream_; }

  [[nodiscard]] Tensor empty(DType dtype, std::int64_t count, std::size_t shift = 0) const {
    return {*device_, *stream_, dtype, count, shift};
  }
  [[nodiscard]] Tensor tensor(DType dtype, const Values& values, std::size_t shift = 0) const {
    Tensor made = empty(dtype, static_cast<std::int64_t>(values.size()), shift);
    made.write(values);
    return made;
  }
  [[nodiscard]] Tensor integers(const std::vector<std::int32_t>& values) const {
    Tensor made = empty(DType::i32, static_cast<std::int64_t>(values.size()));
    made.write_bits({reinterpret_cast<const char*>(values.data()), made.bytes()});
    return made;
  }
  [[nodiscard]] Tensor scratch(std::uint64_t bytes) const {
    return empty(DType::i32, static_cast<std::int64_t>(bytes + 3) / 4);
  }

  /// Runs the operation, with scratch of its own, and waits for it.
  template <class Args>
  void run(Args args) const {
    std::optional<Tensor> own;
    if constexpr (WithScratch<Args>) {
      own.emplace(scratch(ops_->scratch_bytes(args)));
      args.scratch = own->pointer();
    }
    ops_->run(*stream_, args);
    stream_->synchronize();
  }

 private:
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<Ops> ops_;
};

class OpsConformance : public ::testing::TestWithParam<Implementation> {
 protected:
  [[nodiscard]] static Machine machine(const Table& table = GetParam().tables.front()) {
    return {GetParam().device(), table};
  }

  /// Calls body(machine) for each table.
  template <class Body>
  static void on_every_table(const Body& body) {
    for (const Table& table : GetParam().tables) {
      SCOPED_TRACE(table.name);
      body(machine(table));
    }
  }
  /// Likewise, of tables with the same matrix products only for one.
  template <class Body>
  static void on_every_product(const Body& body) {
    const std::vector<Table>& tables = GetParam().tables;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      if (i > 0 && !tables[i].has_other_products) continue;
      SCOPED_TRACE(tables[i].name);
      body(machine(tables[i]));
    }
  }
  /// Calls body(usual, other) with machines whose bits must be the same.
  template <class Body>
  static void on_twins(const Body& body) {
    const Machine usual = machine();
    for (const Table& twin : GetParam().twins) {
      SCOPED_TRACE(twin.name);
      body(usual, machine(twin));
    }
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpsConformance);

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
