#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "core/error_of.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/model_folder.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/core/json.h"
#include "terrace/io/checksum.h"
#include "terrace/io/file.h"
#include "terrace/train/export.h"
#include "terrace/train/inference.h"
#include "train/training.h"

// Weights, losses and gradients that are not finite: found, named, and never passed off as a
// result.

namespace terrace::train::testing {
namespace {

namespace fs = std::filesystem;
using terrace::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kBrokenTensor = "model.embed_tokens.weight";
constexpr const char* kNormName = "model.norm.weight";

/// A model whose embedding of '~' is zero, and of which the norms divide by its length alone: the
/// weights are finite, what is computed of that token is not. One '~' in the data: one step an
/// epoch has no finite gradient.
class NonFiniteTest : public TrainingTest {
 protected:
  NonFiniteTest() : TrainingTest(false) {
    model::Config config = small_llama(false);
    config.norm_eps = 1e-60;  // nothing in FP32
    write_model(
        folder_ / "model", config,
        [](const std::string& tensor, std::int64_t first, std::span<float> values) {
          for (std::size_t i = 0; i < values.size(); ++i) {
            if (tensor == kBrokenTensor && (first + static_cast<std::int64_t>(i)) / 18 == '~') {
              values[i] = 0;
            }
          }
        });
    std::string contents = text(210, 1);
    contents[100] = '~';
    write(folder_ / "one.txt", contents);
  }
};

TEST_F(NonFiniteTest, a_skipped_step_leaves_the_same_run_wherever_the_state_is) {
  // Without clipping, what is all on disk is updated before the step is known to be skipped.
  for (const auto& [dtype, clip] :
       {std::pair(DType::f32, 1.0), std::pair(DType::bf16, 1.0), std::pair(DType::bf16, 0.0)}) {
    std::vector<Row> reference;
    for (const auto& [parameters, state] :
         {std::pair(config::Placement::none, config::Placement::none),
          std::pair(config::Placement::none, config::Placement::cpu),
          std::pair(config::Placement::none, config::Placement::nvme),
          std::pair(config::Placement::cpu, config::Placement::nvme),
          std::pair(config::Placement::nvme, config::Placement::nvme),
          std::pair(config::Placement::nvme, config::Placement::cpu)}) {
      const std::string name = std::string(name_of(dtype)) + " " + std::to_string(clip) + " " +
                               std::to_string(static_cast<int>(parameters)) +
                               std::to_string(static_cast<int>(state));
      SCOPED_TRACE(name);
      config::Settings settings = this->settings(name);
      settings.numerics.dtype = dtype;
      settings.optimizer.max_grad_norm = clip;
      settings.placement.parameters.device = parameters;
      settings.placement.optimizer.device = state;
      settings.length.max_steps = 12;  // two epochs
      const std::vector<Row> result = run(settings);
      if (reference.empty()) reference = result;
      EXPECT_EQ(result, reference);
    }
    ASSERT_EQ(reference.size(), 12U);
    EXPECT_EQ(reference.back().skipped, 2) << "one an epoch";
  }
}

TEST_F(NonFiniteTest, a_skipped_step_changes_no_bit_and_names_the_cause) {
  for (const auto& [parameters, state, clip] :
       {std::tuple(config::Placement::none, config::Placement::none, 1.0),
        std::tuple(config::Placement::none, config::Placement::nvme, 1.0),
        std::tuple(config::Placement::nvme, config::Placement::nvme, 0.0)}) {
    const std::string name = "run " + std::to_string(static_cast<int>(parameters)) +
                             std::to_string(static_cast<int>(state));
    SCOPED_TRACE(name);
    config::Settings settings = this->settings(name);
    settings.placement.parameters.device = parameters;
    settings.placement.optimizer.device = state;
    settings.optimizer.max_grad_norm = clip;
    settings.length.max_steps = 12;
    settings.cadence.save_steps = 1;
    settings.cadence.save_total_limit = 0;
    std::int64_t before = 0;
    int compared = 0;
    for (const Row& row : run(settings)) {
      if (row.skipped == before) continue;
      EXPECT_EQ(row.skipped, ++before);
      EXPECT_EQ(row.nonfinite, "the loss") << "and no gradient, of which none is the cause";
      if (row.step == 1) continue;
      auto checkpoint = [&](std::int64_t step) {
        return fs::path(settings.output.folder) / ("checkpoint-" + std::to_string(step));
      };
      for (const char* file : {"model.safetensors", "optimizer/exp_avg.safetensors",
                               "optimizer/exp_avg_sq.safetensors"}) {
        EXPECT_TRUE(read(checkpoint(row.step) / file) == read(checkpoint(row.step - 1) / file))
            << file << " after the skipped step " << row.step;
      }
      ++compared;
    }
    EXPECT_GE(compared, 1);
  }
}

TEST_F(NonFiniteTest, too_many_skipped_steps_in_a_row_end_the_run) {
  write(folder_ / "one.txt", std::string(210, '~'));
  write(folder_ / "two.txt", std::string(120, '~'));
  write(folder_ / "three.txt", std::string(60, '~'));
  config::Settings settings = this->settings("run");
  settings.optimizer.max_skipped_steps = 3;
  settings.placement.optimizer.device = config::Placement::nvme;
  const Result result = train_run(settings);
  EXPECT_EQ(result.code, 7) << result.error;
  EXPECT_THAT(result.error, ::testing::HasSubstr("3 steps in a row"));
  EXPECT_THAT(result.error,
              ::testing::HasSubstr("the last one in the loss, and all weights are finite"));
  EXPECT_THAT(result.error, ::testing::HasSubstr("committed in " + (folder_ / "swap").string()));
  EXPECT_TRUE(result.says("step 2 is skipped: the loss is not finite"));
}

TEST_F(NonFiniteTest, a_validation_loss_that_is_none_is_said_to_be_none) {
  config::Settings settings = this->settings("run");
  settings.length.max_steps = 1;
  settings.data.files = {folder_ / "two.txt"};
  settings.data.eval_files = {folder_ / "one.txt"};
  const Result result = train_run(settings);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(result.says("step 1: the validation loss is not finite"));
  EXPECT_FALSE(result.says("nan"));
  EXPECT_THAT(read(folder_ / "run" / "metrics.jsonl"),
              AllOf(HasSubstr("\"eval_loss\":null"), Not(HasSubstr("NaN"))));
}

TEST_F(NonFiniteTest, what_finite_weights_compute_is_refused_when_it_is_not_finite) {
  Unattended alone;
  config::Settings settings = this->settings("");
  settings.data.files = {folder_ / "one.txt"};
  const Error evaluated = error_of([&] { (void)evaluate_model(settings, alone.watch, alone.log); });
  EXPECT_EQ(evaluated.kind(), ErrorKind::numerics);
  EXPECT_THAT(evaluated.what(), AllOf(HasSubstr((folder_ / "model").string()),
                                      HasSubstr("all its weights are finite")));
  std::string text;
  const Error generated = error_of([&] {
    (void)generate(settings, {.prompt = "a~", .tokens_max = 4}, alone.watch, alone.log,
                   [&](std::string_view piece) { text += piece; });
  });
  EXPECT_EQ(generated.kind(), ErrorKind::numerics);
  EXPECT_THAT(generated.what(), HasSubstr("no finite probabilities"));
  EXPECT_EQ(text, "");
  EXPECT_EQ(
      generate(settings, {.prompt = "a", .tokens_max = 1}, alone.watch, alone.log, [](auto) {}), 1);
}

/// A model folder with one weight that is not finite.
class NonFiniteWeights : public TrainingTest, public ::testing::WithParamInterface<float> {
 protected:
  NonFiniteWeights() {
    write_model(folder_ / "sound", small_llama(true));
    fs::remove_all(folder_ / "model");
    fs::copy(folder_ / "sound", folder_ / "model");
    spoil(folder_ / "model" / "model.safetensors");
  }
  /// Puts the value into element 3 of the last norm, in the type of the file.
  static void spoil(const fs::path& file) {
    std::uint64_t at = 0;
    DType dtype = DType::f32;
    {
      const checkpoint::SafetensorsFile tensors(file);
      const checkpoint::TensorEntry& norm = *tensors.find(kNormName);
      dtype = checkpoint::dtype_in_file(norm.dtype).value();
      at = tensors.data_begin() + norm.begin + 3 * size_of(dtype);
    }
    std::string bytes = io::read_file(file);
    const float value = GetParam();
    const Bf16 narrow = to_bf16(value);
    std::memcpy(bytes.data() + at, dtype == DType::f32 ? static_cast<const void*>(&value) : &narrow,
                size_of(dtype));
    io::write_file(file, bytes);
  }
  /// Gives a checkpoint the marker that it would have been written with.
  static void seal(const fs::path& folder) {
    const fs::path marker = folder / checkpoint::kMarkerName;
    Json json = parse_object(io::read_file(marker), marker.string(), ErrorKind::data);
    auto hex = [](const std::string& bytes) {
      return fmt::format("{:016x}", io::crc64(std::as_bytes(std::span(bytes))));
    };
    for (auto& [name, file] : json.at("files").items()) {
      file["crc64"] = hex(io::read_file(folder / name));
    }
    json["crc64_of_files"] = hex(json_line(json.at("files")));
    io::write_file(marker, json_text(json));
  }
  static void expect_named(const Error& error, const fs::path& file) {
    EXPECT_EQ(error.kind(), ErrorKind::data) << error.what();
    EXPECT_THAT(
        error.what(),
        AllOf(HasSubstr(file.string()),
              HasSubstr("1 of 18 values in the tensor \"model.norm.weight\" is not finite")));
  }

