#include "environment.h"

#include <fmt/ranges.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "terrace/core/excerpt.h"

namespace terrace::tools {
namespace {

/// Whose variables: OpenMP's (of libgomp, and of what is preloaded in its place) decide how large
/// teams are, where their threads run and how large their stacks are; oneDNN's, by which
/// instructions and in which precision it multiplies. By their beginnings, because each version
/// adds some (OMP_THREAD_LIMIT_ALL).
constexpr std::array<std::string_view, 5> kDeciding = {"OMP_", "GOMP_", "KMP_", "DNNL_", "ONEDNN_"};

/// Those among them that only show something, or decide how threads wait and what is kept.
constexpr std::array<std::string_view, 13> kHarmless = {"OMP_WAIT_POLICY=",
                                                        "OMP_DISPLAY_",
                                                        "OMP_AFFINITY_FORMAT=",
                                                        "GOMP_SPINCOUNT=",
                                                        "GOMP_DEBUG=",
                                                        "KMP_BLOCKTIME=",
                                                        "KMP_SETTINGS=",
                                                        "DNNL_VERBOSE",
                                                        "ONEDNN_VERBOSE",
                                                        "DNNL_JIT_",
                                                        "ONEDNN_JIT_",
                                                        "DNNL_PRIMITIVE_CACHE_CAPACITY=",
                                                        "ONEDNN_PRIMITIVE_CACHE_CAPACITY="};

constexpr const char* kPassive = "OMP_WAIT_POLICY=passive";

bool begins_with_any(std::string_view entry, std::span<const std::string_view> beginnings) {
  return std::ranges::any_of(beginnings,
                             [&](auto beginning) { return entry.starts_with(beginning); });
}

/// What was taken out: the loader's call has nobody to give it to. There are not nearly as many.
struct TakenOut {
  std::array<const char*, 256> entries;
  std::size_t count;
};
constinit TakenOut taken_out = {};

/// Called before any library is initialized, so it allocates nothing and changes `entries`, of
/// which the environment is then made, in place.
void settle_environment(int /*argc*/, char** /*argv*/, char** entries) {
  char** kept = entries;
  bool has_policy = false;
  for (char** entry = entries; *entry != nullptr; ++entry) {
    if (begins_with_any(*entry, kDeciding) && !begins_with_any(*entry, kHarmless)) {
      if (taken_out.count < taken_out.entries.size()) taken_out.entries[taken_out.count++] = *entry;
      continue;
    }
    has_policy = has_policy || std::string_view(*entry).starts_with("OMP_WAIT_POLICY=");
    *kept++ = *entry;
  }
  // A place that became free holds the policy, which saves the second start.
  if (taken_out.count > 0 && !has_policy) *kept++ = const_cast<char*>(kPassive);
  *kept = nullptr;
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kBeforeLibraries)(int, char**, char**) = settle_environment;

}  // namespace

std::vector<std::string> ignored_variables() {
  const std::span entries = std::span(taken_out.entries).first(taken_out.count);
  return {entries.begin(), entries.end()};
}

std::string describe_ignored_variables() {
  std::vector<std::string> shown;
  for (const std::string& entry : ignored_variables()) shown.push_back(excerpt(entry));
  if (shown.empty()) return {};
  return fmt::format(
      "{} in the environment {} not obeyed: no variable decides what is computed, or by how many "
      "threads (--threads)",
      fmt::join(shown, ", "), shown.size() == 1 ? "is" : "are");
}

void raise_open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

void wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  char path[PATH_MAX + 1] = {};
  if (readlink("/proc/self/exe", path, PATH_MAX) > 0) execv(path, argv);
  // There may be no /proc. The kernel keeps the name that the program was started by.
  const auto* started_by = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (started_by != nullptr) execv(started_by, argv);
}

}  // namespace terrace::tools
