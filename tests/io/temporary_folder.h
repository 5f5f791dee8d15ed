#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace terrace::testing {

/// A folder of its own that is removed with all it holds. It lies below TMPDIR, or the working
/// folder: never /tmp by habit, which may be a tmpfs, and what is tested here is disks.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* base = ::getenv("TMPDIR");
    std::string name = std::string(base != nullptr ? base : ".") + "/terrace-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
    path_ = std::filesystem::canonical(name);  // as the system tells of it
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace terrace::testing
