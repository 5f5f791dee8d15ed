#pragma once

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "io/temporary_folder.h"
#include "terrace/checkpoint/state.h"
#include "terrace/config/settings.h"
#include "terrace/core/error.h"
#include "terrace/model/config.h"
#include "terrace/train/watch.h"

// Whole training runs through the library, small enough that dozens take seconds.

namespace terrace::train::testing {

/// A llama of odd sizes over bytes: 13 flats, several chunks of the smallest size in some.
[[nodiscard]] model::Config small_llama(bool tied);

/// Text that differs from line to line, of about `bytes` bytes.
[[nodiscard]] std::string text(std::size_t bytes, unsigned seed);
void write(const std::filesystem::path& file, const std::string& contents);
[[nodiscard]] std::string read(const std::filesystem::path& file);

/// Changes initial values of a parameter; may be empty.
using Alter =
    std::function<void(const std::string& tensor, std::int64_t first, std::span<float> values)>;
/// Writes a model folder with FP32 weights drawn from a seed.
void write_model(const std::filesystem::path& folder, const model::Config& config,
                 const Alter& alter = {});

/// The values of one row of metrics.jsonl that tests compare.
struct Row {
  std::int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  std::int64_t skipped = 0;
  double eval_loss = -1;
  std::string nonfinite;
  friend bool operator==(const Row&, const Row&) = default;
};
std::ostream& operator<<(std::ostream& stream, const Row& row);
/// Rows in the file's order; a null loss (not finite) is -1.
[[nodiscard]] std::vector<Row> rows(const std::filesystem::path& output);

/// A stream that swallows everything.
struct NullFile {
  std::FILE* file = std::fopen("/dev/null", "w");
  NullFile() = default;
  NullFile(const NullFile&) = delete;
  NullFile& operator=(const NullFile&) = delete;
  ~NullFile() { std::fclose(file); }
};

/// What the library is handed where nobody looks on; who sets `signal` stops it.
struct Unattended {
  NullFile null;
  Terminal terminal{null.file, false};
  Log log{[](LogLevel, std::string_view) {}};
  std::atomic<int> signal{0};
  Watch watch{signal, terminal, log};
};

/// What became of a run.
struct Result {
  int code = -1;                   ///< of `train`, or of the error
  std::string error;               ///< what the error said; empty: none
  std::vector<std::string> lines;  ///< of the log
  [[nodiscard]] bool says(const std::string& part) const;
};

/// Runs `train`. `on_line` sees each line of the log (from any thread) and may ask the run to stop
/// by setting the signal.
[[nodiscard]] Result train_run(
    config::Settings settings,
    const std::function<void(const std::string& line, std::atomic<int>& signal)>& on_line = {});

/// A model, data and a swap folder, and runs on them.
class TrainingTest : public ::testing::Test {
 protected:
  explicit TrainingTest(bool tied = true);

  /// A run into `output` of this test's folder: fp32, 2 x 2 sequences of 16 tokens, 6 steps, no
  /// checkpoints.
  [[nodiscard]] config::Settings settings(const std::string& output) const;
  /// The run of `settings`, which must end with 0.
  std::vector<Row> run(const config::Settings& settings) const;

  terrace::testing::TemporaryFolder folder_;
};

}  // namespace terrace::train::testing
