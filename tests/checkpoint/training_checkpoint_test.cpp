#include "terrace/checkpoint/training_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>

#include "checkpoint/small_model.h"
#include "core/error_of.h"
#include "io/temporary_folder.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

using terrace::testing::error_of;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FunctionSource;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::KeepingSink;
using testing::small_contents;
using testing::small_tensors;
using testing::small_trainer;

std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

TEST(TrainerStateJson, comes_back_whole) {
  TrainerState state = small_trainer(12);
  const TrainerState back = parse_trainer_state(to_json(state), "here");
  EXPECT_EQ(to_json(back), to_json(state));
  EXPECT_EQ(back.epoch, state.epoch);  // 1.2000000000000002: to the last bit
  EXPECT_EQ(back.loader, state.loader);
  EXPECT_EQ(back.loss_scale, state.loss_scale);
  EXPECT_EQ(back.identity.seed, state.identity.seed);
  EXPECT_EQ(back.identity.tokenizer, state.identity.tokenizer);
  EXPECT_EQ(back.identity.data.files[1].contents, state.identity.data.files[1].contents);
  EXPECT_EQ(back.log_history, state.log_history);
  EXPECT_EQ(back.numerics, state.numerics);
  EXPECT_EQ(back.adam_step, 11);
  EXPECT_EQ(back.tokens_seen, state.tokens_seen);
}

TEST(TrainerStateJson, a_loss_that_is_no_number_survives) {
  TrainerState state = small_trainer(1);
  state.log_history = {{1, 0, {{"loss", std::numeric_limits<double>::infinity()}}}};
  const TrainerState back = parse_trainer_state(to_json(state), "here");
  EXPECT_TRUE(std::isnan(back.log_history.at(0).values.at(0).second));
}

TEST(TrainerStateJson, damage_is_named) {
  const std::string text = to_json(small_trainer(1));
  const auto refusal = [](const std::string& damaged) {
    const Error error = error_of([&] { (void)parse_trainer_state(damaged, "the state"); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal(text.substr(0, text.size() / 2)), HasSubstr("the state is not JSON"));
  EXPECT_THAT(refusal(""), HasSubstr("the state"));
  EXPECT_THAT(refusal("{\"global_step\": 3}"), HasSubstr("another program"));
  std::string altered = text;
  altered.replace(altered.find("\"adam_step\": 0"), 14, "\"adam_step\":\"\"");
  EXPECT_THAT(refusal(altered), HasSubstr("the state"));
  altered = text;
  altered.replace(altered.find("abcdef0123456789"), 4, "xyz!");
  EXPECT_THAT(refusal(altered), HasSubstr("xyz!"));
}

TEST(RunIdentity, a_run_goes_on_with_its_own_inputs_only) {
  const RunIdentity began = small_trainer(1).identity;
  require_same_run(began, began, "out");
  const auto refusal = [&](auto&& change) {
    RunIdentity other = began;
    change(other);
    return std::string(error_of([&] { require_same_run(began, other, "out/c-1"); }).what());
  };
  EXPECT_THAT(refusal([](auto& run) { run.model ^= 1; }),
              AllOf(HasSubstr("--model"), HasSubstr("out/c-1")));
  EXPECT_THAT(refusal([](auto& run) { run.seed ^= 1; }), HasSubstr("--seed"));
  EXPECT_THAT(refusal([](auto& run) { run.tokenizer[0].contents.bytes = 3; }),
              HasSubstr("tokenizer.json"));
  EXPECT_THAT(refusal([](auto& run) { run.tokenizer.clear(); }), HasSubstr("tokenizer.json"));
  EXPECT_THAT(refusal([](auto& run) {
                run.tokenizer.push_back({"merges.txt", {}});
              }),
              HasSubstr("2 tokenizer files"));
  EXPECT_THAT(refusal([](auto& run) { run.data.files[1].contents.crc64 = 0; }), HasSubstr("b.txt"));
}

class Checkpoint : public ::testing::Test {
 protected:
  std::filesystem::path save(std::int64_t step, DType dtype = DType::bf16,
                             std::uint64_t bytes_max = kShardBytesMax, std::uint64_t seed = 1) {
    FunctionSource source(seed);
    return save_checkpoint(output_.path(), small_contents(step, dtype), source,
                           {.shard_bytes_max = bytes_max});
  }
  static void expect_restores(const std::filesystem::path& folder, std::uint64_t seed = 1) {
    const TrainingCheckpoint checkpoint(folder);
    KeepingSink sink;
    checkpoint.restore(sink);
    sink.expect_equal(FunctionSource(seed), small_tensors());
  }

  TemporaryFolder output_;
};

TEST_F(Checkpoint, every_bit_comes_back_for_every_dtype_and_number_of_files) {
  std::int64_t step = 0;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const std::uint64_t bytes_max : {kShardBytesMax, std::uint64_t{700}, std::uint64_t{1}}) {
      const auto folder = save(++step, dtype, bytes_max);
      EXPECT_EQ(folder.filename(), "checkpoint-" + std::to_string(step));
      expect_restores(folder);
      TrainingCheckpoint checkpoint(folder);
      checkpoint.require_tensors(small_tensors());
      checkpoint.verify();
      EXPECT_EQ(to_json(checkpoint.trainer()), to_json(small_trainer(step)));
      EXPECT_EQ(checkpoint.weights_dtype(), dtype);
      EXPECT_EQ(std::filesystem::exists(folder / "optimizer/master.safetensors") ||
                    std::filesystem::exists(folder / "optimizer/master.safetensors.index.json"),
                dtype != DType::f32);
    }
  }
}

