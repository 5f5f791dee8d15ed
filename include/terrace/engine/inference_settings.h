#pragma once

#include <cstdint>
#include <string>

#include "terrace/engine/options.h"
#include "terrace/engine/settings.h"

/// What `terrace evaluate` and `terrace generate` are told, and the table of each.
namespace terrace::engine {

/// `base` holds the model, the data, the length and number of sequences, device, dtype and threads.
struct EvaluateSettings {
  Settings base;
  bool json = false;
};

/// `base` holds the model, device, dtype, threads and the seed.
struct GenerateSettings {
  Settings base;
  std::string prompt;
  std::int64_t max_new_tokens = 128;
  double temperature = 1;   ///< 0: always the likeliest token
  std::int64_t top_k = 50;  ///< 0: all tokens
};

/// The tables, bound to settings that must outlive them.
[[nodiscard]] OptionTable evaluate_options(EvaluateSettings& settings);
[[nodiscard]] OptionTable generate_options(GenerateSettings& settings);

}  // namespace terrace::engine
