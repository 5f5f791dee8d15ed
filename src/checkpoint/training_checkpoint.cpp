#include "terrace/checkpoint/training_checkpoint.h"

#include <algorithm>
#include <utility>

#include "convert.h"
#include "hex.h"
#include "marker.h"
#include "progress.h"
#include "tensor_match.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

constexpr std::size_t kPieceBytes = static_cast<std::size_t>(kPieceElements) * sizeof(float);

bool is_tensor_file(const std::string& name) { return name.ends_with(".safetensors"); }

/// The checksum of a file, read in pieces.
io::Fingerprint fingerprint_of_file(const std::filesystem::path& path, ProgressMeter& progress) {
  const io::InputFile file(path, ErrorKind::corrupt);
  std::vector<std::byte> buffer(
      static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, file.size())));
  io::Fingerprint result{.bytes = file.size(), .crc64 = 0};
  for (std::uint64_t offset = 0; offset < file.size(); offset += kPieceBytes) {
    const std::span piece = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, file.size() - offset)));
    file.read(offset, piece);
    result.crc64 = io::crc64(piece, result.crc64);
    progress.advance(path.native(), piece.size());
  }
  return result;
}

/// Reads a file of FP32 tensors from its first byte to its last, gives the values to `sink`, and
/// returns the checksum of all of it.
io::Fingerprint stream_file(const SafetensorsFile& file, StateKind kind, StateSink& sink,
                            ProgressMeter& progress) {
  std::vector<std::byte> header(static_cast<std::size_t>(file.data_begin()));
  file.read_file(0, header);
  io::Fingerprint result{.bytes = file.file_bytes(), .crc64 = io::crc64(header)};
  progress.advance(file.path().native(), header.size());
  std::vector<float> buffer;
  // The tensors fill the data part without a hole, in this order.
  for (const TensorEntry& tensor : file.tensors()) {
    for_each_piece(tensor.elements(), buffer, [&](std::int64_t first, std::span<float> values) {
      file.read(tensor, first, values);
      result.crc64 = io::crc64(std::as_bytes(values), result.crc64);
      sink.write(kind, tensor.name, first, values);
      progress.advance(tensor.name, values.size_bytes());
    });
  }
  return result;
}

void require_fp32(const ShardReader& shards) {
  for (const ShardReader::Located& tensor : shards.tensors()) {
    require(tensor.entry->dtype == file_name_of(DType::f32), ErrorKind::corrupt,
            "{}: tensor \"{}\" is {}, but optimizer state is F32", tensor.file->path().string(),
            tensor.entry->name, tensor.entry->dtype);
  }
}

void require_unaltered(const std::filesystem::path& folder, const WrittenFile& file,
                       const io::Fingerprint& found) {
  require(file.fingerprint == found, ErrorKind::corrupt,
          "{} has the checksum {}, but was saved with {}; its bytes were altered, use another "
          "checkpoint",
          (folder / file.name).string(), to_hex(found.crc64), to_hex(file.fingerprint.crc64));
}

}  // namespace

TrainingCheckpoint::TrainingCheckpoint(std::filesystem::path folder) : folder_(std::move(folder)) {
  Marker marker = read_marker(folder_);
  require_sizes(folder_, marker);
  files_ = std::move(marker.files);
  const ProgressFunction none;
  ProgressMeter silent(none, 0);
  for (const WrittenFile& file : files_) {
    bytes_ += file.fingerprint.bytes;
    if (is_tensor_file(file.name)) continue;
    check_checksum(file.name, fingerprint_of_file(folder_ / file.name, silent));
  }
  const std::filesystem::path trainer = folder_ / "trainer_state.json";
  trainer_ =
      parse_trainer_state(io::read_file(trainer, 1ULL << 30, ErrorKind::corrupt), trainer.string());
  config_ = read_config(folder_);
  weights_.emplace(folder_, "model", ErrorKind::corrupt);
  const std::filesystem::path optimizer = folder_ / "optimizer";
  for (const auto& [kind, shards] :
       {std::pair(StateKind::exp_avg, &exp_avg_), std::pair(StateKind::exp_avg_sq, &exp_avg_sq_)}) {
    const std::string stem(terrace::name_of(kind));
    if (!ShardReader::is_present(optimizer, stem)) continue;  // The marker has none of that name.
    shards->emplace(optimizer, stem, ErrorKind::corrupt);
    moments_.push_back(kind);
  }
  if (weights_dtype() != DType::f32) master_.emplace(optimizer, "master", ErrorKind::corrupt);
  for (const StateKind kind : state_kinds()) require_fp32(shards(kind));
}

