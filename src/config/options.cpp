#include "terrace/config/options.h"

#include <fmt/core.h>

#include <algorithm>
#include <climits>
#include <cmath>

#include "config_file.h"
#include "terrace/core/edit_distance.h"
#include "terrace/core/error.h"
#include "terrace/core/excerpt.h"

namespace terrace::config {
namespace {

/// What any count may be; see `OptionTable::add`.
constexpr double kCountMax = 1e15;

void check_range(const Option& option, const OptionValue& value, const std::string& what) {
  double number = 0;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    number = static_cast<double>(*integer);
  } else if (const auto* real = std::get_if<double>(&value)) {
    number = *real;
  } else {
    return;
  }
  const bool inside = number >= option.minimum && number <= option.maximum;
  if (inside) return;
  const bool has_both = std::isfinite(option.minimum) && option.maximum < kCountMax;
  const std::string range =
      has_both                  ? fmt::format("between {} and {}", option.minimum, option.maximum)
      : number < option.minimum ? fmt::format("at least {}", option.minimum)
                                : fmt::format("at most {:.10g}", option.maximum);
  fail(ErrorKind::usage, "{} is {}, but must be {}{}", what, to_text(value), range,
       option.unit.empty() ? "" : fmt::format(" (in {})", option.unit));
}

std::string canonical_word(const Field& field, const std::string& word, const std::string& what) {
  for (const std::string& known : field.choices) {
    if (edit_distance(word, known) == 0) return known;  // case, and - against _, do not count
  }
  fail(ErrorKind::usage, "{} is \"{}\", but must be {}{}", what, excerpt(word), expectation(field),
       did_you_mean(word, field.choices));
}

/// The value in its canonical spelling, where words are to be chosen from.
OptionValue canonical(const Field& field, OptionValue value, const std::string& what) {
  if (field.choices.empty()) return value;
  if (auto* word = std::get_if<std::string>(&value)) *word = canonical_word(field, *word, what);
  if (auto* words = std::get_if<std::vector<std::string>>(&value)) {
    for (std::string& word : *words) word = canonical_word(field, word, what);
  }
  return value;
}

/// Any other text names a file, a folder or a model.
void check_length(const Option& option, const OptionValue& value, const std::string& what) {
  if (option.free_text || !option.field.choices.empty()) return;
  if (const auto* name = std::get_if<std::string>(&value)) require_name(*name, what);
  if (const auto* names = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& name : *names) {
      require(!name.empty(), ErrorKind::usage, "{} has an empty item: leave it out", what);
      require_name(name, what);
    }
  }
}

}  // namespace

void require_name(std::string_view name, std::string_view what) {
  require(name.size() < PATH_MAX, ErrorKind::usage,
          "{} is \"{}\", which has {} bytes, and no path has more than {}", what, excerpt(name),
          name.size(), PATH_MAX - 1);
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string* best = nullptr;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    // Never less than this, and a name given by mistake may have any length.
    const std::size_t longer =
        std::max(name.size(), candidate.size()) - std::min(name.size(), candidate.size());
    if (longer >= std::min(best_distance, candidate.size())) continue;
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance && distance < candidate.size()) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : fmt::format(" (did you mean \"{}\"?)", *best);
}

void OptionTable::group(std::string title) { group_ = std::move(title); }

const std::string& name_of(const Option& option) {
  return option.flags.empty() ? option.keys.front() : option.flags.front();
}

void OptionTable::add(Option option) {
  const bool is_open = option.maximum == std::numeric_limits<double>::infinity();
  if (is_open && option.field.type == OptionType::integer) option.maximum = kCountMax;
  if (is_open && option.field.type == OptionType::number) {
    option.maximum = std::numeric_limits<float>::max();
  }
  std::string standard = to_text(option.field.get());
  entries_.push_back(Entry{std::move(option), group_, std::move(standard)});
}

void OptionTable::add_foreign_keys(std::vector<Foreign> keys) {
  std::move(keys.begin(), keys.end(), std::back_inserter(foreign_keys_));
}

