#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/parsed_json.h"
#include "io/temporary_folder.h"
#include "other_rights.h"
#include "program.h"
#include "terrace/core/workers.h"

// What the environment and the system give the program decides nothing about results.

namespace terrace::tools {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using testing::Result;
using testing::run;
using testing::Surroundings;

void run_on_one_processor() {
  cpu_set_t allowed;
  cpu_set_t last;
  CPU_ZERO(&last);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    CPU_ZERO(&last);
    CPU_SET(cpu, &last);
  }
  (void)::sched_setaffinity(0, sizeof last, &last);
}

/// A variable and its value, or what the child does before the program.
struct Setting {
  const char* name;
  const char* value;
  void (*prepare)() = nullptr;
};

constexpr std::array kSettings = {Setting{"OMP_THREAD_LIMIT", "1"},
                                  Setting{"OMP_WAIT_POLICY", "active"},
                                  Setting{"OMP_DYNAMIC", "true"},
                                  Setting{"GOMP_CPU_AFFINITY", "0"},
                                  Setting{"OMP_MAX_ACTIVE_LEVELS", "0"},
                                  Setting{"OMP_PROC_BIND", "true"},
                                  Setting{"OMP_PLACES", "{0}"},
                                  Setting{"OMP_NUM_THREADS", "1"},
                                  Setting{"OMP_STACKSIZE", "16K"},
                                  Setting{"DNNL_DEFAULT_FPMATH_MODE", "BF16"},
                                  Setting{"DNNL_MAX_CPU_ISA", "SSE41"},
                                  Setting{"affinity", "one processor", run_on_one_processor}};

Surroundings with(std::span<const Setting> settings) {
  Surroundings surroundings;
  for (const Setting& setting : settings) {
    if (setting.prepare != nullptr) {
      surroundings.prepare = setting.prepare;
    } else {
      surroundings.environment[setting.name] = setting.value;
    }
  }
  return surroundings;
}

std::string describe(std::span<const Setting> settings) {
  std::string text;
  for (const Setting& setting : settings) {
    text += std::string(setting.name) + "=" + setting.value + " ";
  }
  return text;
}

/// Trains and evaluates on the same text, and says what came out to the last bit.
class Computation {
 public:
  Computation() {
    std::ofstream text(folder_ / "text.txt");
    for (int number = 0; number < 2000; ++number) text << number << '\n';
  }

  [[nodiscard]] std::string train(const Surroundings& surroundings, const std::string& dtype) {
    std::filesystem::remove_all(folder_ / "run");
    const Result result =
        run({"train", "--model", "tiny", "--data", folder_ / "text.txt", "--output",
             folder_ / "run", "--max_length", "64", "--per_device_train_batch_size", "4",
             "--learning_rate", "1e-3", "--max_steps", "3", "--save_steps", "0", "--dtype", dtype},
            surroundings);
    if (result.code != 0) return result.err;
    std::ifstream rows(folder_ / "run/metrics.jsonl");
    std::string numbers;
    for (std::string row; std::getline(rows, row);) {
      const auto json = terrace::testing::parse_json(row);
      numbers += json.at("step").dump() + " " + json.at("loss").dump() + " " +
                 json.at("grad_norm").dump() + "\n";
    }
    return numbers;
  }
  [[nodiscard]] std::string evaluate(const Surroundings& surroundings) const {
    const Result result = run({"evaluate", "--model", folder_ / "run", "--data",
                               folder_ / "text.txt", "--max_length", "64", "--json"},
                              surroundings);
    if (result.code != 0) return result.err;
    return terrace::testing::parse_json(result.out).at("loss").dump();
  }
  [[nodiscard]] std::string record() const {
    std::ifstream file(folder_ / "run/run.json");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  terrace::testing::TemporaryFolder folder_;
};

TEST(Environment, no_setting_changes_a_bit_of_losses) {
  Computation computation;
  for (const std::string dtype : {"bf16", "fp32"}) {
    const std::string expected = computation.train({}, dtype);
    EXPECT_THAT(expected, HasSubstr("\n3 "));
    for (const Setting& setting : kSettings) {
      EXPECT_EQ(computation.train(with({&setting, 1}), dtype), expected)
          << describe({&setting, 1}) << dtype;
    }
  }
}

/// One after the other in the table; with TERRACE_TEST_ALL_PAIRS in the environment all 66.
TEST(Environment, no_pair_of_settings_changes_a_bit_of_losses) {
  Computation computation;
  const std::string expected = computation.train({}, "bf16");
  const bool all = std::getenv("TERRACE_TEST_ALL_PAIRS") != nullptr;
  int pairs = 0;
  for (std::size_t first = 0; first < kSettings.size(); ++first) {
    const std::size_t end = all ? kSettings.size() : std::min(first + 2, kSettings.size());
    for (std::size_t second = first + 1; second < end; ++second, ++pairs) {
      const std::array pair = {kSettings[first], kSettings[second]};
      EXPECT_EQ(computation.train(with(pair), "bf16"), expected) << describe(pair);
    }
  }
  EXPECT_EQ(pairs, all ? 66 : 11);
}

TEST(Environment, no_setting_changes_a_bit_of_an_evaluation) {
  Computation computation;
  (void)computation.train({}, "bf16");
  const std::string expected = computation.evaluate({});
  for (const Setting& setting : kSettings) {
    EXPECT_EQ(computation.evaluate(with({&setting, 1})), expected) << describe({&setting, 1});
  }
}

TEST(Environment, what_is_not_obeyed_is_said_by_the_run_its_record_and_the_doctor) {
  Computation computation;
  const Surroundings surroundings{.environment = {{"OMP_DYNAMIC", "true"},
                                                  {"OMP_WAIT_POLICY", "active"},
                                                  {"OMP_DISPLAY_ENV", "false"}}};
  (void)computation.train(surroundings, "bf16");
  const auto record = terrace::testing::parse_json(computation.record());
  EXPECT_THAT(record.at("fallbacks"),
              Contains(::testing::ResultOf([](const auto& line) { return line.dump(); },
                                           HasSubstr("OMP_DYNAMIC=true in the environment"))));
  const Result doctor = run({"doctor", "--json"}, surroundings);
  ASSERT_EQ(doctor.code, 0) << doctor.err;
  const auto findings = terrace::testing::parse_json(doctor.out);
  EXPECT_EQ(findings.at("facts").at("environment"), "without OMP_DYNAMIC");
  EXPECT_THAT(findings.at("to_mend").dump(), HasSubstr("unset OMP_DYNAMIC: "));
}

TEST(Environment, a_limit_of_processes_is_told_with_its_remedy) {
  if (choose_threads(2).threads < 2) GTEST_SKIP() << "one processor";
  if (run({"--version"}, {.prepare = testing::become_another_user}).code != 0) {
    GTEST_SKIP() << "another user may not start the program here";
  }
  const Result result = run({"plan", "--model", "tiny", "--threads", "2"}, {.prepare = [] {
                              testing::become_another_user();
                              const rlimit none{1, 1};
                              (void)::setrlimit(RLIMIT_NPROC, &none);
                            }});
  testing::expect_one_sentence(result, 8);
  EXPECT_THAT(result.err, HasSubstr("ulimit -u"));
}

}  // namespace
}  // namespace terrace::tools
