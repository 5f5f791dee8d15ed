#pragma once

#include <cstdint>
#include <string_view>

namespace terrace::io {

/// How the channels of a page store share its drives.
enum class Phases : std::uint8_t {
  mixed,  ///< all at once
  apart,  ///< one channel at a time, in turns of some queues' length: for drives that lose
          ///< throughput when a reading and a writing channel go on together
};

/// "mixed" or "apart".
[[nodiscard]] constexpr std::string_view name_of(Phases phases) {
  return phases == Phases::mixed ? "mixed" : "apart";
}

}  // namespace terrace::io
