#include "file_list.h"

#include <algorithm>
#include <system_error>
#include <unordered_set>

#include "terrace/core/error.h"

namespace terrace::data {
namespace {

namespace fs = std::filesystem;

class Walk {
 public:
  explicit Walk(FileList& list) : list_(list) {}

  void add_folder(const fs::path& folder, std::size_t argument) {
    for (const fs::directory_entry& entry : sorted_entries(folder)) {
      std::error_code ignored;
      if (entry.path().filename().string().starts_with('.')) {
        list_.hidden.push_back(entry.path());
      } else if (!entry.is_directory(ignored)) {
        add_file(entry.path(), argument, /*is_named=*/false);
      } else if (entry.is_symlink(ignored)) {
        list_.links.push_back(entry.path());
      } else {
        add_folder(entry.path(), argument);
      }
    }
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

 private:
  static std::vector<fs::directory_entry> sorted_entries(const fs::path& folder) {
    std::error_code code;
    std::vector<fs::directory_entry> entries;
    for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
      entries.push_back(*at);
    }
    require(!code, ErrorKind::data, "the folder {} cannot be read: {}; make it readable",
            folder.string(), errno_name(code.value()));
    std::ranges::sort(entries, {}, [](const fs::directory_entry& entry) -> const std::string& {
      return entry.path().native();
    });
    return entries;
  }

  FileList& list_;
  std::unordered_set<std::string> seen_;
};

}  // namespace

FileList list_files(std::span<const fs::path> paths, std::string_view flag) {
  FileList list;
  Walk walk(list);
  for (std::size_t argument = 0; argument < paths.size(); ++argument) {
    const fs::path& path = paths[argument];
    std::error_code code;
    const fs::file_status status = fs::status(path, code);
    require(fs::exists(status), ErrorKind::data, "{} names {}, which cannot be found: {}", flag,
            path.string(), code ? errno_name(code.value()) : "no such file or folder");
    if (fs::is_directory(status)) {
      walk.add_folder(path, argument);
      continue;
    }
    require(fs::is_regular_file(status), ErrorKind::data,
            "{} names {}, which is neither a file nor a folder (a pipe or a device cannot be read "
            "twice); write it to a file",
            flag, path.string());
    walk.add_file(path, argument, /*is_named=*/true);
  }
  return list;
}

}  // namespace terrace::data
