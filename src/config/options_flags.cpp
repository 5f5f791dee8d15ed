#include <fmt/core.h>

#include <algorithm>

#include "terrace/config/options.h"
#include "terrace/core/error.h"
#include "terrace/core/excerpt.h"

namespace terrace::config {
namespace {

/// The command line as pairs of flag and values, before any is applied.
struct Given {
  std::string shown;  // as written, with dashes
  OptionTable::Entry* entry = nullptr;
  std::vector<std::string> values;  // none for a bare boolean
  bool negated = false;
};

struct CommandLine {
  std::vector<Given> options;
  std::vector<std::string> configs;
  std::vector<std::string> deepspeeds;
  std::vector<std::string> sets;
};

std::string folded(std::string_view flag) {
  std::string name(flag);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool is_flag(const std::string& argument) {
  return argument.size() > 2 && argument.starts_with("--");
}

bool is_boolean_word(const std::string& text) {
  try {
    bool sink = false;
    return !parse_text(field(sink), text, "").valueless_by_exception();
  } catch (const Error&) {
    return false;
  }
}

std::vector<std::string> known_flags(const OptionTable& table) {
  std::vector<std::string> names;
  for (const auto& entry : table.entries()) {
    for (const std::string& flag : entry.option.flags) names.push_back("--" + flag);
  }
  return names;
}

bool has_keys(const OptionTable& table) {
  return std::any_of(table.entries().begin(), table.entries().end(),
                     [](const auto& entry) { return !entry.option.keys.empty(); });
}

/// Walks the arguments once; `next_` is the first that is not yet used.
class Reader {
 public:
  Reader(OptionTable& table, const std::vector<std::string>& arguments)
      : table_(table), arguments_(arguments), reads_files_(has_keys(table)) {
    for (const auto& entry : table.entries()) {
      if (entry.option.positional) positionals_.push_back(entry.option.flags.front());
    }
  }

  CommandLine read() {
    while (next_ < arguments_.size()) {
      const std::string& argument = arguments_[next_++];
      if (is_flag(argument)) {
        read_flag(argument);
      } else {
        read_positional(argument);
      }
    }
    return std::move(line_);
  }

 private:
  void read_flag(const std::string& argument) {
    const auto equals = argument.find('=');
    const std::string shown = argument.substr(0, equals);
    std::optional<std::string> attached;
    if (equals != std::string::npos) attached = argument.substr(equals + 1);
    const std::string name = folded(shown.substr(2));
    if (reads_files_ && name == "set") {
      line_.sets.push_back(attached ? *attached : value_after(shown));
      while (next_ < arguments_.size() && !is_flag(arguments_[next_])) {
        line_.sets.push_back(arguments_[next_++]);
      }
    } else if (reads_files_ && name == "deepspeed") {
      line_.deepspeeds.push_back(attached ? *attached : value_after(shown));
    } else if (reads_files_ && name == "config") {
      line_.configs.push_back(attached ? *attached : value_after(shown));
    } else if (auto* entry = table_.with_flag(name)) {
      read_values(Given{shown, entry, {}, false}, attached);
    } else if (auto* negated = name.starts_with("no_") ? table_.with_flag(name.substr(3)) : nullptr;
               negated != nullptr && negated->option.field.type == OptionType::boolean) {
      require(!attached, ErrorKind::usage, "{} takes no value", shown);
      line_.options.push_back(Given{shown, negated, {}, true});
    } else if (const Foreign* foreign = table_.foreign_flag(name)) {
      std::string value = attached.value_or("");
      if (!attached && next_ < arguments_.size() && !is_flag(arguments_[next_])) {
        value = arguments_[next_++];
      }
      judge(table_, *foreign, shown, value);
    } else {
      fail(ErrorKind::usage, "{} is not a flag of this subcommand{}: see --help", excerpt(shown),
           did_you_mean("--" + name, known_flags(table_)));
    }
  }

  void read_values(Given given, const std::optional<std::string>& attached) {
    const OptionType type = given.entry->option.field.type;
    if (attached) {
      given.values.push_back(*attached);
    } else if (type == OptionType::boolean) {
      if (next_ < arguments_.size() && is_boolean_word(arguments_[next_])) {
        given.values.push_back(arguments_[next_++]);
      } else {
        bare_switch_ = given.shown;
        after_switch_ = next_;
      }
    } else {
      given.values.push_back(value_after(given.shown));
      while (type == OptionType::list && next_ < arguments_.size() && !is_flag(arguments_[next_])) {
        given.values.push_back(arguments_[next_++]);
      }
    }
    line_.options.push_back(std::move(given));
  }

  void read_positional(const std::string& argument) {
    const bool follows_switch = !bare_switch_.empty() && next_ == after_switch_ + 1;
    require(positional_ < positionals_.size() || !follows_switch, ErrorKind::usage,
            "{} is \"{}\", but must be true or false", bare_switch_, excerpt(argument));
    require(positional_ < positionals_.size(), ErrorKind::usage,
            "\"{}\" is an argument too many: values follow a flag, such as --model DIR",
            excerpt(argument));
    auto* entry = table_.with_flag(positionals_[positional_]);
    const bool takes_the_rest = entry->option.field.type == OptionType::list;
    if (takes_the_rest && !line_.options.empty() && line_.options.back().entry == entry) {
      line_.options.back().values.push_back(argument);
      return;
    }
    if (!takes_the_rest) ++positional_;
    line_.options.push_back(Given{entry->option.flags.front(), entry, {argument}, false});
  }

  std::string value_after(const std::string& shown) {
    require(next_ < arguments_.size() && !is_flag(arguments_[next_]), ErrorKind::usage,
            "{} needs a value", shown);
    return arguments_[next_++];
  }

  OptionTable& table_;
  const std::vector<std::string>& arguments_;
  bool reads_files_;
  std::vector<std::string> positionals_;
  std::size_t positional_ = 0;
  std::size_t next_ = 0;
  std::string bare_switch_;       // the last one that was given without a word
  std::size_t after_switch_ = 0;  // the index of what follows it
  CommandLine line_;
};

OptionValue value_of(const Given& given) {
  const Field& target = given.entry->option.field;
  if (target.type == OptionType::boolean && given.values.empty()) return !given.negated;
  for (const std::string& text : given.values) {
    require(!text.empty() || given.entry->option.free_text, ErrorKind::usage,
            "{} is given an empty value: write what is meant, or leave it out", given.shown);
  }
  if (target.type != OptionType::list) {
    return parse_text(target, given.values.front(), given.shown);
  }
  std::vector<std::string> items;
  for (const std::string& text : given.values) {
    const auto parsed = std::get<std::vector<std::string>>(parse_text(target, text, given.shown));
    items.insert(items.end(), parsed.begin(), parsed.end());
  }
  require(!items.empty(), ErrorKind::usage, "{} needs a value", given.shown);
  return items;
}

}  // namespace

void apply_set(OptionTable& table, std::string_view assignment) {
  const auto equals = assignment.find('=');
  require(equals != std::string_view::npos && equals > 0, ErrorKind::usage,
          "--set {} has no value: write --set KEY=VALUE", excerpt(assignment));
  const std::string key(assignment.substr(0, equals));
  const std::string value(assignment.substr(equals + 1));
  const std::string origin = fmt::format("--set {}", excerpt(key));
  if (auto* entry = table.with_key(key)) {
    table.assign(*entry, parse_text(entry->option.field, value, origin), Source::set, origin);
  } else if (const Foreign* foreign = table.foreign_key(key)) {
    judge(table, *foreign, origin, value);
  } else {
    fail(ErrorKind::usage, "{}: {}", origin, unknown_key(table, key));
  }
}

void parse_command_line(OptionTable& table, const std::vector<std::string>& arguments) {
  const CommandLine line = Reader(table, arguments).read();
  for (const std::string& path : line.deepspeeds) read_deepspeed(table, path);
  for (const std::string& path : line.configs) read_config(table, path);
  for (const std::string& assignment : line.sets) apply_set(table, assignment);
  for (const Given& given : line.options) {
    table.assign(*given.entry, value_of(given), Source::flag, given.shown);
  }
  for (const auto& entry : table.entries()) {
    if (!entry.option.required || entry.source != Source::standard) continue;
    const std::string& name = entry.option.flags.front();
    fail(ErrorKind::usage, "{}{} is missing: {}", entry.option.positional ? "" : "--", name,
         entry.option.help);
  }
}

}  // namespace terrace::config
