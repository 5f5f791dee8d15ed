#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "terrace/config/options.h"
#include "terrace/config/settings.h"
#include "terrace/core/error.h"

namespace terrace::config {

/// A file with the given text, removed at the end.
class TextFile {
 public:
  explicit TextFile(const std::string& text)
      : path_((std::filesystem::temp_directory_path() /
               ::testing::UnitTest::GetInstance()->current_test_info()->name())
                  .string() +
              ".json") {
    std::ofstream(path_) << text;
  }
  ~TextFile() { std::filesystem::remove(path_); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Parsed {
  Settings settings;
  std::vector<std::string> notes;
};

/// What `terrace train` makes of these arguments.
inline Parsed parse(const std::vector<std::string>& arguments) {
  Parsed result;
  OptionTable table = settings_options(result.settings);
  parse_command_line(table, arguments);
  result.notes = table.notes();
  return result;
}

/// What it makes of a file with this text, and arguments after it.
inline Parsed parse_file(const std::string& text, std::vector<std::string> arguments = {}) {
  const TextFile file(text);
  arguments.insert(arguments.begin(), {"--config", file.path()});
  return parse(arguments);
}

/// The message of the usage error that `call` must throw.
template <class Call>
std::string usage_error(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace terrace::config
