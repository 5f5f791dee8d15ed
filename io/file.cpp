#include "terrace/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "advice.h"

namespace terrace::io {
namespace {

/// What Linux moves in one call at most; more is cut off silently.
constexpr std::uint64_t kCallBytesMax = 0x7ffff000;
/// Calls in a row that may move nothing (EAGAIN) before that is an error.
constexpr int kRetriesMax = 100;
constexpr std::string_view kTemporaryMark = ".terrace-tmp-";

/// Whether a failed call should simply be made again.
bool is_passing(int code) { return code == EINTR || code == EAGAIN; }

void write_all(int descriptor, const std::filesystem::path& path, std::uint64_t offset,
               std::span<const std::byte> source) {
  int retries = 0;
  while (!source.empty()) {
    const std::size_t length = std::min<std::uint64_t>(source.size(), kCallBytesMax);
    const ssize_t written = ::pwrite(descriptor, source.data(), length, static_cast<off_t>(offset));
    if (written > 0) {
      source = source.subspan(static_cast<std::size_t>(written));
      offset += static_cast<std::uint64_t>(written);
      retries = 0;
      continue;
    }
    const int code = written < 0 ? errno : EAGAIN;
    require(is_passing(code) && ++retries < kRetriesMax, ErrorKind::io,
            "cannot write {} bytes at offset {} of {}: {}{}", source.size(), offset, path.native(),
            errno_name(code), advice(code, path));
  }
}

/// Makes a call that returns a negative value on failure, again when a signal has interrupted it.
template <class Call>
int uninterrupted(Call&& call) {
  int result = call();
  for (int i = 0; i < kRetriesMax && result < 0 && errno == EINTR; ++i) result = call();
  return result;
}

FileDescriptor open_file(const std::filesystem::path& path, int how) {
  return FileDescriptor(uninterrupted([&] { return ::open(path.c_str(), how, 0666); }));
}

void sync_file(int descriptor, const std::filesystem::path& path) {
  const bool synced = uninterrupted([&] { return ::fsync(descriptor); }) == 0;
  const int code = errno;
  require(synced, ErrorKind::io, "cannot make {} durable: fsync failed with {}{}", path.native(),
          errno_name(code), advice(code, path));
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

struct stat status_of(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat status {};
  const bool found = ::fstat(file.get(), &status) == 0;
  require(found, ErrorKind::io, "cannot stat {}: {}", path.native(), errno_name(errno));
  return status;
}

FileStamp stamp_of(const struct stat& status) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  return {static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec * kSecond + status.st_mtim.tv_nsec,
          static_cast<std::uint64_t>(status.st_ino)};
}

/// Attempts to find a temporary name that is free; threads of one process may collide.
constexpr int kNamesMax = 1000;

/// A name in the same folder that carries this process's id.
std::filesystem::path temporary_name(const std::filesystem::path& path, int attempt) {
  return folder_of(path) /
         fmt::format("{}{}{}-{}", path.filename().string(), kTemporaryMark, ::getpid(), attempt);
}

}  // namespace

InputFile::InputFile(std::filesystem::path path, ErrorKind missing)
    : path_(std::move(path)), missing_(missing) {
  descriptor_ = open();
  const struct stat status = status_of(descriptor_, path_);
  require(S_ISREG(status.st_mode), missing_, "{} is {}, but a regular file was expected",
          path_.native(), S_ISDIR(status.st_mode) ? "a folder" : "no regular file");
  opened_ = stamp_of(status);
}

FileDescriptor InputFile::open() const {
  FileDescriptor opened = open_file(path_, O_RDONLY | O_CLOEXEC);
  const int code = opened ? 0 : errno;
  require(code == 0, kind_of_open_error(code, missing_), "cannot open {} for reading: {}",
          path_.native(), reason_of(code));
  return opened;
}

FileStamp InputFile::stamp() const {
  if (!descriptor_) return stamp_of(status_of(open(), path_));
  return stamp_of(status_of(descriptor_, path_));
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> target) const {
  FileDescriptor again;
  if (!descriptor_) {
    again = open();
    require(stamp_of(status_of(again, path_)) == opened_, missing_,
            "{} was changed while it was read: put back what it was and run again", path_.native());
  }
  const int descriptor = descriptor_ ? descriptor_.get() : again.get();
  int retries = 0;
  while (!target.empty()) {
    const std::size_t length = std::min<std::uint64_t>(target.size(), kCallBytesMax);
    const ssize_t found = ::pread(descriptor, target.data(), length, static_cast<off_t>(offset));
    if (found > 0) {
      target = target.subspan(static_cast<std::size_t>(found));
      offset += static_cast<std::uint64_t>(found);
      retries = 0;
      continue;
    }
    require(found != 0, missing_,
            "{} ends at byte {}, but {} more bytes were expected there; it is truncated",
            path_.native(), offset, target.size());
    require(is_passing(errno) && ++retries < kRetriesMax, ErrorKind::io,
            "cannot read {} bytes at offset {} of {}: {}; the kernel's log may say more",
            target.size(), offset, path_.native(), errno_name(errno));
  }
}

std::string read_file(const std::filesystem::path& path, std::uint64_t bytes_max,
                      ErrorKind missing) {
  const InputFile file(path, missing);
  require(file.size() <= bytes_max, missing, "{} has {} bytes, but at most {} were expected",
          path.native(), file.size(), bytes_max);
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

OutputFile::OutputFile(std::filesystem::path path, OutputFileOptions options)
    : path_(std::move(path)),
      written_(path_),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(options.buffer_bytes)),
      capacity_(options.buffer_bytes) {
  std::error_code ignored;
  require(!std::filesystem::is_directory(path_, ignored), ErrorKind::io, "cannot create {}: {}",
          path_.string(), errno_name(EISDIR));
  const int how = O_WRONLY | O_CREAT | O_CLOEXEC | (options.atomic ? O_EXCL : O_TRUNC);
  for (int attempt = 0; attempt < kNamesMax; ++attempt) {
    if (options.atomic) written_ = temporary_name(path_, attempt);
    descriptor_ = open_file(written_, how);
    if (descriptor_ || errno != EEXIST) break;
  }
  const int code = errno;
  require(static_cast<bool>(descriptor_), ErrorKind::io, "cannot create {}: {}{}",
          written_.string(), errno_name(code), advice(code, written_));
}

OutputFile::~OutputFile() {
  if (descriptor_) ::unlink(written_.c_str());
}

void OutputFile::write(std::span<const std::byte> source) {
  if (source.size() > capacity_ - buffered_) {
    flush();
    if (source.size() >= capacity_) {
      write_all(descriptor_.get(), written_, flushed_, source);
      flushed_ += source.size();
      return;
    }
  }
  if (source.empty()) return;
  std::memcpy(buffer_.get() + buffered_, source.data(), source.size());
  buffered_ += source.size();
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> source) {
  write_all(descriptor_.get(), written_, offset, source);
}

void OutputFile::flush() {
  write_all(descriptor_.get(), written_, flushed_, std::span(buffer_.get(), buffered_));
  flushed_ += std::exchange(buffered_, 0);
}

void OutputFile::commit() {
  flush();
  sync_file(descriptor_.get(), written_);
  if (written_ != path_) {
    rename_durably(written_, path_);
  } else {
    sync_folder(folder_of(path_));
  }
  descriptor_.reset();
}

GrowingFile::GrowingFile(std::filesystem::path path) : path_(std::move(path)) {
  const bool is_new = !is_there(path_);
  descriptor_ = open_file(path_, O_WRONLY | O_CREAT | O_CLOEXEC);
  const int code = errno;
  require(static_cast<bool>(descriptor_), ErrorKind::io, "cannot write {}: {}{}", path_.native(),
          errno_name(code), advice(code, path_));
  bytes_ = static_cast<std::uint64_t>(status_of(descriptor_, path_).st_size);
  sync();
  if (is_new) sync_folder(folder_of(path_));
}

void GrowingFile::append(std::string_view text) {
  try {
    write_all(descriptor_.get(), path_, bytes_, std::as_bytes(std::span(text)));
  } catch (const Error&) {
    // Rather the file as it was than with a part of the text. That, too, may fail.
    (void)!::ftruncate(descriptor_.get(), static_cast<off_t>(bytes_));
    throw;
  }
  bytes_ += text.size();
}

void GrowingFile::replace_end(std::uint64_t bytes, std::string_view text) {
  require(bytes <= bytes_ && bytes <= text.size(), ErrorKind::internal,
          "the end of {} is replaced by less", path_.native());
  write_all(descriptor_.get(), path_, bytes_ - bytes, std::as_bytes(std::span(text)));
  bytes_ += text.size() - bytes;
}

void GrowingFile::sync() { sync_file(descriptor_.get(), path_); }

void write_file(const std::filesystem::path& path, std::string_view contents) {
  OutputFile file(path, {.buffer_bytes = 1});
  file.write(contents);
  file.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor descriptor = open_file(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(static_cast<bool>(descriptor), ErrorKind::io, "cannot open the folder {}: {}",
          folder.string(), reason_of(errno));
  // Some network file systems cannot sync a folder and say so with EINVAL; there is no more to do.
  const bool synced =
      uninterrupted([&] { return ::fsync(descriptor.get()); }) == 0 || errno == EINVAL;
  const int code = errno;
  require(synced, ErrorKind::io, "cannot make the folder {} durable: fsync failed with {}{}",
          folder.string(), errno_name(code), advice(code, folder));
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  const bool renamed = ::rename(from.c_str(), to.c_str()) == 0;
  const int code = errno;
  require(renamed, ErrorKind::io, "cannot rename {} to {}: {}{}", from.string(), to.string(),
          errno_name(code), advice(code, to));
  sync_folder(folder_of(to));
  if (folder_of(from) != folder_of(to)) sync_folder(folder_of(from));
}

std::filesystem::path plain_path(const std::filesystem::path& path) {
  std::error_code failed;
  const std::filesystem::path whole = std::filesystem::absolute(path, failed);
  require(
      !failed, ErrorKind::io,
      "cannot tell where {} lies, because the working folder is gone: {}; change to one that is "
      "there, or name an absolute path",
      path.string(), errno_name(failed.value()));
  std::filesystem::path plain = std::filesystem::weakly_canonical(whole, failed);
  if (failed) plain = whole.lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

std::error_code remove_with_space(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::vector<FileDescriptor> files;
  auto hold = [&](const fs::path& file) {
    std::error_code ignored;
    if (!fs::is_regular_file(fs::symlink_status(file, ignored))) return;
    FileDescriptor opened(::open(file.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
    if (opened) files.push_back(std::move(opened));
  };
  hold(path);
  std::error_code ignored;
  if (fs::is_directory(fs::symlink_status(path, ignored))) {
    fs::recursive_directory_iterator below(path, ignored);
    for (; below != fs::recursive_directory_iterator(); below.increment(ignored)) {
      hold(below->path());
    }
  }
  std::error_code failed;
  fs::remove_all(path, failed);
  // Cut only now: what a kill interrupts is either there as it was or gone. And only what has no
  // other name.
  for (const FileDescriptor& file : files) {
    struct stat status {};
    if (::fstat(file.get(), &status) == 0 && status.st_nlink == 0)
      (void)!::ftruncate(file.get(), 0);
  }
  // NFS keeps what is open under another name in the folder.
  files.clear();
  if (failed) fs::remove_all(path, failed);
  return failed;
}

bool is_temporary_name(std::string_view name) {
  const std::size_t mark = name.rfind(kTemporaryMark);
  if (mark == std::string_view::npos || mark == 0) return false;
  const std::string_view number = name.substr(mark + kTemporaryMark.size());
  return !number.empty() && number.find_first_not_of("0123456789-") == std::string_view::npos;
}

std::size_t remove_temporaries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    if (is_temporary_name(entry.path().filename().string())) found.push_back(entry.path());
  }
  require(!code, ErrorKind::io, "cannot list the folder {}: {}", folder.string(),
          reason_of(code.value()));
  return static_cast<std::size_t>(
      std::ranges::count_if(found, [](const auto& path) { return ::unlink(path.c_str()) == 0; }));
}

}  // namespace terrace::io