TEST_F(Checkpoint, weights_have_the_bits_that_the_optimizer_gives_its_parameters) {
  TrainingCheckpoint checkpoint(save(1));
  const FunctionSource source(1);
  std::array<float, 64> weights{};
  checkpoint.read(StateKind::parameter, "model.layers.0.self_attn.q_proj.weight", 0, weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float master = source.value(StateKind::master, "model.layers.0.self_attn.q_proj.weight",
                                      static_cast<std::int64_t>(i));
    EXPECT_EQ(weights[i], to_float(to_parameter_bf16(master)));
  }
}

TEST_F(Checkpoint, is_a_model_folder_too) {
  const auto folder = save(1);
  ModelWeights weights(folder, read_config(folder).config, small_tensors());
  EXPECT_TRUE(weights.remarks().empty());
  EXPECT_EQ(io::read_file(folder / "tokenizer.json"), "{\"a\": 1}");
}

TEST_F(Checkpoint, its_size_is_known_before_it_is_written) {
  for (const std::uint64_t bytes_max : {kShardBytesMax, std::uint64_t{700}}) {
    const CheckpointContents contents = small_contents(1);
    const auto folder = save(1, DType::bf16, bytes_max);
    std::uint64_t found = 0;
    for (const auto& file : files_of(folder)) {
      if (file.filename() != kMarkerName) found += std::filesystem::file_size(file);
    }
    EXPECT_EQ(checkpoint_bytes(contents, {.shard_bytes_max = bytes_max}), found);
    EXPECT_EQ(TrainingCheckpoint(folder).bytes(), found);
  }
}

TEST_F(Checkpoint, a_truncated_or_missing_file_is_found_when_it_is_opened_and_named) {
  const auto reference = save(1, DType::bf16, 700);
  for (const auto& file : files_of(reference)) {
    const auto relative = std::filesystem::relative(file, reference);
    const TemporaryFolder copy;
    std::filesystem::copy(reference, copy.path() / "c", std::filesystem::copy_options::recursive);
    const auto target = copy.path() / "c" / relative;
    std::filesystem::resize_file(target, std::filesystem::file_size(target) - 2);
    const Error truncated = error_of([&] { TrainingCheckpoint opened(copy.path() / "c"); });
    EXPECT_EQ(truncated.kind(), ErrorKind::corrupt);
    EXPECT_THAT(truncated.what(), HasSubstr(relative.string()));
    std::filesystem::resize_file(target, 0);
    EXPECT_THAT(error_of([&] { TrainingCheckpoint opened(copy.path() / "c"); }).what(),
                HasSubstr(relative.string()));
    std::filesystem::remove(target);
    EXPECT_THAT(error_of([&] { TrainingCheckpoint opened(copy.path() / "c"); }).what(),
                HasSubstr(relative.string()));
  }
}

