#include "file_list.h"

#include <algorithm>
#include <system_error>
#include <unordered_set>

#include "terrace/core/error.h"
#include "terrace/io/entry.h"

namespace terrace::data {
namespace {

namespace fs = std::filesystem;

class Walk {
 public:
  Walk(FileList& list, const DatasetOptions& options) : list_(list), options_(options) {}

  void add_folder(const fs::path& folder, std::size_t argument) {
    for (const fs::directory_entry& entry : sorted_entries(folder)) {
      std::error_code ignored;
      if (entry.path().filename().string().starts_with('.')) {
        list_.hidden.push_back(entry.path());
      } else if (is_own(entry.path())) {
        list_.own.push_back(entry.path());
      } else if (!entry.is_directory(ignored)) {
        add_file(entry.path(), argument, /*is_named=*/false);
      } else if (entry.is_symlink(ignored)) {
        list_.links.push_back(entry.path());
      } else {
        add_folder(entry.path(), argument);
      }
    }
  }

  void add_named_file(const fs::path& path, std::size_t argument) {
    if (is_own(path)) {
      list_.own.push_back(path);
    } else {
      add_file(path, argument, /*is_named=*/true);
    }
  }

 private:
  [[nodiscard]] bool is_own(const fs::path& path) const {
    return options_.is_own && options_.is_own(path);
  }

  void add_file(const fs::path& path, std::size_t argument, bool is_named) {
    std::error_code ignored;
    const fs::path real = fs::weakly_canonical(path, ignored);
    if (!seen_.insert(real.string()).second) {
      list_.repeated.push_back(path);
      return;
    }
    const bool is_regular = fs::is_regular_file(path, ignored);
    const std::uint64_t bytes = is_regular ? fs::file_size(path, ignored) : 0;
    list_.files.push_back(
        {.path = path, .argument = argument, .is_named = is_named, .bytes = ignored ? 0 : bytes});
  }

  static std::vector<fs::directory_entry> sorted_entries(const fs::path& folder) {
    std::error_code code;
    std::vector<fs::directory_entry> entries;
    for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
      entries.push_back(*at);
    }
    require(!code, io::kind_of_open_error(code.value(), ErrorKind::data),
            "the folder {} cannot be read: {}", folder.string(), io::reason_of(code.value()));
    std::ranges::sort(entries, {}, [](const fs::directory_entry& entry) -> const std::string& {
      return entry.path().native();
    });
    return entries;
  }

  FileList& list_;
  const DatasetOptions& options_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

FileList list_files(std::span<const fs::path> paths, const DatasetOptions& options) {
  FileList list;
  Walk walk(list, options);
  for (std::size_t argument = 0; argument < paths.size(); ++argument) {
    const fs::path& path = paths[argument];
    const io::Entry found = io::look_at(path, ErrorKind::data);
    require(found != io::Entry::nothing, ErrorKind::data,
            "{} names {}, which cannot be found: no such file or folder", options.flag,
            path.string());
    if (found == io::Entry::folder) {
      walk.add_folder(path, argument);
      continue;
    }
    require(found == io::Entry::file, ErrorKind::data,
            "{} names {}, which is neither a file nor a folder (a pipe or a device cannot be read "
            "twice); write it to a file",
            options.flag, path.string());
    walk.add_named_file(path, argument);
  }
  return list;
}

}  // namespace terrace::data
