#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/io/checksum.h"

namespace terrace::data {

/// One file of the data: its path is for people, its contents are what counts.
struct FileFingerprint {
  std::filesystem::path path;
  io::Fingerprint contents;
};

/// What identifies the data of a run: every file that gave tokens, in the order of the token
/// stream. A run that goes on from a checkpoint must see the same data, or its loader's position
/// means other samples.
struct DatasetFingerprint {
  std::vector<FileFingerprint> files;
};

/// As JSON: `{"files":[{"path":...,"bytes":...,"crc64":"16 hex digits"}]}`, on one line.
[[nodiscard]] std::string to_json(const DatasetFingerprint& fingerprint);

/// The inverse. Errors: corrupt, naming `where` it was read from.
[[nodiscard]] DatasetFingerprint parse_dataset_fingerprint(std::string_view json,
                                                           std::string_view where);

/// Refuses data other than the run began with. Files may have moved: the same contents in the same
/// order are the same data. Errors: data, naming the first file that differs, what it was and what
/// it is; `flag` is how the user named the data, as in "--data".
void require_same_data(const DatasetFingerprint& began_with, const DatasetFingerprint& found,
                       std::string_view flag);

}  // namespace terrace::data
