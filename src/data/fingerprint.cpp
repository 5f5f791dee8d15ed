#include "terrace/data/fingerprint.h"

#include <algorithm>
#include <charconv>

#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/core/units.h"

namespace terrace::data {
namespace {

std::uint64_t parse_hex(const std::string& text) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, code] = std::from_chars(text.data(), end, value, 16);
  if (code != std::errc() || stopped != end) throw std::invalid_argument("no hex number");
  return value;
}

std::string described(const FileFingerprint& file) {
  return fmt::format("{} ({} bytes, checksum {:016x})", file.path.string(), file.contents.bytes,
                     file.contents.crc64);
}

}  // namespace

std::string to_json(const DatasetFingerprint& fingerprint) {
  Json files = Json::array();
  for (const FileFingerprint& file : fingerprint.files) {
    files.push_back({{"path", file.path.string()},
                     {"bytes", file.contents.bytes},
                     {"crc64", fmt::format("{:016x}", file.contents.crc64)}});
  }
  // What of a path is no UTF-8 is replaced, as it is for people only.
  return json_line({{"files", std::move(files)}});
}

DatasetFingerprint parse_dataset_fingerprint(std::string_view json, std::string_view where) {
  try {
    const Json list = Json::parse(json);
    DatasetFingerprint fingerprint;
    for (const Json& file : list.at("files")) {
      fingerprint.files.push_back(
          {.path = file.at("path").get<std::string>(),
           .contents = {.bytes = file.at("bytes").get<std::uint64_t>(),
                        .crc64 = parse_hex(file.at("crc64").get<std::string>())}});
    }
    return fingerprint;
  } catch (const std::exception& error) {
    fail(
        ErrorKind::corrupt,
        "{} holds no list of data files with path, bytes and crc64 ({}); it was altered, so resume "
        "from another checkpoint",
        where, error.what());
  }
}

void require_same_data(const DatasetFingerprint& began_with, const DatasetFingerprint& found,
                       std::string_view flag) {
  const auto& old_files = began_with.files;
  const auto& new_files = found.files;
  constexpr auto same = [](const FileFingerprint& a, const FileFingerprint& b) {
    return a.contents == b.contents;
  };
  const auto [old_file, new_file] = std::ranges::mismatch(old_files, new_files, same);
  if (old_file == old_files.end() && new_file == new_files.end()) return;
  constexpr std::string_view kRemedy =
      "give the same files in the same order, or begin a new run with another output folder";
  const auto place = old_file - old_files.begin() + 1;
  if (old_file == old_files.end() || new_file == new_files.end()) {
    const bool is_new = old_file == old_files.end();
    fail(ErrorKind::data, "{} has {}, but the run began with {}: file {}, {}, is {}; {}", flag,
         counted(new_files.size(), "file"), old_files.size(), place,
         described(is_new ? *new_file : *old_file), is_new ? "new" : "missing", kRemedy);
  }
  fail(ErrorKind::data, "{} differs from what the run began with: file {} is {}, but was {}; {}",
       flag, place, described(*new_file), described(*old_file), kRemedy);
}

}  // namespace terrace::data
