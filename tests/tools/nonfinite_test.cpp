#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/temporary_folder.h"
#include "program.h"
#include "terrace/checkpoint/safetensors.h"
#include "terrace/io/file.h"

// What the program says and how it ends where numbers are none: exit 4 for weights that are loaded
// and are not finite, exit 7 for results that are not.

namespace terrace::tools::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class NonFiniteProgram : public ::testing::Test {
 protected:
  NonFiniteProgram() {
    std::ofstream text(folder_ / "text.txt");
    for (int number = 1; number < 2000; ++number) text << number << '\n';
  }
  [[nodiscard]] Result terrace(const std::vector<std::string>& arguments) const {
    return run(arguments);
  }
  /// `tiny`, trained for `steps`, into `output`.
  [[nodiscard]] Result train(const std::string& output, int steps,
                             const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = with_data("train", "tiny", "64");
    for (const std::string& argument :
         {std::string("--output"), at(output), std::string("--max_steps"), std::to_string(steps),
          std::string("--per_device_train_batch_size"), std::string("2")}) {
      arguments.push_back(argument);
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return terrace(arguments);
  }
  [[nodiscard]] Result evaluate(const std::string& model) const {
    std::vector<std::string> arguments = with_data("evaluate", at(model), "64");
    arguments.emplace_back("--json");
    return terrace(arguments);
  }
  [[nodiscard]] std::vector<std::string> with_data(const std::string& command,
                                                   const std::string& model,
                                                   const std::string& length) const {
    return {command, "--model", model, "--data", at("text.txt"), "--max_length", length};
  }
  [[nodiscard]] std::string at(const std::string& name) const { return folder_ / name; }

  /// Sets all of a tensor of bf16 weights, or its first element alone.
  void set(const std::string& model, const std::string& tensor, float value, bool all) const {
    const fs::path file = fs::path(at(model)) / "model.safetensors";
    const checkpoint::SafetensorsFile weights(file);
    const checkpoint::TensorEntry& entry = *weights.find(tensor);
    std::string bytes = io::read_file(file);
    const Bf16 stored = to_bf16(value);
    for (std::uint64_t at = entry.begin; at < (all ? entry.end : entry.begin + 2); at += 2) {
      std::memcpy(bytes.data() + weights.data_begin() + at, &stored, sizeof stored);
    }
    io::write_file(file, bytes);
  }

  terrace::testing::TemporaryFolder folder_;
};

TEST_F(NonFiniteProgram, weights_that_are_not_finite_are_named_by_whoever_loads_them) {
  ASSERT_EQ(train("m", 1, {"--save_steps", "0", "--bf16"}).code, 0);
  const std::string norm = "model.layers.0.input_layernorm.weight";
  set("m", norm, std::nanf(""), false);
  std::vector<std::string> more = with_data("train", at("m"), "64");
  more.insert(more.end(), {"--output", at("run"), "--max_steps", "4"});
  for (const Result& result :
       {evaluate("m"),
        terrace({"generate", "--model", at("m"), "--prompt", "12", "--max_new_tokens", "4"}),
        terrace(more)}) {
    EXPECT_EQ(result.code, 4) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(HasSubstr(at("m")), HasSubstr("1 of 128 values"), HasSubstr(norm),
                                  Not(HasSubstr("lm_head"))));
  }
}

TEST_F(NonFiniteProgram, a_result_that_is_none_is_no_success) {
  ASSERT_EQ(train("m", 1, {"--save_steps", "0", "--bf16"}).code, 0);
  set("m", "model.norm.weight", 3e38F, true);  // finite, and the logits are not
  for (const Result& result : {evaluate("m"), terrace({"generate", "--model", at("m"), "--prompt",
                                                       "12", "--max_new_tokens", "4"})}) {
    EXPECT_EQ(result.code, 7) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("all its weights are finite"));
  }
}

TEST_F(NonFiniteProgram, a_run_that_diverges_leaves_no_model_and_shows_no_figure) {
  const Result result = train(
      "run", 40, {"--learning_rate", "3e38", "--save_steps", "2", "--max_skipped_steps", "3"});
  EXPECT_EQ(result.code, 7);
  EXPECT_THAT(result.err, AllOf(HasSubstr("neither are the weights"), HasSubstr("loss not finite"),
                                Not(HasSubstr("nan")), Not(HasSubstr("gradient of"))));
  EXPECT_THAT(io::read_file(folder_ / "run" / "metrics.jsonl"), Not(HasSubstr("NaN")));
  for (const auto& entry : fs::directory_iterator(folder_ / "run")) {
    EXPECT_TRUE(entry.path().filename() == "metrics.jsonl" || entry.path().filename() == "run.json")
        << entry.path();
  }
}

TEST_F(NonFiniteProgram, an_export_to_fp16_that_would_make_infinities_is_refused) {
  ASSERT_EQ(
      train("h", 1,
            {"--save_steps", "1", "--learning_rate", "1e5", "--lr_scheduler_type", "constant"})
          .code,
      0);
  const Result refused = terrace({"export", at("h"), at("half"), "--dtype", "fp16"});
  expect_one_sentence(refused, 7);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("too large for fp16"), HasSubstr("the first is"),
                                 HasSubstr("other tensors")));
  EXPECT_FALSE(fs::exists(folder_ / "half"));
  const Result exported = terrace({"export", at("h"), at("half"), "--dtype", "fp16", "--saturate"});
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.err, HasSubstr("written as its largest number, 65504"));
  EXPECT_EQ(evaluate("half").code, 0);
  EXPECT_EQ(terrace({"export", at("h"), at("wide"), "--dtype", "fp32"}).code, 0);
}

TEST_F(NonFiniteProgram, every_optimizer_saves_and_another_one_is_refused_its_state) {
  for (const std::string optimizer : {"Lion", "Adagrad"}) {
    const std::vector<std::string> other = {"--save_steps", "2", "--resume", "auto"};
    std::vector<std::string> own = other;
    own.insert(own.end(), {"--optim", optimizer});
    const Result first = train(optimizer, 2, own);
    EXPECT_EQ(first.code, 0) << first.err;
    const Result changed = train(optimizer, 4, other);
    EXPECT_EQ(changed.code, 2) << changed.err;
    EXPECT_THAT(changed.err, AllOf(HasSubstr("AdamW"), HasSubstr(optimizer)));
    const Result second = train(optimizer, 4, own);
    EXPECT_EQ(second.code, 0) << second.err;
  }
}

}  // namespace
}  // namespace terrace::tools::testing
