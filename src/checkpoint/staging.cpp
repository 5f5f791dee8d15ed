#include "staging.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "terrace/core/error.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

constexpr std::string_view kMark = ".tmp-";
constexpr std::string_view kAside = "-replaced";

}  // namespace

StagingFolder::StagingFolder(const std::filesystem::path& parent, const std::string& name)
    : path_(parent / fmt::format("{}{}{}", name, kMark, ::getpid())), place_(parent / name) {
  std::error_code code;
  std::filesystem::remove_all(path_, code);  // Of a dead process that had this id.
  const bool created = std::filesystem::create_directory(path_, code);
  require(created && !code, ErrorKind::io, "cannot create the folder {}: {}", path_.string(),
          code ? io::reason_of(code.value()) : "it is there already");
}

StagingFolder::~StagingFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

void StagingFolder::publish() {
  io::sync_folder(path_);
  if (!io::is_there(place_)) {
    io::rename_durably(path_, place_);
    path_.clear();
    return;
  }
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, place_.c_str(), RENAME_EXCHANGE) == 0) {
    io::sync_folder(place_.parent_path());
    return;
  }
  require(errno == EINVAL || errno == ENOSYS || errno == ENOTSUP, ErrorKind::io,
          "cannot exchange {} and {}: {}", path_.string(), place_.string(), errno_name(errno));
  // The file system cannot exchange: for an instant neither has the name, and both keep one from
  // which `remove_unfinished` restores them.
  const std::filesystem::path aside = path_.string() + std::string(kAside);
  io::rename_durably(place_, aside);
  io::rename_durably(path_, place_);
  path_ = aside;
}

std::optional<std::string> parse_staged_name(std::string_view name) {
  const std::size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos || mark == 0) return std::nullopt;
  const std::string_view digits = name.substr(mark + kMark.size());
  int process = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), process);
  const std::string_view rest(end, static_cast<std::size_t>(digits.data() + digits.size() - end));
  if (code != std::errc() || process <= 0 || (!rest.empty() && rest != kAside)) {
    return std::nullopt;
  }
  return std::string(name.substr(0, mark));
}

}  // namespace terrace::checkpoint
