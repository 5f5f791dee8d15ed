#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "terrace/checkpoint/state.h"
#include "terrace/core/dtype.h"
#include "terrace/core/error.h"
#include "terrace/io/checksum.h"
#include "terrace/io/file.h"

// The safetensors format: a 64-bit little-endian length, that many bytes of JSON
// {name: {dtype, shape, data_offsets}} with an optional "__metadata__" of strings, then the tensors
// in C order, packed.
// Source: https://huggingface.co/docs/safetensors (Format).

namespace terrace::checkpoint {

/// A tensor as the file's header describes it. dtype is the format's name for it ("F32", "BF16",
/// "I64", ...), one of those whose size is known.
struct TensorEntry : TensorShape {
  std::string dtype;
  std::uint64_t begin = 0;  ///< bytes from the start of the data part
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
};

/// The dtype of that name in a safetensors file, if it is one that Terrace computes with.
[[nodiscard]] std::optional<DType> dtype_in_file(std::string_view name);
/// "F32", "BF16", "F16", "I32".
[[nodiscard]] std::string_view file_name_of(DType dtype);

/// A safetensors file, checked as a whole when it is opened and before a byte of data is read: the
/// ranges lie inside the file, fit the shapes, do not overlap and leave no hole; names occur once.
/// Thread-safe: reads are positioned.
///
/// Errors: kind `kind` for a file that is missing, truncated or malformed, naming the file and the
/// tensor; `io` when the device fails.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path, ErrorKind kind = ErrorKind::data);
  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;
  ~SafetensorsFile() = default;

  /// Closes the file: each later read opens it anew.
  void close() { file_.close(); }

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t file_bytes() const { return file_.size(); }
  /// In the order of their data, which fills the file from `data_begin` to its end.
  [[nodiscard]] std::span<const TensorEntry> tensors() const { return tensors_; }
  [[nodiscard]] std::uint64_t data_begin() const { return data_begin_; }
  /// Null when there is none of that name.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  /// The file's "__metadata__", in its order.
  [[nodiscard]] std::span<const std::pair<std::string, std::string>> metadata() const {
    return metadata_;
  }

  /// Fills `target` with the tensor's bytes from byte `first` on, as they are.
  void read_bytes(const TensorEntry& tensor, std::uint64_t first,
                  std::span<std::byte> target) const;
  /// Fills `values` with elements from `first` on of an F32, BF16 or F16 tensor, exactly converted.
  /// Errors: `kind` for another dtype.
  void read(const TensorEntry& tensor, std::int64_t first, std::span<float> values) const;
  /// Fills `target` from byte `offset` of the file.
  void read_file(std::uint64_t offset, std::span<std::byte> target) const {
    file_.read(offset, target);
  }

 private:
  io::InputFile file_;
  ErrorKind kind_;
  std::uint64_t data_begin_ = 0;
  std::vector<TensorEntry> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  ///< into names of `tensors_`
};

/// Writes a safetensors file of one dtype (f32, bf16 or f16) from front to back: the tensors are
/// known first, the values come in order and in pieces. The header is padded with spaces so that
/// data starts at a multiple of 8. Nothing stays of a file that is not committed. Single-owner.
///
/// bf16 is rounded by the optimizer's rule for parameters (`to_parameter_bf16`), so that a saved
/// weight has the bits that training computed with; f16 to nearest even.
///
/// Errors: `io`, naming path and offset.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, DType dtype,
                    std::span<const TensorShape> tensors, io::OutputFileOptions options = {});

  /// The next values, in the order of the tensors.
  void write(std::span<const float> values);
  /// Makes the file durable; every value must have been written. Returns its size and checksum.
  io::Fingerprint commit();

  /// The exact size of the file.
  [[nodiscard]] static std::uint64_t file_bytes(DType dtype, std::span<const TensorShape> tensors);

 private:
  void append(std::span<const std::byte> bytes);

  io::OutputFile file_;
  DType dtype_;
  std::int64_t elements_left_ = 0;
  io::Fingerprint written_;
  std::vector<std::byte> converted_;
};

}  // namespace terrace::checkpoint
