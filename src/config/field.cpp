#include "terrace/config/field.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "terrace/core/error.h"
#include "terrace/core/excerpt.h"
#include "terrace/core/units.h"

namespace terrace::config {
namespace {

/// Strict: the whole text is one number.
template <class T>
std::optional<T> number_in(std::string_view text) {
  T value{};
  if (text.starts_with('+')) text.remove_prefix(1);
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || rest != end) return std::nullopt;
  return value;
}

/// The power of ten that a count ends with, 1 where it ends with a digit.
double factor_after(std::string_view text) {
  if (text.empty()) return 1;
  switch (text.back()) {
    case 'k':
    case 'K':
      return 1e3;
    case 'M':
      return 1e6;
    case 'G':
      return 1e9;
    case 'T':
      return 1e12;
    default:
      return 1;
  }
}

/// 500, 2e9, 64M, 1.5k.
std::optional<std::int64_t> integer_in(std::string_view text) {
  if (const auto exact = number_in<std::int64_t>(text)) return exact;
  const double factor = factor_after(text);
  if (factor > 1) text.remove_suffix(1);
  const auto real = number_in<double>(text);
  if (!real) return std::nullopt;
  const double value = *real * factor;
  if (std::trunc(value) != value || std::abs(value) >= 0x1p63) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

/// Whether it begins as a number does, but is one that no double holds.
bool is_out_of_range(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  return std::from_chars(text.data(), text.data() + text.size(), value).ec ==
         std::errc::result_out_of_range;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::optional<bool> boolean_in(std::string_view text) {
  const std::string word = lower(text);
  if (word == "true" || word == "yes" || word == "1" || word == "on") return true;
  if (word == "false" || word == "no" || word == "0" || word == "off") return false;
  return std::nullopt;
}

/// Items between commas, empty ones too; one pair of brackets around them is taken off.
std::vector<std::string> items_in(std::string_view text) {
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    text = text.substr(1, text.size() - 2);
  }
  std::vector<std::string> items;
  for (std::size_t begin = 0; !text.empty() && begin <= text.size();) {
    const auto comma = std::min(text.find(',', begin), text.size());
    std::string_view item = text.substr(begin, comma - begin);
    while (item.starts_with(' ') || item.starts_with('"')) item.remove_prefix(1);
    while (item.ends_with(' ') || item.ends_with('"')) item.remove_suffix(1);
    items.emplace_back(item);
    begin = comma + 1;
  }
  return items;
}

std::vector<std::string> listed(std::string_view text, const std::string& what) {
  std::vector<std::string> items = items_in(text);
  require(std::ranges::find(items, "") == items.end(), ErrorKind::usage,
          "{} is \"{}\", which has an empty item: take out the comma that is too many", what,
          excerpt(text));
  return items;
}

std::optional<OptionValue> numbers_in(std::string_view text) {
  std::vector<double> numbers;
  for (const std::string& item : items_in(text)) {
    const auto number = number_in<double>(item);
    if (!number || !std::isfinite(*number)) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

template <class T>
Field plain(OptionType type, T& member) {
  Field result;
  result.type = type;
  result.set = [&member](const OptionValue& value, const std::string&) {
    member = std::get<T>(value);
  };
  result.get = [&member]() -> OptionValue { return member; };
  return result;
}

template <class T>
Field nullable(OptionType type, std::optional<T>& member) {
  Field result;
  result.type = type;
  result.nullable = true;
  result.set = [&member](const OptionValue& value, const std::string&) {
    member.reset();
    if (const T* given = std::get_if<T>(&value)) member = *given;
  };
  result.get = [&member]() -> OptionValue {
    if (member) return *member;
    return std::monostate{};
  };
  return result;
}

Budget budget_of(const OptionValue& value, const std::string& what) {
  if (const auto* bytes = std::get_if<std::int64_t>(&value)) {
    require(*bytes >= 0, ErrorKind::usage, "{} is {}, but a size cannot be negative", what, *bytes);
    return Budget{static_cast<std::uint64_t>(*bytes), 0};
  }
  const std::string& text = std::get<std::string>(value);
  if (!text.ends_with('%')) return Budget{parse_size(text, what), 0};
  const auto percent = number_in<double>(std::string_view(text).substr(0, text.size() - 1));
  require(percent && *percent > 0 && *percent <= 100, ErrorKind::usage,
          "{} is \"{}\", but a share must be above 0% and at most 100%", what, excerpt(text));
  return Budget{0, *percent};
}

}  // namespace

Field field(bool& member) { return plain(OptionType::boolean, member); }
Field field(std::int64_t& member) { return plain(OptionType::integer, member); }
Field field(double& member) { return plain(OptionType::number, member); }
Field field(std::string& member) { return plain(OptionType::text, member); }
Field field(std::vector<std::string>& member) { return plain(OptionType::list, member); }
Field field(std::optional<bool>& member) { return nullable(OptionType::boolean, member); }
Field field(std::optional<std::int64_t>& member) { return nullable(OptionType::integer, member); }
Field field(std::optional<double>& member) { return nullable(OptionType::number, member); }

Field field(int& member) {
  Field result;
  result.type = OptionType::integer;
  result.set = [&member](const OptionValue& value, const std::string& what) {
    const std::int64_t wide = std::get<std::int64_t>(value);
    member = static_cast<int>(wide);
    require(member == wide, ErrorKind::usage, "{} is {}, which is out of range", what, wide);
  };
  result.get = [&member]() -> OptionValue { return std::int64_t{member}; };
  return result;
}

Field field(std::optional<std::array<double, 2>>& member) {
  Field result;
  result.type = OptionType::numbers;
  result.nullable = true;
  result.set = [&member](const OptionValue& value, const std::string& what) {
    member.reset();
    const auto* numbers = std::get_if<std::vector<double>>(&value);
    if (numbers == nullptr) return;
    require(numbers->size() == 2, ErrorKind::usage, "{} has {} numbers, but must have 2", what,
            numbers->size());
    member = {(*numbers)[0], (*numbers)[1]};
  };
  result.get = [&member]() -> OptionValue {
    if (!member) return std::monostate{};
    return std::vector<double>(member->begin(), member->end());
  };
  return result;
}

Field element_field(std::optional<std::array<double, 2>>& member, std::size_t index,
                    std::array<double, 2> standard) {
  Field result;
  result.type = OptionType::number;
  result.set = [&member, index, standard](const OptionValue& value, const std::string&) {
    if (!member) member = standard;
    (*member)[index] = std::get<double>(value);
  };
  result.get = [&member, index]() -> OptionValue {
    if (!member) return std::monostate{};
    return (*member)[index];
  };
  return result;
}

Field field(std::optional<Budget>& member) {
  Field result;
  result.type = OptionType::size;
  result.nullable = true;
  result.set = [&member](const OptionValue& value, const std::string& what) {
    member.reset();
    if (!std::holds_alternative<std::monostate>(value)) member = budget_of(value, what);
  };
  result.get = [&member]() -> OptionValue {
    if (!member) return std::monostate{};
    if (member->percent > 0) return fmt::format("{}%", member->percent);
    return static_cast<std::int64_t>(member->bytes);
  };
  return result;
}

Field field(StepRange& member) {
  Field result;
  result.set = [&member](const OptionValue& value, const std::string& what) {
    const std::string_view text = std::get<std::string>(value);
    const auto colon = std::min(text.find(':'), text.size());
    const auto first = number_in<std::int64_t>(text.substr(0, colon));
    const auto last = number_in<std::int64_t>(text.substr(std::min(colon + 1, text.size())));
    require(first && last && *first >= 1 && *last >= *first, ErrorKind::usage,
            "{} is \"{}\", but must be FIRST:LAST with 1 <= FIRST <= LAST, such as 3:8", what,
            excerpt(text));
    member = StepRange{*first, *last};
  };
  result.get = [&member]() -> OptionValue {
    return fmt::format("{}:{}", member.first, member.last);
  };
  return result;
}

Field dtype_switch(std::optional<DType>& member, DType mine) {
  Field result;
  result.type = OptionType::boolean;
  result.nullable = true;
  result.set = [&member, mine](const OptionValue& value, const std::string&) {
    const bool* on = std::get_if<bool>(&value);
    if (on == nullptr) return;
    if (*on) {
      member = mine;
    } else if (!member || *member == mine) {
      member = DType::f32;
    }
  };
  result.get = [&member, mine]() -> OptionValue {
    if (!member) return std::monostate{};
    return *member == mine;
  };
  return result;
}

Field refusing(Field field, std::vector<std::pair<std::string, std::string>> words) {
  field.refused = std::move(words);
  return field;
}

Field size_field(std::uint64_t& member) {
  Field result;
  result.type = OptionType::size;
  result.set = [&member](const OptionValue& value, const std::string& what) {
    const Budget budget = budget_of(value, what);
    require(budget.percent == 0, ErrorKind::usage,
            "{} is a share, but must be a size in bytes such as 1MiB", what);
    member = budget.bytes;
  };
  result.get = [&member]() -> OptionValue { return static_cast<std::int64_t>(member); };
  return result;
}

std::string expectation(const Field& field) {
  if (!field.choices.empty()) return fmt::format("one of {}", fmt::join(field.choices, ", "));
  switch (field.type) {
    case OptionType::boolean:
      return "true or false";
    case OptionType::integer:
      return "an integer";
    case OptionType::number:
      return "a number";
    case OptionType::numbers:
      return "a list of numbers";
    case OptionType::text:
      return "a string";
    case OptionType::list:
      return "a string or a list of strings";
    case OptionType::size:
      return "a size: bytes, or text such as 512M, 64GiB, 64GB";
  }
  return "";
}

void require_not_refused(const Field& field, std::string_view text, const std::string& what) {
  const std::string word = lower(text);
  for (const auto& [refused, instead] : field.refused) {
    require(word != lower(refused), ErrorKind::usage, "{} is \"{}\", which is not taken: {}", what,
            excerpt(text), instead);
  }
}

std::string way_on(const Field& field, std::string_view text) {
  const bool is_count = field.type == OptionType::integer;
  if (!is_count && field.type != OptionType::number) return "";
  std::string pointed(text);
  const bool has_comma = std::ranges::count(text, ',') == 1;
  std::ranges::replace(pointed, ',', '.');
  if (has_comma && number_in<double>(pointed)) {
    return is_count ? ": write it without a comma"
                    : fmt::format(": write {}, with a decimal point", pointed);
  }
  if (is_out_of_range(text)) return ": it is too large or too small for a number";
  const auto number = number_in<double>(text);
  if (number && !std::isfinite(*number)) return ": it must be finite";
  if (number && is_count && *number > 0 && *number < 1) {
    return ": a share is not taken, a whole count is";
  }
  if (is_count && (text.ends_with('B') || text.ends_with('b'))) {
    return ", as it is a count: 64M means 64 million";
  }
  const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  return hexadecimal ? ": write it in decimal" : "";
}

OptionValue parse_text(const Field& field, std::string_view text, const std::string& what) {
  require_not_refused(field, text, what);
  std::optional<OptionValue> value;
  if (field.nullable && field.choices.empty() && lower(text) == "auto") return std::monostate{};
  switch (field.type) {
    case OptionType::boolean:
      if (const auto parsed = boolean_in(text)) value = *parsed;
      break;
    case OptionType::integer:
      if (const auto parsed = integer_in(text)) value = *parsed;
      break;
    case OptionType::number:
      if (const auto parsed = number_in<double>(text); parsed && std::isfinite(*parsed)) {
        value = *parsed;
      }
      break;
    case OptionType::numbers:
      value = numbers_in(text);
      break;
    case OptionType::list:
      value = field.split_commas ? listed(text, what) : std::vector{std::string(text)};
      break;
    case OptionType::text:
    case OptionType::size:
      value = std::string(text);
      break;
  }
  require(value.has_value(), ErrorKind::usage, "{} is \"{}\", but must be {}{}", what,
          excerpt(text), expectation(field), way_on(field, text));
  return *value;
}

std::string to_text(const OptionValue& value) {
  return std::visit(
      []<class T>(const T& held) -> std::string {
        if constexpr (std::is_same_v<T, std::monostate>) {
          return "";
        } else if constexpr (std::is_same_v<T, std::vector<double>> ||
                             std::is_same_v<T, std::vector<std::string>>) {
          return fmt::format("{}", fmt::join(held, ","));
        } else {
          return fmt::format("{}", held);
        }
      },
      value);
}

}  // namespace terrace::config
