#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device_bytes.h"
#include "terrace/kernels/optimizer_ops.h"

// What every table of the optimizer's arithmetic promises: the tests of this folder that are
// `OptimizerConformance`'s. A test program instantiates it with its implementations. Only the
// interfaces are used, so it holds for devices whose memory the host cannot touch.

namespace terrace::kernels {

/// How one table is made.
struct OptimizerTable {
  std::string name;
  std::function<std::shared_ptr<OptimizerOps>()> make;
};

/// What the suite is held against: tables, each of which gives the same bits, on a kind of device.
struct OptimizerImplementation {
  std::string name;
  std::function<std::unique_ptr<device::Device>()> device;
  std::vector<OptimizerTable> tables;  ///< the first is the usual one
};

/// A device and a stream.
class OptimizerMachine {
 public:
  explicit OptimizerMachine(std::unique_ptr<device::Device> device)
      : device_(std::move(device)), stream_(device_->make_stream("test")) {}

  [[nodiscard]] device::Stream& stream() const { return *stream_; }
  [[nodiscard]] DeviceBytes memory(std::size_t bytes) const { return {*device_, *stream_, bytes}; }
  [[nodiscard]] DeviceBytes memory(std::span<const std::byte> contents) const {
    DeviceBytes made = memory(contents.size());
    made.write(contents);
    return made;
  }
  /// Runs the operation and waits for it.
  void run(OptimizerOps& ops, const OptimizerOp& op) const {
    ops.run(*stream_, op);
    stream_->synchronize();
  }

 private:
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
};

class OptimizerConformance : public ::testing::TestWithParam<OptimizerImplementation> {
 protected:
  /// Calls body(table) for each.
  template <class Body>
  static void on_every_table(const Body& body) {
    for (const OptimizerTable& table : GetParam().tables) {
      SCOPED_TRACE(table.name);
      body(*table.make());
    }
  }

  OptimizerMachine machine_{GetParam().device()};
  std::shared_ptr<OptimizerOps> usual_ = GetParam().tables.front().make();
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OptimizerConformance);

}  // namespace terrace::kernels
