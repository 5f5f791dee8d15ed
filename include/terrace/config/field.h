#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "terrace/config/settings.h"

namespace terrace::config {

/// What kind of text or JSON value an option takes.
enum class OptionType { boolean, integer, number, numbers, text, list, size };

/// A value between its text or JSON form and the settings; `monostate` is "not given". A size is
/// text ("64G", "80%") or an integer count of bytes.
using OptionValue = std::variant<std::monostate, bool, std::int64_t, double, std::string,
                                 std::vector<double>, std::vector<std::string>>;

/// A reference to one member of somebody's settings, its type erased. The member must outlive it.
struct Field {
  OptionType type = OptionType::text;
  std::vector<std::string> choices = {};  ///< accepted words (any case), canonical spelling
  bool nullable = false;                  ///< "auto" and null mean "not given"
  bool split_commas = true;               ///< lists as text: "A,B" is two items
  /// Words that other programs take here (any case), each with what to write instead.
  std::vector<std::pair<std::string, std::string>> refused = {};
  /// Stores a value of the right type. `what` names the option in errors (sizes are parsed here).
  std::function<void(const OptionValue&, const std::string& what)> set = {};
  std::function<OptionValue()> get = {};
};

[[nodiscard]] Field field(bool& member);
[[nodiscard]] Field field(std::int64_t& member);
[[nodiscard]] Field field(double& member);
[[nodiscard]] Field field(std::string& member);
[[nodiscard]] Field field(std::vector<std::string>& member);
[[nodiscard]] Field field(int& member);
[[nodiscard]] Field field(std::optional<std::array<double, 2>>& member);
[[nodiscard]] Field field(std::optional<bool>& member);
[[nodiscard]] Field field(std::optional<std::int64_t>& member);
[[nodiscard]] Field field(std::optional<double>& member);
[[nodiscard]] Field field(std::optional<Budget>& member);
[[nodiscard]] Field field(StepRange& member);
/// One of a pair of numbers; setting it first gives the pair the numbers `standard`.
[[nodiscard]] Field element_field(std::optional<std::array<double, 2>>& member, std::size_t index,
                                  std::array<double, 2> standard);
/// Whether the compute type is `mine` (as `bf16.enabled` says it): true sets it, false turns it
/// into FP32 where it was `mine` or not given.
[[nodiscard]] Field dtype_switch(std::optional<DType>& member, DType mine);
/// The same field, which refuses these words with what to write instead.
[[nodiscard]] Field refusing(Field field, std::vector<std::pair<std::string, std::string>> words);
/// A size in bytes; shares in per cent are refused.
[[nodiscard]] Field size_field(std::uint64_t& member);

/// A choice among words. The first name of a value is the one that is written.
template <class T>
[[nodiscard]] Field choice(T& member, std::vector<std::pair<std::string, T>> names) {
  Field result;
  for (const auto& [name, value] : names) result.choices.push_back(name);
  result.set = [&member, names](const OptionValue& value, const std::string&) {
    for (const auto& [name, meaning] : names) {
      if (name == std::get<std::string>(value)) member = meaning;
    }
  };
  result.get = [&member, names]() -> OptionValue {
    for (const auto& [name, meaning] : names) {
      if (meaning == member) return name;
    }
    return std::monostate{};
  };
  return result;
}

/// A list of such choices.
template <class T>
[[nodiscard]] Field choices(std::vector<T>& member, std::vector<std::pair<std::string, T>> names) {
  Field result;
  result.type = OptionType::list;
  for (const auto& [name, value] : names) result.choices.push_back(name);
  result.set = [&member, names](const OptionValue& value, const std::string&) {
    member.clear();
    for (const std::string& word : std::get<std::vector<std::string>>(value)) {
      for (const auto& [name, meaning] : names) {
        if (name == word) member.push_back(meaning);
      }
    }
  };
  result.get = [&member, names]() -> OptionValue {
    std::vector<std::string> words;
    for (const T& item : member) {
      for (const auto& [name, meaning] : names) {
        if (meaning == item) words.push_back(name);
      }
    }
    return words;
  };
  return result;
}

/// Reads the text form, as on a command line; an integer may end with k, M, G or T, powers of ten.
/// Errors: usage, `what` being the subject, with the way on where there is one.
[[nodiscard]] OptionValue parse_text(const Field& field, std::string_view text,
                                     const std::string& what);
/// Refuses the words of `Field::refused`. Errors: as `parse_text`.
void require_not_refused(const Field& field, std::string_view text, const std::string& what);
/// What to write in place of a text that is no value of the field: ": a share is not taken, ...";
/// "" where nothing better is known than what is expected.
[[nodiscard]] std::string way_on(const Field& field, std::string_view text);
/// The text form, which `parse_text` reads back; "" for "not given".
[[nodiscard]] std::string to_text(const OptionValue& value);
/// "an integer", "true or false", "one of auto, cpu, cuda": for errors and help.
[[nodiscard]] std::string expectation(const Field& field);

}  // namespace terrace::config
