#pragma once

namespace terrace {

/// Whether this is a sanitizer's build, ten times as slow. There a test runs a part of what differs
/// in its numbers only, and uses memory and threads as the rest does.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace terrace