  Unattended alone_;
};

TEST_P(NonFiniteWeights, are_found_as_a_model_is_loaded) {
  const fs::path file = folder_ / "model" / "model.safetensors";
  for (const DType dtype : {DType::f32, DType::bf16}) {
    config::Settings settings = this->settings("run");
    settings.numerics.dtype = dtype;
    expect_named(error_of([&] { (void)evaluate_model(settings, alone_.watch, alone_.log); }), file);
    expect_named(error_of([&] {
                   (void)generate(settings, {.prompt = "a", .tokens_max = 1}, alone_.watch,
                                  alone_.log, [](auto) {});
                 }),
                 file);
    settings.placement.optimizer.device = config::Placement::nvme;
    const Result result = train_run(settings);
    EXPECT_EQ(result.code, 4) << result.error;
    EXPECT_THAT(result.error, HasSubstr(kNormName));
    EXPECT_FALSE(fs::exists(folder_ / "run" / "metrics.jsonl"));
    EXPECT_TRUE(fs::is_empty(folder_ / "swap")) << "a part of the state is of no use";
  }
}

TEST_P(NonFiniteWeights, of_a_checkpoint_are_found_by_whoever_reads_it) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    config::Settings settings = this->settings("run");
    settings.model = folder_ / "sound";
    settings.numerics.dtype = dtype;
    settings.cadence.save_steps = 2;
    settings.length.max_steps = 2;
    (void)run(settings);
    const fs::path saved = folder_ / "run" / "checkpoint-2";
    // FP32 weights are the masters.
    const fs::path file =
        saved / (dtype == DType::f32 ? "model.safetensors" : "optimizer/master.safetensors");
    spoil(file);
    seal(saved);
    settings.output.resume = "auto";
    settings.length.max_steps = 4;
    const Result resumed = train_run(settings);
    EXPECT_EQ(resumed.code, 4) << resumed.error;
    EXPECT_THAT(resumed.error, HasSubstr(file.string()));
    expect_named(
        error_of([&] {
          (void)export_model({saved, folder_ / "exported", DType::bf16}, alone_.watch, alone_.log);
        }),
        file);
    EXPECT_FALSE(fs::exists(folder_ / "exported"));
    fs::remove_all(folder_ / "run");
  }
}

