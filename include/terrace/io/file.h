#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "terrace/core/error.h"
#include "terrace/core/unique_handle.h"
#include "terrace/io/entry.h"

namespace terrace::io {

/// What changes with a file's contents, whoever changes them, though it may change without them.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;  ///< since 1970
  std::uint64_t inode = 0;       ///< another one where a file was replaced
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// A file for positioned reads. Thread-safe: it holds no position.
///
/// Errors of all members: a file that is missing, is no regular file, may not be read or ends too
/// early is an error of the kind given to the constructor (`data` for what the user brings,
/// `corrupt` where a file of ours must be whole); an error of the device is kind `io`, with path,
/// offset, length and the errno's name.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path, ErrorKind missing = ErrorKind::data);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// When it was opened: its stamp, and the bytes in it.
  [[nodiscard]] const FileStamp& opened() const { return opened_; }
  [[nodiscard]] std::uint64_t size() const { return opened_.bytes; }
  /// Its stamp now. One that is replaced by another of its name keeps its own.
  [[nodiscard]] FileStamp stamp() const;

  /// Closes it: each later read opens the file anew, which must be the same still.
  void close() { descriptor_.reset(); }

  /// Fills `target` from `offset`, over as many system calls as that takes.
  void read(std::uint64_t offset, std::span<std::byte> target) const;

 private:
  [[nodiscard]] FileDescriptor open() const;

  std::filesystem::path path_;
  ErrorKind missing_;
  FileDescriptor descriptor_;
  FileStamp opened_;
};

/// The whole file as text. Errors: as `InputFile`; a file above `bytes_max` is an error of kind
/// `missing` too, so that a mistaken path cannot fill the memory.
[[nodiscard]] std::string read_file(const std::filesystem::path& path,
                                    std::uint64_t bytes_max = 1ULL << 30,
                                    ErrorKind missing = ErrorKind::data);

struct OutputFileOptions {
  /// Write to a temporary name in the same folder, which `commit` renames: the file appears whole
  /// or not at all. Off for files inside a folder that is itself renamed when complete.
  bool atomic = true;
  std::size_t buffer_bytes = std::size_t{1} << 20;
};

/// A file that is written from front to back, or at positions, and is durable after `commit`.
/// Without a commit the destructor removes it (a temporary name never stays behind, short of a
/// kill; see `remove_temporaries`). Single-owner.
///
/// Errors of all members: kind `io`, with path, offset, length and the errno's name.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path, OutputFileOptions options = {});
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Appends; the bytes are taken before it returns. Any length: pieces above 2 GiB are split.
  void write(std::span<const std::byte> source);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Writes at `offset` and leaves the position of `write` alone; the two must not overlap.
  void write_at(std::uint64_t offset, std::span<const std::byte> source);
  /// Bytes appended so far.
  [[nodiscard]] std::uint64_t position() const { return flushed_ + buffered_; }

  /// Makes the file durable: its data, its name and (with `atomic`) the rename to it. Once only.
  void commit();

 private:
  void flush();

  std::filesystem::path path_;
  std::filesystem::path written_;  ///< the temporary name, or `path_`
  FileDescriptor descriptor_;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t capacity_;
  std::size_t buffered_ = 0;
  std::uint64_t flushed_ = 0;
};

/// A file that is read while it grows: what is appended is seen at once, and durable after `sync`.
/// It goes on at the end of what is there, which is durable once it is made. Single-owner.
///
/// Errors of all members: kind `io`, with path, offset, length and the errno's name.
class GrowingFile {
 public:
  explicit GrowingFile(std::filesystem::path path);

  /// Where it fails the file is left as it was, if the system allows that.
  void append(std::string_view text);
  /// Puts `text`, which is no shorter, in the place of the last `bytes` bytes. A kill or an error
  /// meanwhile may leave a part of it.
  void replace_end(std::uint64_t bytes, std::string_view text);
  void sync();

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  std::uint64_t bytes_ = 0;
};

/// Replaces the file by `contents`, atomically and durably. Errors: as `OutputFile`.
void write_file(const std::filesystem::path& path, std::string_view contents);

/// Makes the entries of a folder durable. Errors: kind `io`.
void sync_folder(const std::filesystem::path& folder);

/// Renames a file or folder (over a file or an empty folder of that name) and makes that durable.
/// The two names are in one file system. Errors: kind `io`.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// The same for all names of a folder, whether it is there or not: absolute, links followed,
/// without a slash at the end. Errors: io, where a relative one lies below a working folder that
/// has been removed.
[[nodiscard]] std::filesystem::path plain_path(const std::filesystem::path& path);

/// Removes a file, or a folder with all it holds; that there is none is no error. Follows no link.
/// The space is free when it returns, also where something still has the files open: the kernel
/// lets go of those that are registered with a ring only some time after their process has ended.
/// Returns why what is left could not be removed.
[[nodiscard]] std::error_code remove_with_space(const std::filesystem::path& path);

/// Whether an `OutputFile` gives such a name to what it has not committed yet.
[[nodiscard]] bool is_temporary_name(std::string_view name);

/// Removes the temporary files that a killed `OutputFile` left in `folder` (not below it). Who
/// calls it knows that nobody writes there: the process that a name carries may be another one by
/// now, or one of another container. Returns how many. Errors: kind `io`.
std::size_t remove_temporaries(const std::filesystem::path& folder);

}  // namespace terrace::io
