#include "terrace/checkpoint/shards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "progress.h"
#include "terrace/checkpoint/held_values.h"
#include "terrace/core/excerpt.h"
#include "terrace/core/json.h"
#include "terrace/core/units.h"
#include "terrace/io/entry.h"

namespace terrace::checkpoint {
namespace {

std::filesystem::path single_path(const std::filesystem::path& folder, const std::string& stem) {
  return folder / (stem + ".safetensors");
}

std::filesystem::path index_path(const std::filesystem::path& folder, const std::string& stem) {
  return folder / (stem + ".safetensors.index.json");
}

/// The index's "weight_map", checked: tensor and file, in the index's order.
std::vector<std::pair<std::string, std::string>> read_index(const std::filesystem::path& path,
                                                            ErrorKind kind) {
  const std::string where = path.string();
  const Json json = parse_object(io::read_file(path, 1ULL << 30, kind), where, kind);
  const auto map = json.find("weight_map");
  require(map != json.end() && map->is_object() && !map->empty(), kind,
          "{} has no \"weight_map\" from tensors to files; download it again", where);
  std::vector<std::pair<std::string, std::string>> file_of_tensor;
  file_of_tensor.reserve(map->size());
  for (const auto& [tensor, file] : map->items()) {
    const bool is_text = file.is_string();
    const std::string name = is_text ? file.get<std::string>() : "";
    // A name that leads out of the folder is never what a model's author meant.
    require(is_text && !name.empty() && name.find('/') == std::string::npos, kind,
            "{}: the file of tensor \"{}\" is {}, but the plain name of a file beside the index "
            "was expected",
            where, excerpt(tensor), excerpt(json_line(file)));
    file_of_tensor.emplace_back(tensor, name);
  }
  return file_of_tensor;
}

/// Names the files that cannot hold tensors, all of them at once.
void require_files(const std::filesystem::path& folder, const std::filesystem::path& index,
                   const std::set<std::string>& names, ErrorKind kind) {
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    std::error_code code;
    const std::filesystem::path path = folder / name;
    const bool exists = io::is_there(path, kind);
    const std::uintmax_t size = std::filesystem::file_size(path, code);  // follows links
    if (!code && size > 0) continue;
    const bool is_link = std::filesystem::is_symlink(path, code);
    missing.push_back(exists    ? name + " (empty)"
                      : is_link ? name + " (a link to a file that is missing)"
                                : name);
  }
  require(missing.empty(), kind,
          "{} names {}, but {} of them cannot be used: {}; incomplete download?", index.string(),
          counted(names.size(), "file"), missing.size(), fmt::join(missing, ", "));
}

/// The first tensor after those of each file.
std::vector<std::size_t> plan_files(std::span<const TensorShape> tensors,
                                    const ShardOptions& options) {
  std::vector<std::size_t> ends;
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(tensors[i].elements()) * size_of(options.dtype);
    if (filled > 0 && filled + bytes > options.shard_bytes_max) {
      ends.push_back(i);
      filled = 0;
    }
    filled += bytes;
  }
  ends.push_back(tensors.size());
  return ends;
}

std::string file_name(const std::string& stem, std::size_t number, std::size_t count) {
  if (count == 1) return stem + ".safetensors";
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, number + 1, count);
}

std::string make_index(std::span<const TensorShape> tensors, const ShardOptions& options,
                       std::span<const std::size_t> ends) {
  Json map = Json::object();
  std::uint64_t total = 0;
  std::size_t file = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    while (i >= ends[file]) ++file;
    map[tensors[i].name] = file_name(options.stem, file, ends.size());
    total += static_cast<std::uint64_t>(tensors[i].elements()) * size_of(options.dtype);
  }
  const Json json = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  return json_text(json);
}

std::span<const TensorShape> tensors_of(std::span<const TensorShape> tensors,
                                        std::span<const std::size_t> ends, std::size_t file) {
  const std::size_t begin = file == 0 ? 0 : ends[file - 1];
  return tensors.subspan(begin, ends[file] - begin);
}

[[noreturn]] void refuse_nonfinite(const ShardReader::Located& tensor) {
  std::int64_t count = 0;
  std::vector<float> buffer;
  for_each_piece(tensor.entry->elements(), buffer,
                 [&](std::int64_t first, std::span<float> values) {
                   tensor.file->read(*tensor.entry, first, values);
                   count += count_unheld(values, DType::f32);
                 });
  fail(ErrorKind::data,
       "{}: {} of {} in the tensor \"{}\" {} not finite; a file was damaged or a run diverged, use "
       "another model or an earlier checkpoint",
       tensor.file->path().string(), count, counted(tensor.entry->elements(), "value"),
       tensor.entry->name, count == 1 ? "is" : "are");
}

}  // namespace

void ShardReader::Located::read(std::int64_t first, std::span<float> values) const {
  file->read(*entry, first, values);
  if (count_unheld(values, DType::f32) > 0) [[unlikely]]
    refuse_nonfinite(*this);
}

