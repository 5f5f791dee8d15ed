#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/core/json.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

std::optional<std::int64_t> step_in(const Json& row) {
  const auto step = row.find("step");
  if (step == row.end() || !step->is_number()) return std::nullopt;
  return step->get<std::int64_t>();
}

/// Whether a line stays: an object without a later step. A line that a kill cut short is none.
bool is_kept(std::string_view line, std::int64_t last_step) {
  const std::optional<Json> row = json_from(line);
  return row && row->is_object() && step_in(*row).value_or(last_step) <= last_step;
}

}  // namespace

std::int64_t last_logged_step(const std::filesystem::path& metrics) {
  std::int64_t last = 0;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const std::optional<Json> row = json_from(line);
    if (row && row->is_object()) last = std::max(last, step_in(*row).value_or(0));
  }
  return last;
}

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
