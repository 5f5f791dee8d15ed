#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

/// The five kinds of training state. Master: FP32 weights owned by the optimizer; parameter: the
/// compute copy (bf16, fp16 or fp32); exp_avg and exp_avg_sq: Adam's first and second moments.
enum class StateKind : std::uint8_t { parameter, gradient, master, exp_avg, exp_avg_sq };

[[nodiscard]] constexpr std::string_view name_of(StateKind kind) {
  switch (kind) {
    case StateKind::parameter:
      return "parameter";
    case StateKind::gradient:
      return "gradient";
    case StateKind::master:
      return "master";
    case StateKind::exp_avg:
      return "exp_avg";
    case StateKind::exp_avg_sq:
      return "exp_avg_sq";
  }
  return "?";
}

}  // namespace terrace
