#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "terrace/checkpoint/safetensors.h"
#include "terrace/checkpoint/state.h"
#include "terrace/io/checksum.h"

// A set of tensors in one file or in several, named by a stem as Hugging Face does it:
// STEM.safetensors, or STEM-0000i-of-0000N.safetensors with STEM.safetensors.index.json.

namespace terrace::checkpoint {

/// Bytes of tensors in one file, unless the user says otherwise.
inline constexpr std::uint64_t kShardBytesMax = 5'000'000'000;

/// Reads such a set. Where there is an index it alone decides which files are read and which tensor
/// comes from which; a tensor that it does not name is ignored and remarked upon.
/// Thread-safe.
///
/// Errors: kind `kind`, naming every file that the index names and that is missing, empty or a
/// dangling link; a tensor that is not in the file that the index names for it; as
/// `SafetensorsFile`.
class ShardReader {
 public:
  ShardReader(const std::filesystem::path& folder, const std::string& stem,
              ErrorKind kind = ErrorKind::data);

  /// Whether the folder has the single file or the index.
  [[nodiscard]] static bool is_present(const std::filesystem::path& folder,
                                       const std::string& stem);

  struct Located {
    const SafetensorsFile* file = nullptr;
    const TensorEntry* entry = nullptr;

    /// As `SafetensorsFile::read`. Errors also: data, naming file and tensor and how many of all
    /// its values are not finite, when one of those that are read is not.
    void read(std::int64_t first, std::span<float> values) const;
  };
  [[nodiscard]] std::optional<Located> find(std::string_view name) const;
  /// Every tensor of the set, in the order of files and data.
  [[nodiscard]] std::span<const Located> tensors() const { return tensors_; }
  [[nodiscard]] std::span<const SafetensorsFile> files() const { return files_; }
  [[nodiscard]] std::span<const Remark> remarks() const { return remarks_; }

 private:
  using FileOfTensor = std::vector<std::pair<std::string, std::string>>;
  void open_indexed(const std::filesystem::path& folder, const std::filesystem::path& index,
                    const FileOfTensor& file_of_tensor, ErrorKind kind);

  std::vector<SafetensorsFile> files_;
  std::vector<Located> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  std::vector<Remark> remarks_;
};

struct ShardOptions {
  std::string stem = "model";
  DType dtype = DType::f32;
  std::uint64_t shard_bytes_max = kShardBytesMax;
};

/// A file that was written, and what it must hold when it is read again.
struct WrittenFile {
  std::string name;  ///< relative to the checkpoint's folder
  io::Fingerprint fingerprint;
};

/// Writes such a set from front to back. A file takes tensors in order until the next would exceed
/// `shard_bytes_max`; one that is larger has a file of its own. Files are not renamed into place:
/// the folder must be one that is renamed as a whole. Single-owner. Errors: `io`.
class ShardWriter {
 public:
  /// `tensors` must outlive the writer.
  ShardWriter(std::filesystem::path folder, std::span<const TensorShape> tensors,
              ShardOptions options);

  /// The next values, in the order of the tensors; never across the end of a tensor.
  void write(std::span<const float> values);
  /// Finishes the last file and writes the index; every value must have been written. Returns what
  /// was written, names relative to the folder.
  std::vector<WrittenFile> commit();

  /// The exact bytes of all files.
  [[nodiscard]] static std::uint64_t total_bytes(std::span<const TensorShape> tensors,
                                                 const ShardOptions& options);

 private:
  void open_next();
  void close_current();

  std::filesystem::path folder_;
  std::span<const TensorShape> tensors_;
  ShardOptions options_;
  std::vector<std::size_t> ends_;  ///< of each file: the index after its last tensor
  std::size_t next_file_ = 0;
  std::int64_t elements_left_ = 0;  ///< in the current file
  std::optional<SafetensorsWriter> current_;
  std::vector<WrittenFile> written_;
};

}  // namespace terrace::checkpoint
