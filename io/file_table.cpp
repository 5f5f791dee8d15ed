#include "file_table.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "file_lock.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/entry.h"

namespace terrace::io {
namespace {

/// Serves every drive; assumed where the kernel (before 6.1) or the file system does not say.
constexpr std::uint32_t kUsualAlignment = 4096;

/// The head of the kernel's `struct statx` up to the direct I/O fields, which the headers of older
/// distributions lack; the layout is the kernel's ABI (include/uapi/linux/stat.h).
struct StatxDirect {
  std::uint32_t mask;
  std::uint8_t unused[148];
  std::uint32_t memory_alignment;
  std::uint32_t offset_alignment;
  std::uint8_t rest[96];
};
static_assert(sizeof(StatxDirect) == 256);
constexpr unsigned kStatxDirect = 0x2000U;

void ask_alignment(int descriptor, OpenedFile& file) {
  file.memory_alignment = file.offset_alignment = kUsualAlignment;
  StatxDirect found{};
  const long code = ::syscall(SYS_statx, descriptor, "", AT_EMPTY_PATH, kStatxDirect, &found);
  if (code != 0 || (found.mask & kStatxDirect) == 0 || found.offset_alignment == 0) return;
  file.memory_alignment = found.memory_alignment;
  file.offset_alignment = found.offset_alignment;
}

/// Reserves all of it, in pieces between which it may be stopped. Returns 0 or an errno.
int reserve(int descriptor, const std::filesystem::path& path, std::uint64_t bytes,
            const ProgressFunction& progress) {
  constexpr std::uint64_t kPieceBytes = 4 * kGiB;
  for (std::uint64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    if (progress) progress({path.native(), begin, bytes});
    const std::uint64_t length = std::min(kPieceBytes, bytes - begin);
    if (::fallocate(descriptor, 0, static_cast<off_t>(begin), static_cast<off_t>(length)) != 0) {
      return errno;
    }
  }
  return 0;
}

void reserve_space(int descriptor, const std::filesystem::path& path, std::uint64_t bytes,
                   const ProgressFunction& progress) {
  int code = reserve(descriptor, path, bytes, progress);
  // Where the file system cannot reserve, the file gets its length and no promise.
  if (code == EOPNOTSUPP) {
    code = ::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  }
  require(code != ENOSPC && code != EDQUOT && code != EFBIG, ErrorKind::does_not_fit,
          "cannot reserve {} ({} bytes) for {}: {}; free some space or choose another folder",
          format_bytes(bytes), bytes, path.native(), errno_name(code));
  require(code == 0, ErrorKind::io, "cannot reserve {} bytes for {}: {}", bytes, path.native(),
          errno_name(code));
}

}  // namespace

void wait_for_silence(const std::filesystem::path& path) {
  constexpr std::int64_t kPauseUs = 1000;
  constexpr int kPausesMax = 10'000;
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  require(static_cast<bool>(file), ErrorKind::io, "cannot open {}: {}", path.native(),
          errno_name(errno));
  for (int pause = 0; look_at_lock(file.get()) == LockAnswer::held; ++pause) {
    require(pause < kPausesMax, ErrorKind::io,
            "{} is in use by another process, or a killed one's writes to it are stuck in the "
            "kernel; end that run first, and look at dmesg if there is none",
            path.native());
    sleep_us(kPauseUs);
  }
}

OpenedFile FileTable::open(const std::filesystem::path& path, const OpenOptions& options) {
  const int how = O_RDWR | O_CLOEXEC | (options.create ? O_CREAT | O_EXCL : 0);
  OpenedFile opened{.id = FileId(count())};
  FileDescriptor descriptor(::open(path.c_str(), how, 0666));
  require(static_cast<bool>(descriptor), ErrorKind::io, "cannot {} {}: {}",
          options.create ? "create" : "open", path.native(), reason_of(errno));
  if (options.create) reserve_space(descriptor.get(), path, options.bytes, options.progress);
  if (options.direct) {
    FileDescriptor direct(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT));
    if (direct) {
      opened.direct = true;
      ask_alignment(direct.get(), opened);
      descriptor = std::move(direct);
    } else {
      opened.direct_error = errno;
    }
  }
  (void)share_lock(descriptor.get());
  files_.push_back({path, std::move(descriptor)});
  opened.bytes = size_of(opened.id);
  return opened;
}

void FileTable::use_page_cache(FileId file) {
  File& entry = files_[static_cast<std::size_t>(file.value)];
  FileDescriptor descriptor(::open(entry.path.c_str(), O_RDWR | O_CLOEXEC));
  require(static_cast<bool>(descriptor), ErrorKind::io, "cannot open {} again: {}",
          entry.path.native(), reason_of(errno));
  (void)share_lock(descriptor.get());
  entry.descriptor = std::move(descriptor);
}

std::uint64_t FileTable::size_of(FileId file) const {
  struct stat status {};
  const bool found = ::fstat(descriptor(file), &status) == 0;
  require(found, ErrorKind::io, "cannot stat {}: {}", at(file).path.native(), errno_name(errno));
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace terrace::io