TEST_F(Checkpoint, one_altered_bit_anywhere_is_found_by_restore_and_by_verify) {
  const auto folder = save(1, DType::bf16, 700);
  const RandomStream random(3, 1);
  std::uint64_t draw = 0;
  for (const auto& file : files_of(folder)) {
    for (int trial = 0; trial < 3; ++trial) {
      const std::string whole = io::read_file(file);
      std::string altered = whole;
      const std::uint64_t at = random.below(draw++, altered.size());
      altered[at] = static_cast<char>(altered[at] ^ (1 << random.below(draw++, 3)));
      io::write_file(file, altered);
      const auto use = [&](auto&& how) {
        const Error error = error_of([&] {
          const TrainingCheckpoint checkpoint(folder);
          how(checkpoint);
        });
        EXPECT_THAT(error.what(), HasSubstr(file.filename().string())) << at;
      };
      use([](const TrainingCheckpoint& checkpoint) {
        KeepingSink sink;
        checkpoint.restore(sink);
      });
      use([](const TrainingCheckpoint& checkpoint) { checkpoint.verify(); });
      io::write_file(file, whole);
    }
  }
  expect_restores(folder);
}

TEST_F(Checkpoint, of_another_model_is_refused) {
  const TrainingCheckpoint checkpoint(save(1));
  const Error error = error_of([&] { checkpoint.require_tensors(small_tensors(true)); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt);
  EXPECT_THAT(error.what(), HasSubstr("lm_head.weight"));
}

TEST_F(Checkpoint, saved_again_replaces_the_older_one_of_its_step) {
  save(5, DType::bf16, kShardBytesMax, 1);
  const auto folder = save(5, DType::f32, 700, 2);
  expect_restores(folder, 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "optimizer/master.safetensors"));
  EXPECT_THAT(list_checkpoints(output_.path()).unfinished, IsEmpty());
}

TEST_F(Checkpoint, too_little_space_is_told_before_a_byte_is_written) {
  CheckpointContents contents = small_contents(1);
  contents.tensors.push_back({"huge", {std::int64_t{1} << 40, 1 << 10}});
  FunctionSource source(1);
  const Error error = error_of([&] { save_checkpoint(output_.path(), contents, source); });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("bytes) free, but has"), HasSubstr("TiB")));
  EXPECT_TRUE(std::filesystem::is_empty(output_.path()));
}

TEST_F(Checkpoint, holds_the_moments_that_the_optimizer_has) {
  std::int64_t step = 0;
  for (const std::vector<StateKind>& moments :
       {std::vector<StateKind>{StateKind::exp_avg}, {StateKind::exp_avg_sq}, {}}) {
    FunctionSource source(1);
    CheckpointContents contents = small_contents(++step);
    contents.moments = moments;
    const auto folder = save_checkpoint(output_.path(), contents, source);
    TrainingCheckpoint checkpoint(folder);
    EXPECT_EQ(checkpoint.moments(), moments);
    EXPECT_EQ(checkpoint.bytes(), checkpoint_bytes(contents));
    checkpoint.require_tensors(small_tensors());
    checkpoint.verify();
    KeepingSink sink;
    checkpoint.restore(sink);
    std::array<float, 8> values{};
    for (const StateKind kind : {StateKind::exp_avg, StateKind::exp_avg_sq}) {
      const bool has = std::ranges::find(moments, kind) != moments.end();
      auto read = [&] { checkpoint.read(kind, "model.norm.weight", 0, values); };
      if (has) {
        read();
        EXPECT_EQ(values[3], source.value(kind, "model.norm.weight", 3));
      } else {
        EXPECT_THAT(error_of(read).what(), HasSubstr(std::string(terrace::name_of(kind))));
      }
    }
  }
}

