#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "core/parsed_json.h"
#include "io/temporary_folder.h"
#include "other_rights.h"
#include "program.h"

// Places that may not be read or written, that are not there, and limits of what may be open.

namespace terrace::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::expect_one_sentence;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Result;
using testing::run;
using testing::Surroundings;

const Surroundings kAnotherUser{.prepare = testing::become_another_user};

/// A folder that every user can look into, with a text, and in it a folder that nobody can enter
/// and one that everybody can write to.
class Places : public ::testing::Test {
 protected:
  Places() {
    fs::permissions(folder_.path(), fs::perms(0755));
    std::ofstream(text_) << std::string(2000, 'a');
    fs::create_directories(closed_ / "model");
    std::ofstream(closed_ / "config.json") << "{}";
    fs::permissions(closed_, fs::perms(0));
    fs::create_directory(open_);
    fs::permissions(open_, fs::perms(0777));
  }
  ~Places() override { fs::permissions(closed_, fs::perms(0755)); }

  void SetUp() override {
    std::ofstream(folder_ / "probe") << "x";
    const Result probe = run({"inspect", folder_ / "probe"}, kAnotherUser);
    if (probe.code != 4 || probe.err.find("is not a .safetensors file") == std::string::npos) {
      GTEST_SKIP() << "another user may not start the program, or look into TMPDIR, here";
    }
  }

  [[nodiscard]] std::vector<std::string> train(const fs::path& output) const {
    return {"train", "--model",
            "tiny",  "--data",
            text_,   "--output",
            output,  "--max_length",
            "16",    "--per_device_train_batch_size",
            "1",     "--max_steps",
            "1",     "--save_steps",
            "1"};
  }

  terrace::testing::TemporaryFolder folder_;
  fs::path text_ = folder_ / "text.txt";
  fs::path closed_ = folder_ / "closed";
  fs::path open_ = folder_ / "open";
};

TEST_F(Places, what_may_not_be_looked_at_is_not_called_missing) {
  const fs::path model = closed_ / "model";
  std::vector<std::string> with_config = train(open_ / "run");
  with_config.insert(with_config.end(), {"--config", closed_ / "config.json"});
  const std::vector<std::pair<std::vector<std::string>, int>> commands = {
      {{"evaluate", "--model", model, "--data", text_}, 4},
      {{"plan", "--model", model}, 4},
      {{"generate", "--model", model, "--prompt", "a"}, 4},
      {{"inspect", model}, 4},
      {{"export", model, folder_ / "exported"}, 4},
      {{"train", "--model", "tiny", "--data", closed_ / "text.txt", "--output", open_ / "run"}, 4},
      {with_config, 2},
      {train(closed_ / "run"), 5},
      {{"swap", "ls", closed_ / "swap"}, 5},
      {{"doctor", "--swap", closed_ / "swap"}, 5},
      {{"plan", "--model", "tiny", "--profile", closed_ / "profile.json"}, 2}};
  for (const auto& [command, code] : commands) {
    SCOPED_TRACE(command.front());
    const Result result = run(command, kAnotherUser);
    expect_one_sentence(result, code);
    EXPECT_THAT(result.err, AllOf(HasSubstr("the folder " + closed_.string() + " is closed"),
                                  HasSubstr("EACCES"), HasSubstr("change its rights")));
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("exist")), Not(HasSubstr("is a file"))));
  }
}

TEST_F(Places, where_nothing_can_be_made_is_told_with_the_reason) {
  const Result here = run(train(folder_ / "run"), kAnotherUser);
  expect_one_sentence(here, 5);
  EXPECT_THAT(here.err, AllOf(HasSubstr(folder_.path().string()), HasSubstr("EACCES")));

  ASSERT_EQ(run(train(folder_ / "run")).code, 0);
  const Result denied = run({"export", folder_ / "run", folder_ / "exported"}, kAnotherUser);
  expect_one_sentence(denied, 5);
  EXPECT_THAT(denied.err,
              AllOf(HasSubstr("cannot make the folder " + (folder_ / "exported").string()),
                    HasSubstr("EACCES")));

  fs::create_directory(folder_ / "fixed");
  const std::string fixed = folder_ / "fixed";
  const Result read_only = run({"export", folder_ / "run", folder_ / "fixed/exported"},
                               {.prepare = [&] { testing::hide(fixed.c_str()); }});
  if (read_only.code == testing::kNotAllowed) GTEST_SKIP() << "nothing may be mounted here";
  expect_one_sentence(read_only, 5);
  EXPECT_THAT(read_only.err, AllOf(HasSubstr(fixed), HasSubstr("EROFS")));
}

