#pragma once

#include <atomic>
#include <cstdint>

namespace terrace::tools::testing {

/// What a preloaded injection tells, in a file that both sides map: it outlives a SIGKILL.
struct InjectionReport {
  std::atomic<std::uint32_t> installed{0};  ///< the system allowed the filter
  std::atomic<std::uint32_t> struck{0};     ///< calls that were failed, or that killed
  std::atomic<std::uint64_t> seen{0};       ///< calls that matched
  char place[4096] = {};                    ///< "rename /a/b" of the first that was struck
};

}  // namespace terrace::tools::testing
