#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "subcommand.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/core/units.h"
#include "terrace/io/entry.h"
#include "terrace/io/run_folder.h"

namespace terrace::tools {
namespace {

enum class Action { list, clean };

struct SwapSettings {
  Action action = Action::list;
  std::vector<std::string> folders;
  bool force = false;
  bool json = false;
};

config::OptionTable swap_options(SwapSettings& settings) {
  config::OptionTable table;
  table.group("Arguments");
  table.add({.flags = {"action"},
             .field = config::choice<Action>(settings.action,
                                             {{"ls", Action::list}, {"clean", Action::clean}}),
             .help = "ls lists the runs' folders, clean removes those of dead runs",
             .positional = true,
             .required = true});
  table.add({.flags = {"folder"},
             .field = config::field(settings.folders),
             .help = "folders that were given to train as --swap, or below them that of one run",
             .positional = true,
             .required = true});
  table.group("Options");
  table.add(
      {.flags = {"force"},
       .field = config::field(settings.force),
       .help =
           "clean also removes folders of runs that may live on another host, and that you know "
           "to be over"});
  table.add({.flags = {"json"},
             .field = config::field(settings.json),
             .help = "ls writes one JSON object"});
  return table;
}

std::vector<io::RunRecord> find_runs(const SwapSettings& settings) {
  std::vector<io::RunRecord> runs;
  const auto& folders = settings.folders;
  for (auto folder = folders.begin(); folder != folders.end(); ++folder) {
    const bool is_known = std::any_of(folders.begin(), folder, [&](const std::string& other) {
      return io::is_same_folder(other, *folder);
    });
    if (is_known) continue;
    for (io::RunRecord& run : io::list_run_folders(*folder)) runs.push_back(std::move(run));
  }
  return runs;
}

std::string as_json(const std::vector<io::RunRecord>& runs) {
  auto list = Json::array();
  for (const io::RunRecord& run : runs) {
    list.push_back({{"path", run.path.string()},
                    {"run_id", run.id.run.text()},
                    {"owner", run.owner},
                    {"state", name_of(run.liveness)},
                    {"host", run.host},
                    {"pid", run.pid},
                    {"since", run.since},
                    {"bytes", run.bytes}});
  }
  return json_text({{"schema", 1}, {"runs", list}});
}

std::string as_table(const std::vector<io::RunRecord>& runs) {
  if (runs.empty()) return "no run has left anything here\n";
  std::vector<std::vector<std::string>> rows = {
      {"state", "size", "host", "pid", "since", "run", "folder"}};
  for (const io::RunRecord& run : runs) {
    // One whose making or removal was cut short may say nothing of its run.
    const auto known = [&](const std::string& text) { return run.owner.empty() ? "-" : text; };
    rows.push_back({std::string(name_of(run.liveness)), format_bytes(run.bytes), known(run.host),
                    known(fmt::format("{}", run.pid)), known(run.since), known(run.owner),
                    run.path.string()});
  }
  constexpr std::array<std::size_t, 2> right = {1, 3};
  return train::aligned(rows, right);
}

void clean(const SwapSettings& settings, Log& log) {
  std::uint64_t freed = 0;
  std::size_t removed = 0;
  for (const io::RunRecord& run : find_runs(settings)) {
    const bool unknown = run.liveness == io::RunLiveness::unknown;
    if (run.liveness == io::RunLiveness::live || (unknown && !settings.force)) {
      log.info("{}: kept, its run {}", run.path.string(),
               unknown
                   ? fmt::format("may live ({}): --force removes it, if you know that it is over",
                                 run.holder())
                   : fmt::format("is live ({})", run.holder()));
      continue;
    }
    if (!io::is_there(run.path)) continue;  // went with a sibling on another drive
    const io::Removal removal = io::remove_run_folder(run, settings.force);
    for (const std::string& kept : removal.kept) log.warning("{}; it stays as it is", kept);
    freed += removal.bytes;
    ++removed;
  }
  print(fmt::format("{} removed, {} freed\n", counted(removed, "run"), format_bytes(freed)));
}

}  // namespace

int run_swap(Context& context, const Arguments& arguments) {
  SwapSettings settings;
  config::OptionTable table = swap_options(settings);
  if (!parse(context, table, "terrace swap ls|clean FOLDER ... [OPTION ...]", arguments)) return 0;
  if (settings.action == Action::clean) {
    clean(settings, context.log);
  } else {
    const auto runs = find_runs(settings);
    print(settings.json ? as_json(runs) : as_table(runs));
  }
  return 0;
}

}  // namespace terrace::tools
