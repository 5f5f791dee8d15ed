#include <fmt/core.h>

#include <optional>
#include <vector>

#include "marker.h"
#include "model_writer.h"
#include "progress.h"
#include "staging.h"
#include "terrace/checkpoint/held_values.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

constexpr const char* kOptimizerFolder = "optimizer";
constexpr const char* kTrainerName = "trainer_state.json";

ShardOptions weights_options(const CheckpointContents& contents, const WriteOptions& options) {
  return {.dtype = contents.model.dtype, .shard_bytes_max = options.shard_bytes_max};
}

ShardOptions state_options(StateKind kind, const WriteOptions& options) {
  return {.stem = std::string(terrace::name_of(kind)),
          .dtype = DType::f32,
          .shard_bytes_max = options.shard_bytes_max};
}

/// FP32 weights are the masters: one copy is enough.
bool keeps_master(const CheckpointContents& contents) { return contents.model.dtype != DType::f32; }

std::vector<TextFile> text_files(const CheckpointContents& contents) {
  std::vector<TextFile> files = description_files(contents.model);
  files.push_back({kTrainerName, to_json(contents.trainer)});
  return files;
}

/// One save: the files of the staging folder, in the order in which they are written.
class Save {
 public:
  Save(std::filesystem::path folder, const CheckpointContents& contents, StateSource& source,
       const WriteOptions& options, std::uint64_t bytes)
      : folder_(std::move(folder)),
        contents_(contents),
        held_(source, contents.model.dtype),
        options_(options),
        progress_(options.progress, bytes) {}

  void run() {
    const std::filesystem::path optimizer = folder_ / kOptimizerFolder;
    io::make_folder(optimizer);
    progress_.advance("begin", 0);
    write_weights_and_master(optimizer);
    for (const StateKind kind : contents_.moments) write_moment(kind, optimizer);
    add(write_text_files(folder_, text_files(contents_)), "");
    io::sync_folder(optimizer);
    io::sync_folder(folder_);
    progress_.advance("all but the marker", 0);
    write_marker(folder_, marker_);
    progress_.advance("marker", 0);
  }

 private:
  /// Both files come from one pass over the masters, which may lie on a disk.
  void write_weights_and_master(const std::filesystem::path& optimizer) {
    ShardWriter weights(folder_, contents_.tensors, weights_options(contents_, options_));
    std::optional<ShardWriter> master;
    if (keeps_master(contents_)) {
      master.emplace(optimizer, contents_.tensors, state_options(StateKind::master, options_));
    }
    stream(StateKind::master, [&](std::span<const float> values) {
      weights.write(values);
      if (master) master->write(values);
      return values.size() * (size_of(contents_.model.dtype) + (master ? sizeof(float) : 0));
    });
    add(weights.commit(), "");
    if (master) add(master->commit(), kOptimizerFolder);
  }

  void write_moment(StateKind kind, const std::filesystem::path& optimizer) {
    ShardWriter writer(optimizer, contents_.tensors, state_options(kind, options_));
    stream(kind, [&](std::span<const float> values) {
      writer.write(values);
      return values.size_bytes();
    });
    add(writer.commit(), kOptimizerFolder);
  }

  /// Reads the kind of every tensor in pieces; `write` returns the bytes that it wrote.
  template <class Write>
  void stream(StateKind kind, Write&& write) {
    for (const TensorShape& tensor : contents_.tensors) {
      for_each_piece(tensor.elements(), buffer_, [&](std::int64_t first, std::span<float> values) {
        held_.read(kind, tensor.name, first, values);
        progress_.advance(tensor.name, write(values));
      });
    }
    held_.require_all_held(
        fmt::format("checkpoint-{} is not written", contents_.trainer.global_step));
  }

  void add(std::vector<WrittenFile> files, const std::filesystem::path& subfolder) {
    for (WrittenFile& file : files) {
      file.name = (subfolder / file.name).string();
      progress_.advance(file.name, 0);
      marker_.files.push_back(std::move(file));
    }
    marker_.step = contents_.trainer.global_step;
  }

  std::filesystem::path folder_;
  const CheckpointContents& contents_;
  HeldValues held_;
  const WriteOptions& options_;
  ProgressMeter progress_;
  Marker marker_;
  std::vector<float> buffer_;
};

}  // namespace

std::uint64_t checkpoint_bytes(const CheckpointContents& contents, const WriteOptions& options) {
  std::uint64_t bytes = total_bytes(text_files(contents));
  bytes += ShardWriter::total_bytes(contents.tensors, weights_options(contents, options));
  std::vector<StateKind> kinds = contents.moments;
  if (keeps_master(contents)) kinds.push_back(StateKind::master);
  for (const StateKind kind : kinds) {
    bytes += ShardWriter::total_bytes(contents.tensors, state_options(kind, options));
  }
  return bytes;
}

std::filesystem::path save_checkpoint(const std::filesystem::path& output,
                                      const CheckpointContents& contents, StateSource& source,
                                      const WriteOptions& options) {
  io::make_folder(output);
  const std::uint64_t bytes = checkpoint_bytes(contents, options);
  require_free_space(output, bytes, ErrorKind::io);
  const std::string name = fmt::format("checkpoint-{}", contents.trainer.global_step);
  StagingFolder staging(output, name);
  Save(staging.path(), contents, source, options, bytes).run();
  staging.publish();
  if (options.progress) options.progress({"renamed", bytes, bytes});
  return output / name;
}

}  // namespace terrace::checkpoint
