#include "injection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <stdexcept>

#include "core/sanitized.h"

namespace terrace::tools::testing {
namespace {

std::string fault_of(const Injection& injection) {
  switch (injection.strike) {
    case Strike::killed_before:
      return "kill-before";
    case Strike::killed_after:
      return "kill-after";
    case Strike::stopped:
      return "stop";
    case Strike::fails:
      break;
  }
  return strerrorname_np(injection.error);
}

InjectionReport* map_report(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* mapped = MAP_FAILED;
  if (file >= 0 && ::ftruncate(file, sizeof(InjectionReport)) == 0) {
    mapped = ::mmap(nullptr, sizeof(InjectionReport), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (file >= 0) ::close(file);
  if (mapped == MAP_FAILED) throw std::runtime_error("cannot map " + path);
  return new (mapped) InjectionReport;
}

}  // namespace

Calls calls_that_write() {
  return {"write",     "fsync",    "rename", "open_to_write", "unlink",
          "fallocate", "truncate", "link",   "mkdir",         "io_uring_enter"};
}

Injected::Injected(const Injection& injection) {
  const std::string report = folder_ / "report";
  report_ = map_report(report);
  std::vector<std::string> below;
  for (const auto& path : injection.below) below.push_back(std::filesystem::weakly_canonical(path));
  surroundings_.environment = {
      {"LD_PRELOAD", TERRACE_INJECTION},
      {"TERRACE_INJECT_CALLS", fmt::format("{}", fmt::join(injection.calls, ","))},
      {"TERRACE_INJECT_BELOW", fmt::format("{}", fmt::join(below, ":"))},
      {"TERRACE_INJECT_NTH", std::to_string(injection.nth)},
      {"TERRACE_INJECT_TIMES", std::to_string(injection.times)},
      {"TERRACE_INJECT_FAULT", fault_of(injection)},
      {"TERRACE_INJECT_REPORT", report}};
}

Injected::~Injected() { ::munmap(report_, sizeof(InjectionReport)); }

std::string Injected::unavailable() {
  if (kSanitized) return "a sanitizer wants to be the first library that is loaded";
  if (std::strlen(TERRACE_INJECTION) == 0) return "the handler knows x86-64 alone";
  const Injected probe({.calls = {"write"}});
  if (run({"--version"}, probe.surroundings()).code != 0 || !probe.installed()) {
    return "the system refuses a seccomp filter";
  }
  return "";
}

}  // namespace terrace::tools::testing