INSTANTIATE_TEST_SUITE_P(NonFinite, NonFiniteWeights,
                         ::testing::Values(std::numeric_limits<float>::quiet_NaN(),
                                           -std::numeric_limits<float>::infinity()),
                         [](const auto& tested) {
                           return std::isnan(tested.param) ? "no_number" : "infinity";
                         });

/// Runs whose updates make weights that are not finite: at this rate from the first one on.
class DivergedTest : public TrainingTest {
 protected:
  [[nodiscard]] config::Settings diverging(const std::string& output) const {
    config::Settings settings = this->settings(output);
    settings.optimizer.learning_rate = 3e38;
    settings.optimizer.weight_decay = 10;
    return settings;
  }
};

TEST_F(DivergedTest, weights_that_are_not_finite_are_never_saved) {
  for (const std::int64_t save_steps : {1, 0}) {
    config::Settings settings = diverging("run" + std::to_string(save_steps));
    settings.length.max_steps = 1;
    settings.cadence.save_steps = save_steps;
    const Result result = train_run(settings);
    EXPECT_EQ(result.code, 7) << result.error;
    EXPECT_THAT(result.error, AllOf(HasSubstr(kBrokenTensor), HasSubstr("not finite"),
                                    HasSubstr("begin anew with --overwrite_output_dir")));
    EXPECT_FALSE(checkpoint::newest_checkpoint(settings.output.folder).has_value());
    EXPECT_FALSE(checkpoint::has_model(settings.output.folder));
    for (const auto& entry : fs::directory_iterator(settings.output.folder)) {
      EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
    }
  }
}

