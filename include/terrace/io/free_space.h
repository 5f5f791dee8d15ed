#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace terrace::io {

/// Bytes that this process may still write below `folder`. Errors: kind `io`.
[[nodiscard]] std::uint64_t free_bytes(const std::filesystem::path& folder);

/// The same for all folders together, each file system counted once. Errors: kind `io`.
[[nodiscard]] std::uint64_t free_bytes(std::span<const std::filesystem::path> folders);

/// What of it is each folder's when all are filled: those on one file system have equal parts.
/// Errors: kind `io`.
[[nodiscard]] std::vector<std::uint64_t> shares_of_free_bytes(
    std::span<const std::filesystem::path> folders);

/// Whether any two of the folders lie on one file system. Errors: kind `io`.
[[nodiscard]] bool share_a_file_system(std::span<const std::filesystem::path> folders);

/// A folder and the bytes wanted there.
struct SpaceNeed {
  std::filesystem::path folder;
  std::uint64_t bytes = 0;
};

/// Checks that all needs can be met at once; folders on one file system are added up. Errors:
/// `does_not_fit`, naming the path and the bytes needed and free.
void require_free_space(std::span<const SpaceNeed> needs);

/// Checks that `folder` is there and can be written to. Errors: `usage` when it is missing or no
/// folder, `io` when it is read-only.
void require_writable_folder(const std::filesystem::path& folder);

/// The same for a folder that is to keep what memory does not. Errors: `usage` also when it lies in
/// memory.
void require_drive(const std::filesystem::path& folder);

/// Whether what is written there stays in memory (tmpfs, ramfs).
[[nodiscard]] bool is_in_memory(const std::filesystem::path& folder);

}  // namespace terrace::io
