#include "terrace/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "convert.h"
#include "safetensors_header.h"
#include "terrace/core/units.h"

namespace terrace::checkpoint {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
/// A header is read whole. The reference reader stops at 100 MB, which valid files of a million
/// tensors exceed; here the bound is what a sane machine has to spare.
constexpr std::uint64_t kHeaderBytesMax = kGiB;
/// Bytes that one conversion holds: a stored piece, before it is widened.
constexpr std::size_t kStoredPieceBytes = kMiB;

/// The data of a file kept by Git LFS is a small text in its place.
constexpr std::string_view kGitLfsPointer = "version https://git-lfs";

void refuse_pointer(const io::InputFile& file, ErrorKind kind) {
  std::array<char, kGitLfsPointer.size()> start{};
  if (file.size() < start.size()) return;
  file.read(0, std::as_writable_bytes(std::span(start)));
  require(std::string_view(start.data(), start.size()) != kGitLfsPointer, kind,
          "{} is a Git LFS pointer and not the file itself; run \"git lfs pull\" in its folder",
          file.path().string());
}

/// The length of the JSON header, known to lie inside the file.
std::uint64_t read_header_length(const io::InputFile& file, ErrorKind kind) {
  const std::string path = file.path().string();
  require(file.size() >= kLengthBytes, kind,
          "{} has {} bytes, but a safetensors file needs at least {}; incomplete download?", path,
          file.size(), kLengthBytes + 2);
  refuse_pointer(file, kind);
  std::uint64_t length = 0;
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  require(length >= 2, kind,
          "{} claims a header of {} bytes, but the shortest has 2; it is not a safetensors file",
          path, length);
  require(
      length <= kHeaderBytesMax || length <= file.size() - kLengthBytes, kind,
      "{} claims a header of {} bytes, but has {} bytes in all; it is not a safetensors file, or "
      "an incomplete download",
      path, length, file.size());
  require(length <= kHeaderBytesMax, kind,
          "{} has a header of {} bytes, but at most {} are read; split the model into more files",
          path, length, kHeaderBytesMax);
  require(length <= file.size() - kLengthBytes, kind,
          "{} has {} bytes, but its header alone needs {}; incomplete download?", path, file.size(),
          kLengthBytes + length);
  return length;
}

}  // namespace

std::optional<DType> dtype_in_file(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32}) {
    if (file_name_of(dtype) == name) return dtype;
  }
  return std::nullopt;
}

std::string_view file_name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i32:
      return "I32";
  }
  return "?";
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path, ErrorKind kind)
    : file_(std::move(path), kind), kind_(kind) {
  const std::uint64_t length = read_header_length(file_, kind_);
  data_begin_ = kLengthBytes + length;
  std::string json(length, '\0');
  file_.read(kLengthBytes, std::as_writable_bytes(std::span(json)));
  SafetensorsHeader header = parse_safetensors_header(json, file_.path().string(), kind_);
  const std::uint64_t data_bytes = header.tensors.empty() ? 0 : header.tensors.back().end;
  const std::uint64_t found = file_.size() - data_begin_;
  require(found >= data_bytes, kind_,
          "{} has {} bytes, but its tensors need {}; incomplete download?", file_.path().string(),
          file_.size(), data_begin_ + data_bytes);
  require(found == data_bytes, kind_,
          "{} has {} bytes, but its tensors end at byte {}; it is damaged, or not what it seems",
          file_.path().string(), file_.size(), data_begin_ + data_bytes);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  by_name_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read_bytes(const TensorEntry& tensor, std::uint64_t first,
                                 std::span<std::byte> target) const {
  require(first <= tensor.bytes() && target.size() <= tensor.bytes() - first, ErrorKind::internal,
          "bytes [{}, {}) were asked of tensor \"{}\" in {}, which has {}", first,
          first + target.size(), tensor.name, path().string(), tensor.bytes());
  file_.read(data_begin_ + tensor.begin + first, target);
}

void SafetensorsFile::read(const TensorEntry& tensor, std::int64_t first,
                           std::span<float> values) const {
  const std::optional<DType> dtype = dtype_in_file(tensor.dtype);
  require(dtype && *dtype != DType::i32, kind_,
          "{}: tensor \"{}\" has the dtype {}, but F32, BF16 or F16 was expected; convert the "
          "model to one of them",
          path().string(), tensor.name, tensor.dtype);
  const std::size_t width = size_of(*dtype);
  auto offset = static_cast<std::uint64_t>(first) * width;
  if (*dtype == DType::f32) {
    read_bytes(tensor, offset, std::as_writable_bytes(values));
    return;
  }
  const auto stored = std::make_unique_for_overwrite<std::byte[]>(
      std::min(values.size() * width, kStoredPieceBytes));
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), kStoredPieceBytes / width);
    const std::span piece(stored.get(), count * width);
    read_bytes(tensor, offset, piece);
    to_floats(*dtype, piece, values.first(count));
    values = values.subspan(count);
    offset += piece.size();
  }
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, DType dtype,
                                     std::span<const TensorShape> tensors,
                                     io::OutputFileOptions options)
    : file_(path, options), dtype_(dtype) {
  for (const TensorShape& tensor : tensors) elements_left_ += tensor.elements();
  const std::string header = make_safetensors_header(dtype, tensors);
  const std::uint64_t length = header.size();
  append(std::as_bytes(std::span(&length, 1)));
  append(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  written_.crc64 = io::crc64(bytes, written_.crc64);
  written_.bytes += bytes.size();
  file_.write(bytes);
}

void SafetensorsWriter::write(std::span<const float> values) {
  require(static_cast<std::int64_t>(values.size()) <= elements_left_, ErrorKind::internal,
          "{} values were given to a file that lacks {}", values.size(), elements_left_);
  elements_left_ -= static_cast<std::int64_t>(values.size());
  if (dtype_ == DType::f32) {
    append(std::as_bytes(values));
    return;
  }
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), kStoredPieceBytes / size_of(dtype_));
    converted_.resize(count * size_of(dtype_));
    from_floats(dtype_, values.first(count), converted_);
    append(converted_);
    values = values.subspan(count);
  }
}

io::Fingerprint SafetensorsWriter::commit() {
  require(elements_left_ == 0, ErrorKind::internal, "a file was finished that lacks {} values",
          elements_left_);
  file_.commit();
  return written_;
}

std::uint64_t SafetensorsWriter::file_bytes(DType dtype, std::span<const TensorShape> tensors) {
  std::uint64_t bytes = kLengthBytes + make_safetensors_header(dtype, tensors).size();
  for (const TensorShape& tensor : tensors) {
    bytes += static_cast<std::uint64_t>(tensor.elements()) * size_of(dtype);
  }
  return bytes;
}

}  // namespace terrace::checkpoint
