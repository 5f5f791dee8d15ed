#pragma once

#include <array>
#include <string>
#include <tuple>

#include "train/training.h"

namespace terrace::train::testing {

/// Where things lie, and everything else that must not change a number.
struct Variant {
  config::Placement parameters = config::Placement::none;
  config::Placement state = config::Placement::none;
  double ratio = 1;
  config::MicroBatchOrder order = config::MicroBatchOrder::automatic;
  bool recompute = true;
  std::int64_t prefetch = 0;
  std::int64_t chunk = 2048;
  std::int64_t slots = 0;
  double parameters_ratio = 1;
  config::Placement activations = config::Placement::none;
  double activations_ratio = 1;
};

inline std::string describe(const Variant& variant) {
  return ::testing::PrintToString(
      std::tuple(static_cast<int>(variant.parameters), static_cast<int>(variant.state),
                 variant.ratio, static_cast<int>(variant.order), variant.recompute,
                 variant.prefetch, variant.chunk, variant.slots, variant.parameters_ratio,
                 static_cast<int>(variant.activations), variant.activations_ratio));
}

/// The inputs of blocks on the device, on the host, on disk, and half of them on the device, in
/// turn.
inline void place_activations(Variant& variant, int number) {
  constexpr std::array kPlaces = {config::Placement::none, config::Placement::cpu,
                                  config::Placement::nvme, config::Placement::cpu,
                                  config::Placement::nvme};
  variant.activations = kPlaces[static_cast<std::size_t>(number) % kPlaces.size()];
  variant.activations_ratio = number % 5 > 2 ? 0.5 : 1;
}

[[nodiscard]] inline config::Settings with(config::Settings settings, const Variant& variant) {
  settings.placement.parameters.device = variant.parameters;
  settings.placement.optimizer.device = variant.state;
  settings.placement.optimizer.ratio = variant.ratio;
  settings.placement.parameters.ratio = variant.parameters_ratio;
  settings.batch.order = variant.order;
  settings.numerics.gradient_checkpointing = variant.recompute;
  settings.placement.prefetch_units = variant.prefetch;
  settings.placement.chunk_elements = variant.chunk;
  settings.placement.optimizer.buffer_count = variant.slots;
  settings.placement.activations.device = variant.activations;
  settings.placement.activations.ratio = variant.activations_ratio;
  return settings;
}

}  // namespace terrace::train::testing