std::vector<StateKind> TrainingCheckpoint::state_kinds() const {
  std::vector<StateKind> kinds = {StateKind::master};
  for (const StateKind moment : moments_) kinds.push_back(moment);
  return kinds;
}

DType TrainingCheckpoint::weights_dtype() const {
  require(config_.dtype.has_value(), ErrorKind::corrupt, "{} does not say the weights' dtype",
          (folder_ / "config.json").string());
  return *config_.dtype;
}

const ShardReader& TrainingCheckpoint::shards(StateKind kind) const {
  if (kind == StateKind::parameter) return *weights_;
  if (kind == StateKind::master) return master_ ? *master_ : *weights_;
  const auto& moment = kind == StateKind::exp_avg ? exp_avg_ : exp_avg_sq_;
  require(moment.has_value() && kind != StateKind::gradient, ErrorKind::corrupt, "{} holds no {}",
          folder_.string(), terrace::name_of(kind));
  return *moment;
}

void TrainingCheckpoint::require_tensors(std::span<const TensorShape> expected) const {
  std::vector<StateKind> kinds = state_kinds();
  kinds.push_back(StateKind::parameter);
  for (const StateKind kind : kinds) {
    require_match(match_tensors(shards(kind), expected, config_.config, {}),
                  fmt::format("{} ({})", folder_.string(), terrace::name_of(kind)),
                  ErrorKind::corrupt);
  }
}

void TrainingCheckpoint::read(StateKind kind, const std::string& tensor, std::int64_t first,
                              std::span<float> values) {
  const auto found = shards(kind).find(tensor);
  require(found.has_value(), ErrorKind::corrupt, "{} has no {} of tensor \"{}\"", folder_.string(),
          terrace::name_of(kind), tensor);
  found->read(first, values);
}

void TrainingCheckpoint::check_checksum(const std::string& name,
                                        const io::Fingerprint& found) const {
  const auto file = std::find_if(files_.begin(), files_.end(),
                                 [&](const WrittenFile& written) { return written.name == name; });
  require(file != files_.end(), ErrorKind::corrupt, "{} is not listed in {}",
          (folder_ / name).string(), kMarkerName);
  require_unaltered(folder_, *file, found);
}

void TrainingCheckpoint::restore(StateSink& sink, const ProgressFunction& report) const {
  ProgressMeter progress(report, bytes_);
  for (const StateKind kind : state_kinds()) {
    for (const SafetensorsFile& file : shards(kind).files()) {
      const std::string name = std::filesystem::relative(file.path(), folder_).string();
      check_checksum(name, stream_file(file, kind, sink, progress));
    }
  }
  if (!master_) return;  // The weights are the masters, and have been read.
  for (const SafetensorsFile& file : weights_->files()) {
    check_checksum(file.path().filename().string(), fingerprint_of_file(file.path(), progress));
  }
}

void TrainingCheckpoint::verify(const ProgressFunction& report) const {
  ProgressMeter progress(report, bytes_);
  for (const WrittenFile& file : files_) {
    check_checksum(file.name, fingerprint_of_file(folder_ / file.name, progress));
  }
}

void verify_weights(const std::filesystem::path& folder, const ProgressFunction& report) {
  if (!io::is_there(folder / kMarkerName, ErrorKind::data)) return;
  std::vector<WrittenFile> files = read_marker(folder).files;
  std::erase_if(files, [](const WrittenFile& file) {
    const std::filesystem::path name = file.name;
    return name.has_parent_path() || name.extension() != ".safetensors";
  });
  std::uint64_t bytes = 0;
  for (const WrittenFile& file : files) bytes += file.fingerprint.bytes;
  ProgressMeter progress(report, bytes);
  for (const WrittenFile& file : files) {
    require_unaltered(folder, file, fingerprint_of_file(folder / file.name, progress));
  }
}

}  // namespace terrace::checkpoint
