#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "terrace/core/id.h"

namespace terrace::io {

/// A file that an engine has opened; meaningful to that engine only.
using FileId = Id<struct FileTag, int>;

enum class Operation : std::uint8_t {
  read,
  write,
  flush,  ///< makes every write that is complete durable (fdatasync); moves no bytes
};

/// One transfer of any length, or a flush. The memory belongs to the caller and stays untouched and
/// valid until the completion is returned.
struct Request {
  Operation kind = Operation::read;
  FileId file;
  std::uint64_t offset = 0;
  std::byte* data = nullptr;  ///< only read from, for `write`
  std::uint64_t size = 0;
  std::uint64_t token = 0;  ///< the caller's; comes back in the completion
};

/// The end of one request: all of its bytes were moved, or `error` and `message` say why not.
struct Completion {
  std::uint64_t token = 0;
  int error = 0;        ///< an errno value, ENODATA for the end of the file; 0 is success
  std::string message;  ///< empty on success; else path, offset, length, expected, found, errno
};

}  // namespace terrace::io