/// State with one value of a kind replaced.
class OneValue : public FunctionSource {
 public:
  OneValue(StateKind kind, std::string tensor, float value)
      : FunctionSource(1), kind_(kind), tensor_(std::move(tensor)), value_(value) {}
  void read(StateKind kind, const std::string& tensor, std::int64_t first,
            std::span<float> values) override {
    FunctionSource::read(kind, tensor, first, values);
    if (kind == kind_ && tensor == tensor_ && first <= 5)
      values[static_cast<std::size_t>(5 - first)] = value_;
  }

 private:
  StateKind kind_;
  std::string tensor_;
  float value_;
};

TEST_F(Checkpoint, of_state_that_is_not_finite_is_never_written) {
  save(1);
  for (const StateKind kind : {StateKind::master, StateKind::exp_avg, StateKind::exp_avg_sq}) {
    OneValue source(kind, "model.layers.1.mlp.up_proj.weight",
                    -std::numeric_limits<float>::infinity());
    const Error error =
        error_of([&] { (void)save_checkpoint(output_.path(), small_contents(2), source); });
    EXPECT_EQ(error.kind(), ErrorKind::numerics);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("model.layers.1.mlp.up_proj.weight"),
                                    HasSubstr("the first is infinite (element 5)"),
                                    HasSubstr("checkpoint-2 is not written")));
    if (kind != StateKind::master) {
      EXPECT_THAT(error.what(), HasSubstr(std::string(terrace::name_of(kind))));
    }
  }
  // Finite as a master, and infinite as the weight that would be stored.
  OneValue large(StateKind::master, "model.norm.weight", 1e5F);
  EXPECT_EQ(error_of([&] {
              (void)save_checkpoint(output_.path(), small_contents(2, DType::f16), large);
            }).kind(),
            ErrorKind::numerics);
  const CheckpointList list = list_checkpoints(output_.path());
  ASSERT_EQ(list.complete.size(), 1U);
  EXPECT_EQ(list.complete[0].step, 1);
  EXPECT_THAT(list.unfinished, IsEmpty());
  EXPECT_EQ(save_checkpoint(output_.path(), small_contents(2), large).filename(), "checkpoint-2");
}

TEST_F(Checkpoint, values_that_are_not_finite_are_counted_as_they_are_read) {
  // As another program may have written it.
  const auto file = output_.path() / "model.safetensors";
  const std::vector<TensorShape> tensors = {{"sound", {4}}, {"w", {2, 3}}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    SafetensorsWriter writer(file, dtype, tensors);
    const float infinity = std::numeric_limits<float>::infinity();
    const std::array<float, 10> values = {1, 2, 3, 4, 5, infinity, 7, std::nanf(""), -infinity, 9};
    writer.write(values);
    (void)writer.commit();
    const ShardReader shards(output_.path(), "model");
    std::array<float, 4> sound{};
    shards.find("sound")->read(0, sound);
    std::array<float, 1> one{};
    shards.find("w")->read(0, one);
    const Error error = error_of([&] { shards.find("w")->read(1, one); });
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(file.string()),
                                    HasSubstr("3 of 6 values in the tensor \"w\" are not finite")));
  }
}

TEST_F(Checkpoint, progress_goes_from_nothing_to_all_of_it) {
  FunctionSource source(1);
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  const auto watch = [&](const Progress& progress) {
    EXPECT_GE(progress.bytes_done, last);
    EXPECT_LE(progress.bytes_done, progress.bytes_total);
    last = progress.bytes_done;
    total = progress.bytes_total;
  };
  const auto folder =
      save_checkpoint(output_.path(), small_contents(1), source, {.progress = watch});
  EXPECT_EQ(last, total);
  last = 0;
  KeepingSink sink;
  TrainingCheckpoint(folder).restore(sink, watch);
  EXPECT_GT(last, 0U);
}

}  // namespace
}  // namespace terrace::checkpoint
