#pragma once

#include <cstdint>
#include <string>

#include "terrace/core/dtype.h"
#include "terrace/device/device.h"
#include "terrace/kernels/op_args.h"

namespace terrace::kernels {

/// The operations that models are made of, on one kind of device: one table, handed down from
/// `main`.
///
///     ops.run(stream, kernels::AddArgs{count, a, b, output});
///
/// Results are a function of inputs and shapes alone: not of alignment, addresses, tiles, the
/// number of threads (unless `description` says so) or what ran before. Sums are taken in FP32 or
/// better and rounded once, to nearest even. dtype of activations and weights: f32 or bf16, one for
/// all operands of a call unless stated; weight gradients and statistics are FP32.
///
/// Thread-compatible: calls from several threads need different streams and an outer lock.
/// Errors: usage, naming the operation and the argument, for shapes, dtypes, strides and operands
/// that are missing. They are the same for every table, which is given only what has passed.
class Ops {
 public:
  virtual ~Ops() = default;

  /// One line for tables and records: device, instruction sets, libraries and their versions,
  /// threads, and what is used instead of what is missing.
  [[nodiscard]] virtual std::string description() const = 0;
  /// Whether matrix products in `dtype` run on the device's own instructions for it.
  [[nodiscard]] bool native(DType dtype) const { return instead_of_native(dtype).empty(); }
  /// What is done where they do not, as a sentence; empty where they do.
  [[nodiscard]] virtual std::string instead_of_native(DType dtype) const = 0;

  /// Only enqueues on `stream`, and allocates nothing. The operands' memory must be alive until the
  /// stream has passed it.
  void run(device::Stream& stream, const Op& op);
  /// What an operation needs as its `scratch`, 64-byte aligned and free for others afterwards; 0
  /// for those that have none. Shapes and dtypes count, and which operands are left out; addresses
  /// do not. Also prepares what the shape needs: one that was sized costs nothing at its first run.
  [[nodiscard]] std::uint64_t scratch_bytes(const Op& op);

 protected:
  /// Strides of `op` are never 0.
  virtual void enqueue(device::Stream& stream, const Op& op) = 0;
  [[nodiscard]] virtual std::uint64_t size_scratch(const Op& op) = 0;
};

/// Another table with something added: what times, records or checks operations overrides `enqueue`
/// and there calls this one's. `inner` outlives it.
class OpsDecorator : public Ops {
 public:
  explicit OpsDecorator(Ops& inner) : inner_(inner) {}
  [[nodiscard]] std::string description() const override { return inner_.description(); }
  [[nodiscard]] std::string instead_of_native(DType dtype) const override {
    return inner_.instead_of_native(dtype);
  }

 protected:
  void enqueue(device::Stream& stream, const Op& op) override { inner_.run(stream, op); }
  [[nodiscard]] std::uint64_t size_scratch(const Op& op) override {
    return inner_.scratch_bytes(op);
  }

 private:
  Ops& inner_;
};

}  // namespace terrace::kernels
