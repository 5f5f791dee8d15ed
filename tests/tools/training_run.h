#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/parsed_json.h"
#include "io/temporary_folder.h"
#include "terrace/core/clock.h"

namespace terrace::tools::testing {

/// A text, and runs of `terrace train` on it, of which each has an output folder in this test's.
class TrainingRunTest : public ::testing::Test {
 protected:
  TrainingRunTest() { std::ofstream(folder_ / "text.txt") << std::string(4000, 'a'); }

  /// The arguments of a run of so many short steps, and `more`.
  [[nodiscard]] std::vector<std::string> train(const std::string& output, int steps,
                                               const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"train",
                                          "--model",
                                          "tiny",
                                          "--data",
                                          folder_ / "text.txt",
                                          "--output",
                                          folder_ / output,
                                          "--max_length",
                                          "16",
                                          "--per_device_train_batch_size",
                                          "1",
                                          "--max_steps",
                                          std::to_string(steps)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  [[nodiscard]] std::string text_of(const std::string& file) const {
    std::ifstream stream(folder_ / file);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }
  [[nodiscard]] nlohmann::json record(const std::string& output) const {
    return terrace::testing::parse_json(text_of(output + "/run.json"));
  }
  /// Rows of its metrics.
  [[nodiscard]] int rows(const std::string& output) const {
    return static_cast<int>(std::ranges::count(text_of(output + "/metrics.jsonl"), '\n'));
  }
  [[nodiscard]] bool has(const std::string& file) const {
    return std::filesystem::exists(folder_ / file);
  }

  /// Whether it comes true within a minute.
  template <class Condition>
  [[nodiscard]] static bool comes_true(const Condition& condition) {
    for (const std::int64_t begin = now_us(); seconds_since(begin) < 60; sleep_us(5000)) {
      if (condition()) return true;
    }
    return false;
  }
  [[nodiscard]] bool has_rows(const std::string& output, int count) const {
    return comes_true([&] { return rows(output) >= count; });
  }

  terrace::testing::TemporaryFolder folder_;
};

}  // namespace terrace::tools::testing
