#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "terrace/core/error.h"

// What there is below a name, and what the system refuses. Not to be there and not to be reachable
// are two things: only of the first does a user hear "does not exist".

namespace terrace::io {

/// What a name stands for, links followed.
enum class Entry { nothing, file, folder, other };

/// `nothing` is only what is known not to be there: a part of the path is missing, or is no folder.
/// Errors: kind `refused`, naming the path, the errno, the folder on the way that is closed and
/// what to change, where that cannot be found out.
[[nodiscard]] Entry look_at(const std::filesystem::path& path, ErrorKind refused = ErrorKind::io);

/// Whether there is anything of that name. Errors: as `look_at`.
[[nodiscard]] bool is_there(const std::filesystem::path& path, ErrorKind refused = ErrorKind::io);
/// Whether it is a folder, or a regular file. Errors: as `look_at`.
[[nodiscard]] bool is_folder(const std::filesystem::path& path, ErrorKind refused = ErrorKind::io);
[[nodiscard]] bool is_file(const std::filesystem::path& path, ErrorKind refused = ErrorKind::io);

/// The part of `path` that is there: itself, or the nearest folder above it, absolute. Errors: as
/// `look_at`.
[[nodiscard]] std::filesystem::path existing_part(const std::filesystem::path& path,
                                                  ErrorKind refused = ErrorKind::io);

/// Makes the folder and those above it, where they are not there. Errors: kind `refused`, with
/// path, errno and what to change.
void make_folder(const std::filesystem::path& folder, ErrorKind refused = ErrorKind::io);

/// The name of an errno value and, where it is known, what to change: "EROFS (Read-only file
/// system); name a place that can be written to". The end of a sentence about a path.
[[nodiscard]] std::string reason_of(int code);

/// The kind of an error of opening: io, where the process or the system has too many open files,
/// else `otherwise`.
[[nodiscard]] ErrorKind kind_of_open_error(int code, ErrorKind otherwise);

/// How many files one reader of many keeps open at a time: a share of what the process may have
/// open, so that those of several readers and what else a run opens go in.
[[nodiscard]] std::size_t open_files_share();

}  // namespace terrace::io