void OptionTable::add_foreign_flags(std::vector<Foreign> flags) {
  std::move(flags.begin(), flags.end(), std::back_inserter(foreign_flags_));
}

OptionTable::Entry* OptionTable::with_key(std::string_view key) {
  for (Entry& entry : entries_) {
    const auto& keys = entry.option.keys;
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) return &entry;
  }
  return nullptr;
}

OptionTable::Entry* OptionTable::with_flag(std::string_view flag) {
  for (Entry& entry : entries_) {
    const auto& flags = entry.option.flags;
    if (std::find(flags.begin(), flags.end(), flag) != flags.end()) return &entry;
  }
  return nullptr;
}

const Foreign* OptionTable::foreign_key(std::string_view key) const {
  const auto found = std::find_if(foreign_keys_.begin(), foreign_keys_.end(),
                                  [&](const Foreign& foreign) { return foreign.name == key; });
  return found == foreign_keys_.end() ? nullptr : &*found;
}

const Foreign* OptionTable::foreign_flag(std::string_view flag) const {
  const auto found = std::find_if(foreign_flags_.begin(), foreign_flags_.end(),
                                  [&](const Foreign& foreign) { return foreign.name == flag; });
  return found == foreign_flags_.end() ? nullptr : &*found;
}

bool OptionTable::is_section(std::string_view key) const {
  const std::string prefix = fmt::format("{}.", key);
  const auto below = [&](const std::string& name) { return name.starts_with(prefix); };
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) {
                       return std::any_of(entry.option.keys.begin(), entry.option.keys.end(),
                                          below);
                     }) ||
         std::any_of(foreign_keys_.begin(), foreign_keys_.end(),
                     [&](const Foreign& foreign) { return below(foreign.name); });
}

bool OptionTable::given(std::string_view key_or_flag) const {
  const auto names = [&](const Entry& entry) {
    const auto& keys = entry.option.keys;
    const auto& flags = entry.option.flags;
    return std::find(keys.begin(), keys.end(), key_or_flag) != keys.end() ||
           std::find(flags.begin(), flags.end(), key_or_flag) != flags.end();
  };
  const auto found = std::find_if(entries_.begin(), entries_.end(), names);
  return found != entries_.end() && found->source != Source::standard;
}

void OptionTable::assign(Entry& entry, const OptionValue& value, Source source,
                         const std::string& origin) {
  const OptionValue checked = canonical(entry.option.field, value, origin);
  check_range(entry.option, checked, origin);
  std::vector<std::pair<Entry*, std::string>> before;  // explicit values, which may now change
  for (Entry& other : entries_) {
    if (other.source != Source::standard) {
      before.emplace_back(&other, to_text(other.option.field.get()));
    }
  }
  entry.option.field.set(checked, origin);
  check_length(entry.option, checked, origin);
  for (const auto& [other, old] : before) {
    const std::string now = to_text(other->option.field.get());
    if (now == old) continue;
    require(other->source != source || (other == &entry && source != Source::file),
            ErrorKind::usage, "{} contradicts {} ({}): keep one of the two", origin, other->origin,
            excerpt(old));
    note(fmt::format("{} = {} overrides {} = {}", origin, excerpt(to_text(checked)), other->origin,
                     excerpt(old)));
  }
  entry.source = source;
  entry.origin = origin;
}

void judge(OptionTable& table, const Foreign& foreign, const std::string& shown,
           const std::string& value) {
  const bool harmless =
      foreign.harmless.empty() ||
      std::find(foreign.harmless.begin(), foreign.harmless.end(), value) != foreign.harmless.end();
  require(harmless && !foreign.refused, ErrorKind::usage, "{}{}{} is not supported: {}", shown,
          value.empty() ? "" : " = ", excerpt(value), foreign.reason);
  table.note(fmt::format("{} is ignored: {}", shown, foreign.reason));
}

}  // namespace terrace::config
