#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "terrace/io/engine.h"

namespace terrace::io {

/// What a drive moves a second, in bytes.
struct DriveRates {
  double read = 0;   ///< alone
  double write = 0;  ///< alone
  double mixed = 0;  ///< as much read as written at once, both counted

  /// As much read as written, one after the other, both counted.
  [[nodiscard]] double apart() const { return 2 / (1 / read + 1 / write); }
};

/// Measures the drive below `folder` with a file of at most `bytes` that is removed again: written
/// and made durable, read, and half of it read while the other half is written. Takes about a
/// second at most, and says nothing of fall-backs, which whoever uses the drive meets again.
/// Errors: `io`, `does_not_fit`.
[[nodiscard]] DriveRates measure_drive(const std::filesystem::path& folder, std::uint64_t bytes,
                                       const EngineOptions& options);

/// Whether drives move more when reads and writes take turns than when they are mixed: by a quarter
/// in all, as each turn ends with a queue that runs empty.
[[nodiscard]] bool better_apart(std::span<const DriveRates> drives);

/// The weight of each drive's share of a state that is read and written once a step.
[[nodiscard]] std::vector<double> weights_of(std::span<const DriveRates> drives, bool apart);

/// `weights`, made to add up to 1, but with no share of `bytes` above the drive's `free` bytes:
/// what one cannot take goes to the others in proportion. Where it does not fit at all, in
/// proportion to what is free.
[[nodiscard]] std::vector<double> within_free_space(std::vector<double> weights,
                                                    std::span<const std::uint64_t> free,
                                                    std::uint64_t bytes);

}  // namespace terrace::io
