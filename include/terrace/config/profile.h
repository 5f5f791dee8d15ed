#pragma once

#include <string>

#include "terrace/plan/hardware_profile.h"

/// Hardware profiles outside the program: files, and a few whose figures are assumed.
namespace terrace::config {

/// The profile in a file that `profile_json` or a person has written, or one of those known by
/// name. Strict: a figure may be missing, an unknown key is refused with the nearest one.
/// Errors: usage, naming file, line and key; for what is neither file nor name, the known names.
[[nodiscard]] plan::HardwareProfile find_profile(const std::string& file_or_name);

/// {"schema": "terrace.profile/1", "name", "h2d_bytes_per_second", ...}: the members' names are the
/// keys, null where a figure is not known.
[[nodiscard]] std::string profile_json(const plan::HardwareProfile& profile);

/// The profile with the figures that it lacks taken from `h200`, which its name then says: no time
/// that it gives is a promise, but it tells fast plans from slow ones.
[[nodiscard]] plan::HardwareProfile with_assumed(plan::HardwareProfile profile);

/// The names of the profiles with assumed figures, for people: "h200, h200-of-8".
[[nodiscard]] std::string known_profiles();

}  // namespace terrace::config
