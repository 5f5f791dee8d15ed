#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "terrace/core/dtype.h"
#include "terrace/core/state_kind.h"
#include "terrace/kernels/optimizer_step.h"

namespace terrace::optim {

using kernels::MasterFormat;

/// The recurrence, by the name of its `optimizer.type` in DeepSpeed's files. `adam` is Adam with L2
/// (the decay is added to the gradient), `adamw` has decoupled decay.
using OptimizerType = kernels::UpdateRule;

/// How the optimizer keeps its state. `fp32` is 12 bytes a parameter for Adam, `split` 10 beside
/// the bf16 parameter with the same bits of master; both are exact. Moments in bf16 (4 bytes less)
/// are not, and are never a default.
struct StateFormat {
  MasterFormat master = MasterFormat::fp32;
  DType moments = DType::f32;

  friend bool operator==(const StateFormat&, const StateFormat&) = default;
};

/// One array of optimizer state.
struct StateEntry {
  StateKind kind;
  std::size_t bytes_per_parameter;

  friend bool operator==(const StateEntry&, const StateEntry&) = default;
};

/// The arrays that the optimizer owns (the parameter is not one of them), in a fixed order: master
/// (in `split` its remainder), exp_avg (not Adagrad), exp_avg_sq (not Lion).
[[nodiscard]] std::vector<StateEntry> state_entries(OptimizerType type, StateFormat format);

/// The sum over `state_entries`.
[[nodiscard]] std::size_t state_bytes_per_parameter(OptimizerType type, StateFormat format);

/// Those of them that are moments.
[[nodiscard]] std::vector<StateKind> moments_of(OptimizerType type);

/// Whether one optimizer can go on with the moments of the other: they keep the same ones and mean
/// the same by them. AdamW and Adam differ in the decay alone.
[[nodiscard]] bool share_moments(OptimizerType one, OptimizerType other);

/// "fp32", "split".
[[nodiscard]] std::string_view name_of(MasterFormat format);
[[nodiscard]] std::optional<MasterFormat> master_format_named(std::string_view name);

/// "AdamW", "Adam", "Adagrad", "Lion": DeepSpeed's spelling; parsed without regard to case.
[[nodiscard]] std::string_view name_of(OptimizerType type);
[[nodiscard]] std::optional<OptimizerType> optimizer_type_named(std::string_view name);

}  // namespace terrace::optim
