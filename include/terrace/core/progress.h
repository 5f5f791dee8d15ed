#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace terrace {

/// How far a long operation is.
struct Progress {
  std::string_view what;  ///< the file or the action; valid during the call
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;  ///< 0: not known
};
/// Called before and after each piece and each change of names, from the calling thread. An
/// exception that it throws ends the operation as an error would: with nothing left behind.
using ProgressFunction = std::function<void(const Progress&)>;

}  // namespace terrace
