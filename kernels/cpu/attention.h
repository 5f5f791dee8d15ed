#pragma once

#include <cstdint>
#include <memory>

#include "cpu/loops.h"
#include "cpu/product.h"
#include "terrace/kernels/op_args.h"

namespace terrace::kernels {

/// The tiles and products of attention over one shape: what `Attention` prepares and keeps.
struct AttentionPlan;

/// Causal attention in tiles of scores: their matrix products by oneDNN, the rest by Highway, one
/// head's tile on one thread. No tile depends on threads, so neither do the bits.
class Attention {
 public:
  Attention(const Loops& loops, bool has_bf16);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  /// The plan for the arguments' shape, made when it is new. Thread-safe; valid as long as this.
  [[nodiscard]] const AttentionPlan& plan(const AttentionArgs& args);
  [[nodiscard]] std::uint64_t forward_scratch(const AttentionPlan& plan) const;
  [[nodiscard]] std::uint64_t backward_scratch(const AttentionPlan& plan) const;

  void forward(const AttentionPlan& plan, const AttentionArgs& args) const;
  void backward(const AttentionPlan& plan, const AttentionBackwardArgs& args) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::kernels