bool ShardReader::is_present(const std::filesystem::path& folder, const std::string& stem) {
  std::error_code ignored;
  return io::is_there(single_path(folder, stem), ErrorKind::data) ||
         io::is_there(index_path(folder, stem), ErrorKind::data) ||
         std::filesystem::is_symlink(single_path(folder, stem), ignored);
}

ShardReader::ShardReader(const std::filesystem::path& folder, const std::string& stem,
                         ErrorKind kind) {
  const std::filesystem::path index = index_path(folder, stem);
  if (io::is_there(index, kind)) {
    open_indexed(folder, index, read_index(index, kind), kind);
  } else {
    const SafetensorsFile& file = files_.emplace_back(single_path(folder, stem), kind);
    for (const TensorEntry& entry : file.tensors()) tensors_.push_back({&file, &entry});
  }
  by_name_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    by_name_.emplace(tensors_[i].entry->name, i);
  }
}

void ShardReader::open_indexed(const std::filesystem::path& folder,
                               const std::filesystem::path& index,
                               const FileOfTensor& file_of_tensor, ErrorKind kind) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : file_of_tensor) names.insert(file);
  require_files(folder, index, names, kind);
  files_.reserve(names.size());  // Never grows again: `tensors_` points into it.
  std::unordered_map<std::string, const SafetensorsFile*> opened;
  std::size_t stored = 0;
  for (const std::string& name : names) {
    const SafetensorsFile& file = files_.emplace_back(folder / name, kind);
    opened.emplace(name, &file);
    if (files_.size() > io::open_files_share()) files_.back().close();
    stored += file.tensors().size();
  }
  std::set<const TensorEntry*> taken;
  for (const auto& [tensor, name] : file_of_tensor) {
    const TensorEntry* entry = opened.at(name)->find(tensor);
    require(entry != nullptr, kind,
            "{} says that tensor \"{}\" is in {}, which does not have it; the index and its files "
            "do not belong together",
            index.string(), tensor, name);
    taken.insert(entry);
  }
  for (const SafetensorsFile& file : files_) {
    for (const TensorEntry& entry : file.tensors()) {
      if (taken.contains(&entry)) tensors_.push_back({&file, &entry});
    }
  }
  if (stored > taken.size()) {
    remarks_.push_back(
        {LogLevel::warning,
         fmt::format("passing over {} in the files of {} that the index does not name",
                     counted(stored - taken.size(), "tensor"), index.string())});
  }
}

std::optional<ShardReader::Located> ShardReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return tensors_[found->second];
}

ShardWriter::ShardWriter(std::filesystem::path folder, std::span<const TensorShape> tensors,
                         ShardOptions options)
    : folder_(std::move(folder)),
      tensors_(tensors),
      options_(std::move(options)),
      ends_(plan_files(tensors_, options_)) {
  open_next();
}

void ShardWriter::open_next() {
  const std::span tensors = tensors_of(tensors_, ends_, next_file_);
  const std::string name = file_name(options_.stem, next_file_, ends_.size());
  current_.emplace(folder_ / name, options_.dtype, tensors, io::OutputFileOptions{.atomic = false});
  elements_left_ = 0;
  for (const TensorShape& tensor : tensors) elements_left_ += tensor.elements();
  ++next_file_;
}

void ShardWriter::close_current() {
  const std::string name = file_name(options_.stem, next_file_ - 1, ends_.size());
  written_.push_back({name, current_->commit()});
  current_.reset();
}

void ShardWriter::write(std::span<const float> values) {
  if (values.empty()) return;
  if (elements_left_ == 0) {
    require(next_file_ < ends_.size(), ErrorKind::internal,
            "{} values were given after the last tensor of {}", values.size(), options_.stem);
    close_current();
    open_next();
  }
  current_->write(values);
  elements_left_ -= static_cast<std::int64_t>(values.size());
}

std::vector<WrittenFile> ShardWriter::commit() {
  close_current();
  require(next_file_ == ends_.size(), ErrorKind::internal, "{} of {} files of {} were written",
          next_file_, ends_.size(), options_.stem);
  if (ends_.size() > 1) {
    const std::string text = make_index(tensors_, options_, ends_);
    const std::filesystem::path path = index_path(folder_, options_.stem);
    io::write_file(path, text);
    written_.push_back(
        {path.filename().string(), {text.size(), io::crc64(std::as_bytes(std::span(text)))}});
  }
  return std::move(written_);
}

std::uint64_t ShardWriter::total_bytes(std::span<const TensorShape> tensors,
                                       const ShardOptions& options) {
  const std::vector<std::size_t> ends = plan_files(tensors, options);
  std::uint64_t bytes = ends.size() > 1 ? make_index(tensors, options, ends).size() : 0;
  for (std::size_t file = 0; file < ends.size(); ++file) {
    bytes += SafetensorsWriter::file_bytes(options.dtype, tensors_of(tensors, ends, file));
  }
  return bytes;
}

}  // namespace terrace::checkpoint
