#include "own_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "output_folder.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/io/file.h"
#include "terrace/io/run_folder.h"

namespace terrace::train {
namespace {

namespace fs = std::filesystem;

fs::path plain_or_empty(const fs::path& path) { return path.empty() ? path : io::plain_path(path); }

}  // namespace

OwnFiles::OwnFiles(const config::Settings& settings)
    : output_(plain_or_empty(settings.output.folder)),
      trace_(plain_or_empty(settings.output.trace)) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat status {};
    if (::fstat(stream, &status) == 0 && S_ISREG(status.st_mode)) {
      logs_.emplace_back(status.st_dev, status.st_ino);
    }
  }
}

bool OwnFiles::operator()(const fs::path& path) const {
  const std::string name = path.filename().string();
  if (io::is_temporary_name(name)) return true;
  if (OutputFolder::is_name_of_run(name) && is_output(path.parent_path())) return true;
  if (!trace_.empty() && name == trace_.filename() && io::plain_path(path) == trace_) return true;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  if (S_ISDIR(status.st_mode)) {
    return io::is_run_folder(path) || io::is_there(path / checkpoint::kMarkerName);
  }
  return std::ranges::find(logs_, std::pair(status.st_dev, status.st_ino)) != logs_.end();
}

bool OwnFiles::is_output(const fs::path& folder) const {
  const auto [known, is_new] = outputs_.try_emplace(folder, false);
  if (is_new) {
    const fs::path place = folder.empty() ? fs::path(".") : folder;
    known->second =
        OutputFolder::is_output(place) || (!output_.empty() && io::plain_path(place) == output_);
  }
  return known->second;
}

}  // namespace terrace::train
