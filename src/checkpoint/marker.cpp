#include "marker.h"

#include "hex.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/core/json.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

constexpr std::int64_t kFormat = 1;
constexpr std::uint64_t kMarkerBytesMax = 256ULL << 20;

/// The checksum of the files' list, in the marker itself, which no other file vouches for.
std::string checksum_of(const Json& files) {
  const std::string text = json_line(files);
  return to_hex(io::crc64(std::as_bytes(std::span(text))));
}

/// A file of the list lies in the folder, whatever the list says.
bool is_inside(const std::string& name) {
  const std::filesystem::path path(name);
  if (name.empty() || path.is_absolute()) return false;
  for (const std::filesystem::path& part : path) {
    if (part == "..") return false;
  }
  return true;
}

}  // namespace

void write_marker(const std::filesystem::path& folder, const Marker& marker) {
  Json files = Json::object();
  for (const WrittenFile& file : marker.files) {
    files[file.name] = {{"bytes", file.fingerprint.bytes},
                        {"crc64", to_hex(file.fingerprint.crc64)}};
  }
  const std::string checksum = checksum_of(files);
  const Json json = {{"format", kFormat},
                     {"step", marker.step},
                     {"files", std::move(files)},
                     {"crc64_of_files", checksum}};
  io::write_file(folder / kMarkerName, json_text(json));
}

Marker read_marker(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kMarkerName;
  require(io::is_there(path, ErrorKind::data), ErrorKind::data,
          "{} has no {}: it is not a checkpoint of Terrace, or one that was never completed",
          folder.string(), kMarkerName);
  const std::string where = path.string();
  const Json json = parse_object(io::read_file(path, kMarkerBytesMax, ErrorKind::corrupt), where,
                                 ErrorKind::corrupt);
  try {
    const auto format = json.at("format").get<std::int64_t>();
    require(format == kFormat, ErrorKind::corrupt,
            "{} has the format {}, but this version of Terrace reads format {}; use the version "
            "that wrote it",
            where, format, kFormat);
    const Json& files = json.at("files");
    require(checksum_of(files) == json.at("crc64_of_files").get<std::string>(), ErrorKind::corrupt,
            "{} does not fit its own checksum; it was altered, resume from another checkpoint",
            where);
    Marker marker{.step = json.at("step").get<std::int64_t>(), .files = {}};
    for (const auto& [name, file] : files.items()) {
      require(is_inside(name), ErrorKind::corrupt, "{} names the file \"{}\" outside its folder",
              where, name);
      marker.files.push_back(
          {name,
           {file.at("bytes").get<std::uint64_t>(), from_hex(file.at("crc64").get<std::string>())}});
    }
    return marker;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorKind::corrupt, "{} is damaged ({}); resume from another checkpoint", where,
         error.what());
  }
}

void require_sizes(const std::filesystem::path& folder, const Marker& marker) {
  for (const WrittenFile& file : marker.files) {
    const std::filesystem::path path = folder / file.name;
    require(io::is_file(path, ErrorKind::corrupt), ErrorKind::corrupt,
            "{} is missing, but {} lists it; use another checkpoint", path.string(), kMarkerName);
    const std::uintmax_t size = std::filesystem::file_size(path);
    require(size == file.fingerprint.bytes, ErrorKind::corrupt,
            "{} has {} bytes, but was saved with {}; it was truncated or altered, use another "
            "checkpoint",
            path.string(), size, file.fingerprint.bytes);
  }
}

}  // namespace terrace::checkpoint
