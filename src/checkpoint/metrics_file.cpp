#include <string>

#include "json.h"
#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

/// Whether a line stays: an object without a later step. A line that a kill cut short is none.
bool is_kept(std::string_view line, std::int64_t last_step) {
  const Json row = Json::parse(line, nullptr, false);
  if (!row.is_object()) return false;
  const auto step = row.find("step");
  return step == row.end() || !step->is_number() || step->get<std::int64_t>() <= last_step;
}

}  // namespace

std::size_t drop_later_rows(const std::filesystem::path& metrics, std::int64_t step) {
  std::error_code ignored;
  if (!std::filesystem::exists(metrics, ignored)) return 0;
  const std::string text = io::read_file(metrics, 16ULL << 30);
  std::string kept;
  kept.reserve(text.size());
  std::size_t dropped = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t newline = text.find('\n', begin);
    const std::size_t end = newline == std::string::npos ? text.size() : newline + 1;
    const std::string_view line(text.data() + begin, end - begin);
    if (newline != std::string::npos && is_kept(line, step)) {
      kept += line;
    } else {
      ++dropped;
    }
    begin = end;
  }
  if (dropped > 0) io::write_file(metrics, kept);
  return dropped;
}

}  // namespace terrace::checkpoint
