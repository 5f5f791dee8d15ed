#include "render.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "terrace/core/units.h"

namespace terrace::checkpoint {
namespace {

constexpr std::size_t kIndent = 2;

std::string cell(const std::string& name, const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_unsigned() && name.ends_with("bytes")) {
    return format_bytes(value.get<std::uint64_t>());
  }
  if (!value.is_array()) return json_line(value);
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : ", ") + cell("", item);
  return "[" + text + "]";
}

std::string label(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

/// Rows of cells in aligned columns.
std::string table(const std::vector<std::vector<std::string>>& rows, std::size_t indent) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line(indent, ' ');
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += fmt::format("{:<{}}", row[i], widths[i] + kIndent);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

bool is_table(const Json& value) {
  return value.is_array() && !value.empty() && value.front().is_object();
}

std::string render_table(const Json& list, std::size_t indent) {
  std::vector<std::vector<std::string>> rows(1);
  for (const auto& [name, value] : list.front().items()) rows.front().push_back(label(name));
  for (const Json& object : list) {
    auto& row = rows.emplace_back();
    for (const auto& [name, value] : object.items()) row.push_back(cell(name, value));
  }
  return table(rows, indent);
}

std::string render_object(const Json& object, std::size_t indent) {
  std::vector<std::vector<std::string>> values;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_object() && !is_table(value)) values.push_back({label(name), cell(name, value)});
  }
  std::string text = table(values, indent);
  for (const auto& [name, value] : object.items()) {
    if (!value.is_object() && !is_table(value)) continue;
    text += std::string(indent, ' ') + label(name) + "\n";
    text += value.is_object() ? render_object(value, indent + kIndent)
                              : render_table(value, indent + kIndent);
  }
  return text;
}

}  // namespace

std::string render(const Json& object) { return render_object(object, 0); }

}  // namespace terrace::checkpoint