TEST_F(DivergedTest, the_cause_is_named_and_the_way_back_leads_before_it) {
  for (const config::Placement state : {config::Placement::none, config::Placement::nvme}) {
    config::Settings settings = this->settings("run" + std::to_string(static_cast<int>(state)));
    settings.placement.optimizer.device = state;
    settings.length.max_steps = 2;
    settings.cadence.save_steps = 2;
    settings.cadence.save_total_limit = 1;
    (void)run(settings);
    settings.optimizer.learning_rate = 3e38;
    settings.optimizer.weight_decay = 10;
    settings.length.max_steps = 8;
    settings.cadence.save_steps = 100;
    settings.output.resume = "auto";
    const Result result = train_run(settings);
    EXPECT_EQ(result.code, 7) << result.error;
    EXPECT_TRUE(result.says("step 4 is skipped: the loss is not finite"));
    const std::string saved = fs::path(settings.output.folder) / "checkpoint-2";
    EXPECT_THAT(result.error,
                AllOf(HasSubstr("the loss of step 4 is not finite, and neither are the weights"),
                      HasSubstr(kBrokenTensor), HasSubstr("--resume " + saved),
                      Not(HasSubstr("lower learning rate")), Not(HasSubstr("--resume auto"))));
    EXPECT_EQ(checkpoint::newest_checkpoint(settings.output.folder)->step, 2);
    if (state != config::Placement::nvme) continue;
    EXPECT_THAT(result.error, HasSubstr("terrace swap clean " + (folder_ / "swap").string()));
    const Result again = train_run(settings);
    EXPECT_EQ(again.code, 4) << again.error;
    EXPECT_THAT(again.error, AllOf(HasSubstr("the store in"), HasSubstr(kBrokenTensor),
                                   HasSubstr("--resume " + saved)));
    // What was advised works.
    for (const auto& entry : fs::directory_iterator(folder_ / "swap")) fs::remove_all(entry);
    settings.output.resume = saved;
    settings.optimizer.learning_rate = 1e-3;
    settings.optimizer.weight_decay = 0;
    EXPECT_EQ(run(settings).size(), 8U);
  }
}

TEST_F(DivergedTest, a_store_with_the_parameters_too_is_found_out_at_its_first_step) {
  config::Settings settings = diverging("run");
  settings.placement.optimizer.device = config::Placement::nvme;
  settings.placement.parameters.device = config::Placement::nvme;
  settings.length.max_steps = 1;
  settings.cadence.save_steps = 0;
  EXPECT_EQ(train_run(settings).code, 7);
  settings.length.max_steps = 4;
  settings.output.resume = "auto";
  const Result again = train_run(settings);
  EXPECT_EQ(again.code, 7) << again.error;
  EXPECT_THAT(again.error,
              HasSubstr("the loss of step 2 is not finite, and neither are the weights"));
}

using ExportTest = TrainingTest;

TEST_F(ExportTest, weights_too_large_for_a_type_are_exported_only_when_that_is_asked_for) {
  Unattended alone;
  write_model(folder_ / "model", small_llama(true),
              [](const std::string& tensor, std::int64_t first, std::span<float> values) {
                if (tensor == "model.layers.1.mlp.up_proj.weight" && first == 0) values[7] = 7e4F;
              });
  config::Settings settings = this->settings("run");
  settings.length.max_steps = 1;
  settings.cadence.save_steps = 1;
  (void)run(settings);
  ExportOptions options{folder_ / "run", folder_ / "exported", DType::f16};
  const Error error = error_of([&] { (void)export_model(options, alone.watch, alone.log); });
  EXPECT_EQ(error.kind(), ErrorKind::numerics);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("1 value of the tensor \"model.layers.1.mlp.up_proj"),
                                  HasSubstr("the first is 69"), HasSubstr("(element 7)"),
                                  HasSubstr("fp16 holds is 65504")));
  EXPECT_FALSE(fs::exists(options.to));
  fs::create_directory(options.to);
  EXPECT_EQ(error_of([&] { (void)export_model(options, alone.watch, alone.log); }).kind(),
            ErrorKind::numerics);
  EXPECT_TRUE(fs::is_empty(options.to)) << "what was there stays, and nothing is left in it";
  options.saturate = true;
  std::vector<std::string> lines;
  Log log([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  (void)export_model(options, alone.watch, log);
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("1 weight is too large for fp16")));
  settings.model = options.to;
  EXPECT_TRUE(std::isfinite(evaluate_model(settings, alone.watch, alone.log).loss));
}

}  // namespace
}  // namespace terrace::train::testing