TEST_F(Places, a_working_folder_that_was_removed_is_told) {
  const std::string gone = folder_ / "gone";
  const Result result = run(train("run"), {.prepare = [&] {
                              if (::mkdir(gone.c_str(), 0700) != 0 || ::chdir(gone.c_str()) != 0 ||
                                  ::rmdir(gone.c_str()) != 0) {
                                ::_exit(testing::kNotAllowed);
                              }
                            }});
  expect_one_sentence(result, 5);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the working folder is gone"), HasSubstr("ENOENT")));
}

TEST_F(Places, a_run_needs_neither_proc_nor_sys) {
  ASSERT_EQ(run(train(folder_ / "run")).code, 0);
  for (const char* missing : {"/proc", "/sys"}) {
    const fs::path output = folder_ / ("run" + fs::path(missing).filename().string());
    const Result result = run(train(output), {.prepare = [&] { testing::hide(missing); }});
    if (result.code == testing::kNotAllowed) GTEST_SKIP() << "nothing may be mounted here";
    ASSERT_EQ(result.code, 0) << missing << ": " << result.err;
    const auto weights = [](const fs::path& run) {
      std::ifstream file(run / "model.safetensors", std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    EXPECT_TRUE(weights(output) == weights(folder_ / "run")) << missing;
  }
}

Surroundings with_open_files(rlim_t most) {
  return {.prepare = [most] {
    const rlimit limit{most, most};
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }};
}

TEST_F(Places, many_files_of_data_need_few_descriptors) {
  fs::create_directory(folder_ / "texts");
  for (int file = 0; file < 600; ++file) {
    std::ofstream(folder_ / ("texts/" + std::to_string(file) + ".txt")) << std::string(100, 'a');
  }
  std::vector<std::string> command = train(folder_ / "run");
  command.insert(command.end(), {"--data", folder_ / "texts", "--eval_data", folder_ / "texts",
                                 "--overwrite_output_dir"});
  for (const rlim_t most : {256, 64}) {
    const Result result = run(command, with_open_files(most));
    EXPECT_EQ(result.code, 0) << most << ": " << result.err;
  }
  const Result result = run(command, with_open_files(5));
  EXPECT_EQ(result.code, 5) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("EMFILE"), HasSubstr("ulimit -n")));
}

TEST_F(Places, the_limit_of_open_files_is_raised_as_far_as_it_goes) {
  const Result result = run({"doctor", "--json"}, {.prepare = [] {
                              const rlimit limit{64, 512};
                              (void)::setrlimit(RLIMIT_NOFILE, &limit);
                            }});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto findings = terrace::testing::parse_json(result.out);
  EXPECT_EQ(findings.at("facts").at("open files"), "512 at most");
  EXPECT_THAT(findings.at("to_mend").dump(), HasSubstr("ulimit -n 1024"));
}

TEST(Sources, no_place_of_the_build_is_in_the_program) {
  std::ifstream file(TERRACE_PROGRAM, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  ASSERT_GT(bytes.size(), 100'000U);
  EXPECT_NE(bytes.find(std::string("src/config/settings.cpp") + '\0'), std::string::npos);
  EXPECT_EQ(bytes.find("../src/config/settings.cpp"), std::string::npos);
#ifdef TERRACE_SOURCES  // what a debugger reads holds it
  EXPECT_EQ(bytes.find(TERRACE_SOURCES), std::string::npos);
#endif
}

}  // namespace
}  // namespace terrace::tools
