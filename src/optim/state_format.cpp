#include "terrace/optim/state_format.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace terrace::optim {
namespace {

constexpr std::array kTypes = {OptimizerType::adamw, OptimizerType::adam, OptimizerType::adagrad,
                               OptimizerType::lion};

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

}  // namespace

std::vector<StateEntry> state_entries(OptimizerType type, StateFormat format) {
  const std::size_t moment = size_of(format.moments);
  std::vector<StateEntry> entries;
  entries.push_back({StateKind::master, format.master == MasterFormat::split ? 2UL : 4UL});
  if (kernels::uses_exp_avg(type)) entries.push_back({StateKind::exp_avg, moment});
  if (kernels::uses_exp_avg_sq(type)) entries.push_back({StateKind::exp_avg_sq, moment});
  return entries;
}

std::size_t state_bytes_per_parameter(OptimizerType type, StateFormat format) {
  std::size_t bytes = 0;
  for (const StateEntry& entry : state_entries(type, format)) bytes += entry.bytes_per_parameter;
  return bytes;
}

std::vector<StateKind> moments_of(OptimizerType type) {
  std::vector<StateKind> moments;
  for (const StateEntry& entry : state_entries(type, {})) {
    if (entry.kind != StateKind::master) moments.push_back(entry.kind);
  }
  return moments;
}

bool share_moments(OptimizerType one, OptimizerType other) {
  constexpr auto is_adam = [](OptimizerType type) {
    return type == OptimizerType::adamw || type == OptimizerType::adam;
  };
  return one == other || (is_adam(one) && is_adam(other));
}

std::string_view name_of(MasterFormat format) {
  return format == MasterFormat::split ? "split" : "fp32";
}

std::optional<MasterFormat> master_format_named(std::string_view name) {
  for (const MasterFormat format : {MasterFormat::fp32, MasterFormat::split}) {
    if (name == name_of(format)) return format;
  }
  return std::nullopt;
}

std::string_view name_of(OptimizerType type) {
  switch (type) {
    case OptimizerType::adamw:
      return "AdamW";
    case OptimizerType::adam:
      return "Adam";
    case OptimizerType::adagrad:
      return "Adagrad";
    case OptimizerType::lion:
      return "Lion";
  }
  return "?";
}

std::optional<OptimizerType> optimizer_type_named(std::string_view name) {
  for (const OptimizerType type : kTypes) {
    if (equal_ignoring_case(name, name_of(type))) return type;
  }
  return std::nullopt;
}

}  // namespace terrace::optim
