#pragma once

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "injection_report.h"
#include "io/temporary_folder.h"
#include "program.h"

// A system call that fails, or at which the program is killed: each in turn, which chance would
// take long to find.

namespace terrace::tools::testing {

/// Families of system calls, by what a script writes: write, read, fsync, close, flock, fcntl,
/// fallocate, truncate, open (open_to_write: those that may change a file), rename, link, unlink,
/// mkdir (all with what ends in `at`, and their like), io_uring_enter, io_uring_register,
/// io_uring_setup.
using Calls = std::vector<std::string>;

/// Those that change what is on disk, or make it durable.
[[nodiscard]] Calls calls_that_write();

/// What is to happen at the call. Killed is the whole process, by SIGKILL; stopped, before the
/// call, until a SIGCONT.
enum class Strike : std::uint8_t { fails, killed_before, killed_after, stopped };

struct Injection {
  Calls calls;
  /// Only calls on files in or below these are counted, so that the same run counts the same; none:
  /// all. Calls on a ring name no file and are always counted.
  std::vector<std::filesystem::path> below = {};
  std::uint64_t nth = 0;  ///< which of them is struck, from 1; 0: none, they are counted alone
  Strike strike = Strike::fails;
  int error = EIO;
  std::uint64_t times = 1;  ///< how many in a row fail; 0: all from there on
};

/// Prepares one run of the program with an injection, and tells what came of it. Calls of all its
/// threads are counted, from the last time it started itself anew. For a script the same is:
///   LD_PRELOAD=.../libterrace_injection.so TERRACE_INJECT_CALLS=write,fsync
///   TERRACE_INJECT_BELOW=/a:/b TERRACE_INJECT_NTH=5 TERRACE_INJECT_FAULT=ENOSPC (or kill-before,
///   kill-after, stop) TERRACE_INJECT_TIMES=1 TERRACE_INJECT_REPORT=file
class Injected {
 public:
  explicit Injected(const Injection& injection);
  ~Injected();
  Injected(const Injected&) = delete;
  Injected& operator=(const Injected&) = delete;

  [[nodiscard]] const Surroundings& surroundings() const { return surroundings_; }
  /// Calls that were made until now.
  [[nodiscard]] std::uint64_t seen() const { return report_->seen; }
  [[nodiscard]] bool struck() const { return report_->struck > 0; }
  /// The first call that was struck: "rename /run/a.tmp /run/a".
  [[nodiscard]] std::string place() const { return report_->place; }
  [[nodiscard]] bool installed() const { return report_->installed != 0; }

  /// Why nothing can be injected here; empty where it can.
  [[nodiscard]] static std::string unavailable();

 private:
  terrace::testing::TemporaryFolder folder_;
  Surroundings surroundings_;
  InjectionReport* report_ = nullptr;
};

}  // namespace terrace::tools::testing
