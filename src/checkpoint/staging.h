#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::checkpoint {

/// A folder that is filled under a temporary name, "NAME.tmp-PID" beside its place, and then takes
/// its place at once. Its destructor removes what has no place: the unfinished folder, or the one
/// that was replaced. Single-owner. Errors: io.
class StagingFolder {
 public:
  /// Creates the folder for `parent/name`; `parent` exists.
  StagingFolder(const std::filesystem::path& parent, const std::string& name);
  ~StagingFolder();
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Gives the folder its name, durably. A folder of that name is exchanged with it in one system
  /// call, so that at any instant one of the two, whole, has the name. What the folder holds must
  /// be durable already.
  void publish();

 private:
  std::filesystem::path path_;
  std::filesystem::path place_;
};

/// As which the final model is staged in its folder.
inline constexpr const char* kModelStaging = "model";

/// Of "NAME.tmp-PID..." the name that it was to have. Who filled it the number does not say: a
/// container gives the same ones again.
[[nodiscard]] std::optional<std::string> parse_staged_name(std::string_view name);

}  // namespace terrace::checkpoint
