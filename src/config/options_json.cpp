#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "config_file.h"
#include "json_tree.h"
#include "terrace/config/options.h"
#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/io/entry.h"

namespace terrace::config {
namespace {

using Kind = JsonNode::Kind;

std::optional<double> number_of(const JsonNode& node) {
  if (node.kind != Kind::integer && node.kind != Kind::number) return std::nullopt;
  return node.number;
}

std::optional<std::int64_t> integer_of(const JsonNode& node) {
  if (node.kind == Kind::integer) return node.integer;
  if (node.kind != Kind::number || std::trunc(node.number) != node.number ||
      std::abs(node.number) >= 0x1p63) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(node.number);  // 2e9
}

/// A list's items where all are of the kind that `item_of` reads.
template <class T, class ItemOf>
std::optional<OptionValue> list_of(const JsonNode& node, const ItemOf& item_of) {
  std::vector<T> values;
  for (const JsonNode& item : node.items) {
    const std::optional<T> value = item_of(item);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

std::optional<std::string> string_of(const JsonNode& node) {
  if (node.kind != Kind::text) return std::nullopt;
  return node.text;
}

template <class T>
std::optional<OptionValue> widen(const std::optional<T>& value) {
  if (!value) return std::nullopt;
  return OptionValue(*value);
}

/// Strict: a quoted number is no number, true is no 1.
std::optional<OptionValue> value_of(const Field& field, const JsonNode& node,
                                    const std::string& origin) {
  switch (field.type) {
    case OptionType::boolean:
      if (node.kind != Kind::boolean) return std::nullopt;
      return OptionValue(node.boolean);
    case OptionType::integer:
      return widen(integer_of(node));
    case OptionType::number:
      return widen(number_of(node));
    case OptionType::numbers:
      if (node.kind != Kind::array) return std::nullopt;
      return list_of<double>(node, number_of);
    case OptionType::text:
      if (node.kind == Kind::text) require_not_refused(field, node.text, origin);
      return widen(string_of(node));
    case OptionType::list:
      if (node.kind == Kind::text) return parse_text(field, node.text, origin);
      if (node.kind != Kind::array) return std::nullopt;
      return list_of<std::string>(node, string_of);
    case OptionType::size:
      if (node.kind == Kind::text) return OptionValue(node.text);
      return widen(integer_of(node));
  }
  return std::nullopt;
}

/// True for a value that leaves the option as it is: null, and "auto" where that is no value.
bool leaves_default(const Field& field, const JsonNode& node) {
  if (node.kind == Kind::null) return true;
  if (node.kind != Kind::text || node.text != "auto") return false;
  const auto& choices = field.choices;
  const bool free_text = field.type == OptionType::text && choices.empty();
  return !free_text && std::find(choices.begin(), choices.end(), "auto") == choices.end();
}

/// Walks one file's tree and applies it to the table.
class Walker {
 public:
  Walker(OptionTable& table, std::string file) : table_(table), file_(std::move(file)) {}

  [[nodiscard]] FileKeys take_keys() { return std::move(keys_); }

  void walk(const JsonNode& section, const std::string& path) {
    for (std::size_t i = 0; i < section.names.size(); ++i) {
      const std::string& name = section.names[i];
      member(path.empty() ? name : fmt::format("{}.{}", path, name), section.items[i]);
    }
  }

 private:
  void member(const std::string& key, const JsonNode& node) {
    const std::string origin = fmt::format("{} line {}: {}", file_, node.line, key);
    keys_.written.emplace(key, node.scalar_text());
    if (auto* entry = table_.with_key(key)) {
      apply(*entry, node, origin);
    } else if (const Foreign* foreign = table_.foreign_key(key)) {
      judge(table_, *foreign, origin, foreign_value(node));
    } else if (table_.is_section(key)) {
      section(key, node, origin);
    } else {
      fail(ErrorKind::usage, "{}: {}", origin, unknown_key(table_, key));
    }
  }

  void section(const std::string& key, const JsonNode& node, const std::string& origin) {
    if (node.kind == Kind::object) {
      walk(node, key);
    } else if (auto* enabled = table_.with_key(key + ".enabled");
               enabled != nullptr && node.kind == Kind::boolean) {
      apply(*enabled, node, origin);  // "bf16": true
    } else {
      require(node.kind == Kind::null, ErrorKind::usage,
              "{} is {}, but is a section: write it as an object", origin, node.describe());
    }
  }

  void apply(OptionTable::Entry& entry, const JsonNode& node, const std::string& origin) {
    const Field& field = entry.option.field;
    keys_.canonical.insert(entry.option.keys.front());
    if (leaves_default(field, node)) return;
    const auto value = value_of(field, node, origin);
    require(value.has_value(), ErrorKind::usage, "{} {}, but must be {}{}", origin,
            finding(field, node), expectation(field), hint(field, node));
    table_.assign(entry, *value, Source::file, origin);
  }

  /// "is null", or of a list of what it should be the item that is wrong: "holds null".
  static std::string finding(const Field& field, const JsonNode& node) {
    for (const JsonNode& item : node.items) {
      const bool numbers = field.type == OptionType::numbers && !number_of(item);
      const bool texts = field.type == OptionType::list && !string_of(item);
      if (node.kind == Kind::array && (numbers || texts)) {
        return fmt::format("holds {}", item.describe());
      }
    }
    return fmt::format("is {}", node.describe());
  }

  static std::string hint(const Field& field, const JsonNode& node) {
    const std::string text = node.scalar_text();
    const bool number = field.type == OptionType::integer || field.type == OptionType::number ||
                        field.type == OptionType::boolean;
    if (number && node.kind == Kind::text) {
      try {
        return fmt::format(": write {} without quotes", to_text(parse_text(field, text, "")));
      } catch (const Error&) {
        return way_on(field, text);
      }
    }
    return way_on(field, text);
  }

  /// What decides about a foreign key: its value, of a section its "enabled".
  static std::string foreign_value(const JsonNode& node) {
    for (std::size_t i = 0; i < node.names.size(); ++i) {
      if (node.names[i] == "enabled") return node.items[i].scalar_text();
    }
    return node.scalar_text();
  }

  OptionTable& table_;
  std::string file_;
  FileKeys keys_;
};

std::string_view leaf_of(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

std::string_view parent_of(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? "" : key.substr(0, dot);
}

Json json_of(const OptionValue& value) {
  return std::visit(
      []<class T>(const T& held) -> Json {
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else {
          return held;
        }
      },
      value);
}

}  // namespace

std::string unknown_key(const OptionTable& table, const std::string& key) {
  std::vector<std::string> siblings;
  std::vector<std::string> all;
  std::vector<std::string> elsewhere;
  for (const auto& entry : table.entries()) {
    for (const std::string& known : entry.option.keys) {
      all.push_back(known);
      if (parent_of(known) == parent_of(key)) siblings.emplace_back(leaf_of(known));
      if (leaf_of(known) == leaf_of(key)) elsewhere.push_back(known);
      // A section's name, wherever it lies on the way to an option.
      for (auto section = parent_of(known); !section.empty(); section = parent_of(section)) {
        if (parent_of(section) == parent_of(key)) siblings.emplace_back(leaf_of(section));
        if (leaf_of(section) == leaf_of(key)) elsewhere.emplace_back(section);
      }
    }
  }
  const std::string name(leaf_of(key));
  if (!elsewhere.empty()) {
    const auto section = parent_of(elsewhere.front());
    const std::string place =
        section.empty() ? "at the top level" : fmt::format("under \"{}\"", section);
    return fmt::format("unknown key here: \"{}\" belongs {}", name, place);
  }
  for (const auto& entry : table.entries()) {
    const Option& option = entry.option;
    if (option.keys.empty() || std::ranges::find(option.flags, key) == option.flags.end()) continue;
    return fmt::format("unknown key: it is a flag, whose key is \"{}\"", option.keys.front());
  }
  std::string near = did_you_mean(name, siblings);
  if (near.empty()) near = did_you_mean(key, all);
  const bool has_flags = std::ranges::any_of(
      table.entries(), [](const auto& entry) { return !entry.option.flags.empty(); });
  // A table without flags is a file's alone: there is no help of it.
  return has_flags
             ? fmt::format("unknown key{}: --help-config lists the known ones", near)
             : fmt::format("unknown key{}: the known ones are {}", near, fmt::join(all, ", "));
}

FileKeys read_keys(OptionTable& table, const std::string& path) {
  require_name(path, "the configuration's name");
  const io::Entry found = io::look_at(path, ErrorKind::usage);
  require(found != io::Entry::nothing, ErrorKind::usage,
          "{} does not exist: give an existing JSON file", path);
  require(found != io::Entry::folder, ErrorKind::usage, "{} is a folder: give a JSON file", path);
  std::ifstream file(path, std::ios::binary);  // it may be a pipe
  require(file.good(), ErrorKind::usage, "{} cannot be read: {}", path, io::reason_of(errno));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  require(!file.bad(), ErrorKind::usage, "{}: cannot be read to its end", path);
  const JsonNode root = parse_json(text, path);
  require(root.kind == Kind::object, ErrorKind::usage,
          "{}: holds {}, but a configuration is an object of keys", path, root.describe());
  Walker walker(table, path);
  walker.walk(root, "");
  return walker.take_keys();
}

void read_config(OptionTable& table, const std::string& path) {
  static_cast<void>(read_keys(table, path));
}

std::string to_json(const OptionTable& table) {
  Json root = Json::object();
  for (const auto& entry : table.entries()) {
    if (entry.option.keys.empty()) continue;
    Json* at = &root;
    std::string_view rest = entry.option.keys.front();
    for (auto dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
      at = &(*at)[std::string(rest.substr(0, dot))];
      rest.remove_prefix(dot + 1);
    }
    (*at)[std::string(rest)] = json_of(entry.option.field.get());
  }
  return json_text(root);
}

}  // namespace terrace::config
