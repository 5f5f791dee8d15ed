#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <variant>

#include "terrace/device/device.h"
#include "terrace/kernels/op_args.h"
#include "terrace/kernels/optimizer_step.h"

namespace terrace::kernels {

/// One fused pass over a chunk: reads the gradient and the state, applies `rule`, writes state and
/// parameter. The result is the same to the bit for every table, alignment and cut of a range into
/// chunks: each element depends on its own values, the coefficients and, where moments are bf16,
/// its index.
struct StepArgs {
  static constexpr std::string_view kName = "optimizer step";
  UpdateRule rule = UpdateRule::adamw;
  StateLayout layout;
  ChunkViews chunk;
  Coefficients coefficients;
};

/// result, one `SquareSums` (sum_squares.h) = those of `count` values, f32, bf16 or f16.
struct SumSquaresArgs {
  static constexpr std::string_view kName = "sum of squares";
  std::int64_t count = 0;
  View values{};
  device::Pointer result{};
};

/// parameter (bf16), remainder (16 bits) = `split_float` of the FP32 master, elementwise.
struct SplitMasterArgs {
  static constexpr std::string_view kName = "split master";
  std::int64_t count = 0;
  device::Pointer master{};
  device::Pointer parameter{};
  device::Pointer remainder{};
};

/// The other way: master = `join_float` of parameter and remainder.
struct JoinMasterArgs {
  static constexpr std::string_view kName = "join master";
  std::int64_t count = 0;
  device::Pointer parameter{};
  device::Pointer remainder{};
  device::Pointer master{};
};

/// The compute parameter of an FP32 master, by the rounding that `StepArgs` uses: bf16 by
/// `to_parameter_bf16`, f16 to nearest even, f32 as it is.
struct NarrowMasterArgs {
  static constexpr std::string_view kName = "narrow master";
  std::int64_t count = 0;
  device::Pointer master{};
  View parameter{};
};

/// Writes a zero to each page of arrays of `count` elements in which nothing is yet, on the NUMA
/// node whose threads a `StepArgs` on them will use ("Note on NUMA nodes"). Where threads belong to
/// no nodes, nothing is done.
struct FirstTouchArgs {
  static constexpr std::string_view kName = "first touch";
  std::int64_t count = 0;
  std::array<device::Span<std::byte>, 5> arrays{};  ///< some may be empty
};

/// One call of one operation on optimizer state. `ConvertArgs` is that of `Op`.
using OptimizerOp = std::variant<StepArgs, SumSquaresArgs, SplitMasterArgs, JoinMasterArgs,
                                 NarrowMasterArgs, ConvertArgs, FirstTouchArgs>;

/// The optimizer's arithmetic on one kind of device, as `Ops` is the model's. Operands are device
/// memory or pinned host memory; for the host's table on an inline stream, any memory.
/// Thread-compatible: one call at a time, and the streams of two calls are not active at once.
/// Errors: internal, naming the operation, for sizes, formats and operands that do not fit: the
/// same for every table.
class OptimizerOps {
 public:
  virtual ~OptimizerOps() = default;
  /// Only enqueues on `stream`, and allocates nothing. The operands' memory must be alive until the
  /// stream has passed it.
  void run(device::Stream& stream, const OptimizerOp& op);

 protected:
  virtual void enqueue(device::Stream& stream, const OptimizerOp& op) = 0;
};

}  // namespace terrace::kernels
