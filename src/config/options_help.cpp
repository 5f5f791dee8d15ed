#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "terrace/config/options.h"
#include "terrace/core/units.h"

namespace terrace::config {
namespace {

std::string value_form(const Field& field) {
  if (!field.choices.empty()) {
    return fmt::format("{}{}", fmt::join(field.choices, "|"),
                       field.type == OptionType::list ? "[,...]" : "");
  }
  switch (field.type) {
    case OptionType::boolean:
      return "[true|false]";
    case OptionType::integer:
      return "N";
    case OptionType::number:
      return "X";
    case OptionType::numbers:
      return "X,X";
    case OptionType::text:
      return "TEXT";
    case OptionType::list:
      return field.split_commas ? "TEXT[,TEXT]" : "TEXT ...";
    case OptionType::size:
      return "SIZE";
  }
  return "";
}

/// "8", "1.00 MiB", or the option's own note; "none" for an empty default.
std::string default_of(const OptionTable::Entry& entry) {
  const Option& option = entry.option;
  if (!option.default_note.empty()) return option.default_note;
  if (entry.standard.empty()) return "none";
  const bool digits = entry.standard.find_first_not_of("0123456789") == std::string::npos;
  if (option.field.type == OptionType::size && digits) {
    return format_bytes(std::stoull(entry.standard));
  }
  return entry.standard;
}

/// "help (unit; default D)".
std::string sentence(const OptionTable::Entry& entry) {
  const Option& option = entry.option;
  std::vector<std::string> facts;
  if (!option.unit.empty()) facts.push_back(option.unit);
  facts.push_back(option.required ? "required" : fmt::format("default {}", default_of(entry)));
  return fmt::format("{} ({})", option.help, fmt::join(facts, "; "));
}

/// "--model, --model_name_or_path TEXT", or the key of an option without a flag.
std::string heading(const Option& option) {
  if (option.positional) {
    std::string name = option.flags.front();
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    return name;
  }
  std::vector<std::string> names;
  for (const std::string& flag : option.flags) names.push_back("--" + flag);
  if (names.empty()) names.push_back(fmt::format("--set {}=", option.keys.front()));
  return fmt::format("{}{}{}", fmt::join(names, ", "), option.flags.empty() ? "" : " ",
                     value_form(option.field));
}

/// Words of `text` in lines of at most `width`, each after `indent` spaces.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string result;
  std::string line(indent, ' ');
  while (!text.empty()) {
    const auto space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    if (line.size() > indent && line.size() + 1 + word.size() > width) {
      result += line + "\n";
      line.assign(indent, ' ');
    }
    if (line.size() > indent) line += ' ';
    line += word;
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return result + line + "\n";
}

std::string configuration_help(std::size_t width) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> flags = {{
      {"--config FILE", "JSON file of keys, strict"},
      {"--deepspeed FILE",
       "DeepSpeed's JSON file; absent keys that change the result take DeepSpeed's defaults"},
      {"--set KEY=VALUE ...", "sets keys as a file does"},
      {"--help-config",
       "writes this table as Markdown, with the keys and flags of DeepSpeed and "
       "the Trainer that are ignored or refused"},
  }};
  std::string result =
      "\nConfiguration (a flag wins over --set, that over a file, that over the default):\n";
  for (const auto& [flag, help] : flags) {
    result += wrapped(flag, 2, width) + wrapped(help, 6, width);
  }
  return result + wrapped("A count N may end with k, M, G or T, powers of ten: 64M is 64 million.",
                          2, width);
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

}  // namespace

std::string help_text(const OptionTable& table, std::size_t width) {
  const bool reads_files =
      std::any_of(table.entries().begin(), table.entries().end(),
                  [](const auto& entry) { return !entry.option.keys.empty(); });
  std::string result = reads_files ? configuration_help(width) : "";
  std::string group;
  for (const auto& entry : table.entries()) {
    if (entry.group != group) {
      group = entry.group;
      result += fmt::format("\n{}:\n", group);
    }
    result += wrapped(heading(entry.option), 2, width) + wrapped(sentence(entry), 6, width);
    const auto& keys = entry.option.keys;
    const bool shown =
        keys.empty() || entry.option.flags.empty() || keys.front() == entry.option.flags.front();
    if (!shown) result += wrapped(fmt::format("key: {}", keys.front()), 6, width);
  }
  return result;
}

std::string markdown(const OptionTable& table) {
  std::string result;
  std::string group;
  for (const auto& entry : table.entries()) {
    if (entry.group != group) {
      group = entry.group;
      result += fmt::format(
          "\n## {}\n\n| key | flags | value | default | unit | meaning "
          "|\n|---|---|---|---|---|---|\n",
          group);
    }
    const Option& option = entry.option;
    const auto quoted = [](const std::vector<std::string>& names, std::string_view prefix) {
      std::vector<std::string> parts;
      for (const std::string& name : names) parts.push_back(fmt::format("`{}{}`", prefix, name));
      return fmt::format("{}", fmt::join(parts, ", "));
    };
    result += fmt::format("| {} | {} | {} | {} | {} | {} |\n", quoted(option.keys, ""),
                          quoted(option.flags, "--"), escaped(expectation(option.field)),
                          escaped(default_of(entry)), option.unit, escaped(option.help));
  }
  for (const auto& [title, list] : {std::pair{"Keys of other programs", &table.foreign_keys()},
                                    std::pair{"Flags of other programs", &table.foreign_flags()}}) {
    if (list->empty()) continue;
    result += fmt::format("\n## {}\n\n| name | what happens | reason |\n|---|---|---|\n", title);
    for (const Foreign& foreign : *list) {
      const std::string verdict = foreign.refused ? "refused"
                                  : foreign.harmless.empty()
                                      ? "ignored, listed"
                                      : fmt::format("ignored when {}, otherwise refused",
                                                    fmt::join(foreign.harmless, ", "));
      result += fmt::format("| `{}` | {} | {} |\n", foreign.name, verdict, escaped(foreign.reason));
    }
  }
  return result;
}

}  // namespace terrace::config
