#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "environment.h"
#include "subcommand.h"
#include "terrace/core/container.h"
#include "terrace/core/json.h"
#include "terrace/core/units.h"
#include "terrace/core/workers.h"
#include "terrace/device/gpu.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/engine.h"
#include "terrace/io/free_space.h"
#include "terrace/io/run_folder.h"
#include "terrace/runtime/machine.h"

namespace terrace::tools {
namespace {

namespace fs = std::filesystem;

/// What was found out, and the sentences with what would mend it.
struct Findings {
  std::vector<config::Fact> facts;
  std::vector<std::string> advice;
};

/// A log that keeps fall-backs for the end instead of showing them at once.
Log quiet_log() {
  return Log([](LogLevel, std::string_view) {});
}

void take_fallbacks(Findings& findings, const Log& log) {
  for (std::string& line : log.fallbacks()) findings.advice.push_back(std::move(line));
}

void examine_processor(Findings& findings) {
  Log log = quiet_log();
  const runtime::Machine machine = runtime::make_machine({.runs_here = false}, log);
  findings.facts.emplace_back("threads", machine.threads.describe());
  const std::size_t nodes = read_topology().nodes.size();
  findings.facts.emplace_back("NUMA nodes", nodes > 0 ? fmt::format("{}", nodes) : "not known");
  findings.facts.emplace_back("kernels", machine.ops->description());
  std::string instead = machine.ops->instead_of_native(DType::bf16);
  if (!instead.empty()) findings.advice.push_back(std::move(instead));
}

void examine_environment(Findings& findings) {
  std::vector<std::string> names;
  for (const std::string& entry : ignored_variables()) {
    names.push_back(entry.substr(0, entry.find('=')));
  }
  findings.facts.emplace_back("environment",
                              names.empty() ? "nothing in it bears on results"
                                            : fmt::format("without {}", fmt::join(names, ", ")));
  if (names.empty()) return;
  findings.advice.push_back(
      fmt::format("unset {}: {}", fmt::join(names, " "), describe_ignored_variables()));
}

void examine_limits(Findings& findings) {
  // Below that, of the files of data or of a model only a few can stay open.
  constexpr rlim_t kUsualFiles = 1024;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  findings.facts.emplace_back("open files", fmt::format("{} at most", files.rlim_cur));
  if (files.rlim_cur >= kUsualFiles) return;
  findings.advice.push_back(
      fmt::format("ulimit -n {}: at most {} files can be open, so most of many would be opened for "
                  "each read",
                  kUsualFiles, files.rlim_cur));
}

void examine_memory(Findings& findings) {
  const Limit total = total_memory();
  const Limit available = available_memory();
  findings.facts.emplace_back(
      "RAM",
      fmt::format("{} ({})", format_bytes(static_cast<std::uint64_t>(total.value)), total.source));
  findings.facts.emplace_back(
      "RAM available",
      fmt::format("{} ({})", format_bytes(static_cast<std::uint64_t>(available.value)),
                  available.source));
}

/// A GPU that is found and cannot be used is said, with the reason.
void examine_gpu(Findings& findings) {
  const device::GpuSearch search = device::look_for_gpu();
  findings.facts.emplace_back("GPU", search.found ? "found, not used" : "none found");
  if (search.found) findings.advice.push_back(search.reason);
}

/// A file that is removed at the end.
class ProbeFile {
 public:
  explicit ProbeFile(const fs::path& folder)
      : path_(folder / fmt::format("terrace-doctor-{}", getpid())) {}
  ~ProbeFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Writes and reads a MiB as a run would, so that what is refused shows. Of several folders on one
/// file system all but the first have the space of an earlier one (`is_counted`).
void examine_disk(Findings& findings, const fs::path& folder, bool is_counted) {
  if (io::is_in_memory(folder)) {
    findings.advice.push_back(fmt::format(
        "{} lies in memory (tmpfs): choose a folder on a drive for --swap", folder.string()));
  }
  Log log = quiet_log();
  io::EngineOptions options;
  const auto engine = io::make_engine(options, log);
  const ProbeFile probe(folder);
  const auto file = engine->open(probe.path(), {.create = true, .bytes = options.piece_bytes});
  io::AlignedMemory memory(options.piece_bytes);
  std::fill_n(memory.data(), memory.size(), std::byte{0x5a});
  const std::array<std::span<std::byte>, 1> buffers = {memory.span()};
  engine->register_buffers(buffers);
  for (const auto kind : {io::Operation::write, io::Operation::read}) {
    io::transfer(*engine, {kind, file.id, 0, memory.data(), memory.size()});
  }
  const io::Capabilities found = engine->capabilities();
  findings.facts.emplace_back(
      fmt::format("disk {}", folder.string()),
      fmt::format("{} free{}, {}, {}, buffers {}", format_bytes(io::free_bytes(folder)),
                  is_counted ? " (those of a folder above: one file system)" : "", found.driver,
                  found.direct ? "O_DIRECT" : "page cache",
                  found.registered ? "registered" : "not registered"));
  take_fallbacks(findings, log);
}

void examine_disks(Findings& findings, const std::vector<fs::path>& folders) {
  io::require_distinct_folders("--swap", folders);
  for (const fs::path& folder : folders) io::require_writable_folder(folder);
  for (auto folder = folders.begin(); folder != folders.end(); ++folder) {
    const bool is_counted = std::any_of(folders.begin(), folder, [&](const fs::path& earlier) {
      return io::share_a_file_system(std::array{earlier, *folder});
    });
    examine_disk(findings, *folder, is_counted);
  }
}

std::string as_text(const Findings& findings) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, value] : findings.facts) rows.push_back({name, value});
  std::string text = train::aligned(rows) + "\n";
  if (findings.advice.empty()) return text + "nothing to mend\n";
  for (const std::string& line : findings.advice) text += fmt::format("to mend: {}\n", line);
  return text;
}

std::string as_json(const Findings& findings) {
  Json facts = Json::object();
  for (const auto& [name, value] : findings.facts) facts[name] = value;
  return json_text(
      {{"schema", "terrace.doctor/1"}, {"facts", facts}, {"to_mend", findings.advice}});
}

}  // namespace

int run_doctor(Context& context, const Arguments& arguments) {
  std::vector<std::string> swap;
  bool json = false;
  config::OptionTable table;
  table.group("Options");
  table.add({.flags = {"swap"},
             .field = config::field(swap),
             .help = "folders that are to hold page stores, to be tried with a small file"});
  table.add({.flags = {"json"},
             .field = config::field(json),
             .help = "write the findings as one JSON object"});
  if (!parse(context, table, "terrace doctor [--swap DIR[,DIR]] [OPTION ...]", arguments)) return 0;
  Findings findings;
  examine_processor(findings);
  examine_environment(findings);
  examine_limits(findings);
  examine_memory(findings);
  examine_gpu(findings);
  examine_disks(findings, {swap.begin(), swap.end()});
  print(json ? as_json(findings) : as_text(findings));
  return 0;
}

}  // namespace terrace::tools
