#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "terrace/kernels/ops.h"

namespace terrace::tools {

/// What one kind of operation took, summed over its calls.
struct OperationTime {
  std::string_view name;  ///< "matmul weight gradient", "attention backward", ...
  double seconds = 0;
  double flops = 0;  ///< multiplications and additions of matrix products and attention, else 0
  std::int64_t calls = 0;
};

/// One matrix product by its shape and layout, summed over its calls.
struct ProductTime {
  kernels::MatmulArgs args;  ///< of one of the calls
  double seconds = 0;
  std::int64_t calls = 0;
};

/// Another table of operations with a clock read in stream order before and after each of them, so
/// that a step can be split by operation. One stream at a time.
class TimedOps final : public kernels::OpsDecorator {
 public:
  using OpsDecorator::OpsDecorator;

  /// Forgets what was measured. The stream must be idle for this and for `times`.
  void restart();
  /// Operations that were called, longest first.
  [[nodiscard]] std::vector<OperationTime> times() const;
  /// Whether two calls have one size, layout, dtypes and summands.
  [[nodiscard]] static bool same_product(const kernels::MatmulArgs& a,
                                         const kernels::MatmulArgs& b);
  /// Matrix products, longest first; calls that are the `same_product` are one.
  [[nodiscard]] std::vector<ProductTime> products() const;

 protected:
  void enqueue(device::Stream& stream, const kernels::Op& op) override;

 private:
  void finish(const kernels::Op& op, double seconds);

  std::vector<OperationTime> times_;
  std::vector<ProductTime> products_;
  std::int64_t began_us_ = 0;  ///< of the operation that the stream is in
};

}  // namespace terrace::tools
