#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "terrace/config/field.h"

/// Options, each declared once. The parser of files and flags, the help, the validation, the
/// documentation and the record of a run all follow from an `OptionTable`.
namespace terrace::config {

/// What another value of an option changes when a run goes on with it. `unsaid` is for options that
/// no run keeps, those of other subcommands than `train`.
enum class Effect {
  unsaid,
  nothing,            ///< neither the losses to come nor where state lies
  as_another,         ///< the same as another option, which says it
  identity,           ///< the run would be another one, and is refused
  losses,             ///< the losses to come
  layout,             ///< which pages a store has, so that a committed one cannot be followed
  losses_and_layout,  ///< both
};

/// One option. `field` binds it to a member of the caller's settings, whose value at that time is
/// the default.
struct Option {
  /// Dotted JSON paths, the canonical one first; empty for an option of the command line only.
  std::vector<std::string> keys = {};
  /// Flag names without "--", with `_` (the command line takes `-` alike), the canonical one first.
  std::vector<std::string> flags = {};
  Field field = {};
  Effect effect = Effect::unsaid;
  std::string help = {};  ///< a phrase, without unit and default
  std::string unit = {};  ///< "sequences", "seconds"; empty when there is none
  /// Shown in place of the default when that is not a plain value: "5e-5, or the preset's own".
  std::string default_note = {};
  double minimum = -std::numeric_limits<double>::infinity();
  /// Infinity: what any count or number may be, see `OptionTable::add`.
  double maximum = std::numeric_limits<double>::infinity();
  bool positional = false;  ///< given without a flag, in the order of declaration
  bool required = false;    ///< checked after parsing
  bool free_text = false;   ///< any text will do, empty or longer than a name
};

/// A key or flag of another program's that users' files and command lines carry and that means
/// nothing here. Its value is ignored, and listed with the reason, when it is one of `harmless`
/// (or when `harmless` is empty); otherwise it is refused with the same reason.
struct Foreign {
  std::string name;
  std::string reason;
  std::vector<std::string> harmless = {};
  bool refused = false;  ///< refused whatever the value
};

/// Where a value came from; a later one overrides an earlier one.
enum class Source { standard, file, set, flag };

/// The options of one subcommand in order, and what has been given so far. Single-owner.
class OptionTable {
 public:
  /// Starts a group of the help.
  void group(std::string title);
  /// Where the option has no maximum, a count is at most 10^15, far below what its product with
  /// another small number would overflow, and a number at most what FP32 holds.
  void add(Option option);
  void add_foreign_keys(std::vector<Foreign> keys);
  void add_foreign_flags(std::vector<Foreign> flags);

  struct Entry {
    Option option;
    std::string group;
    std::string standard;  ///< the default as text, read when the option was added
    Source source = Source::standard;
    std::string origin = {};  ///< "--lr" or "run.json line 4"
  };

  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] Entry* with_key(std::string_view key);
  [[nodiscard]] Entry* with_flag(std::string_view flag);
  [[nodiscard]] const Foreign* foreign_key(std::string_view key) const;
  [[nodiscard]] const Foreign* foreign_flag(std::string_view flag) const;
  [[nodiscard]] const std::vector<Foreign>& foreign_keys() const { return foreign_keys_; }
  [[nodiscard]] const std::vector<Foreign>& foreign_flags() const { return foreign_flags_; }
  /// True if some option's key lies below `key`.
  [[nodiscard]] bool is_section(std::string_view key) const;
  /// True once the option with this key or flag has been given.
  [[nodiscard]] bool given(std::string_view key_or_flag) const;

  /// Checks and stores a value. `name` is the key or flag as the user wrote it, `origin` as in
  /// `Entry`. Overriding an explicit other value adds a line to `notes`.
  /// Errors: usage, naming `origin`, value and range.
  void assign(Entry& entry, const OptionValue& value, Source source, const std::string& origin);

  /// One line for each override and each ignored key or flag, in order.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  void note(std::string line) { notes_.push_back(std::move(line)); }

 private:
  std::vector<Entry> entries_;
  std::vector<Foreign> foreign_keys_;
  std::vector<Foreign> foreign_flags_;
  std::vector<std::string> notes_;
  std::string group_;
};

/// Reads flags, and `--config FILE`, `--deepspeed FILE` and `--set KEY=VALUE` where the table has
/// options with keys. Precedence: flag, `--set`, file, default. Lists take all values up to the
/// next flag. Errors: usage, naming flag, file, line and key, with the nearest known name.
void parse_command_line(OptionTable& table, const std::vector<std::string>& arguments);

/// Reads a configuration file (JSON, strict: unknown and repeated keys and wrong types are errors
/// that name path and line).
void read_config(OptionTable& table, const std::string& path);

/// Reads a DeepSpeed file: as `read_config`, and keys that are absent take DeepSpeed's defaults
/// where those change the result. Keys that only change the speed keep Terrace's.
void read_deepspeed(OptionTable& table, const std::string& path);

/// Applies one `KEY=VALUE`.
void apply_set(OptionTable& table, std::string_view assignment);

/// Ignores (with a note) or refuses a foreign key or flag; `shown` is how to name it.
void judge(OptionTable& table, const Foreign& foreign, const std::string& shown,
           const std::string& value);

/// " (did you mean \"learning_rate\"?)", or "" when none of `known` is near.
[[nodiscard]] std::string did_you_mean(std::string_view name,
                                       const std::vector<std::string>& known);

/// The rest of a sentence about a key that no option has: where it belongs, or the nearest one.
[[nodiscard]] std::string unknown_key(const OptionTable& table, const std::string& key);

/// The help of a subcommand: groups, flags, units, defaults, keys; lines of at most `width`.
[[nodiscard]] std::string help_text(const OptionTable& table, std::size_t width = 100);
/// The table as a Markdown document.
[[nodiscard]] std::string markdown(const OptionTable& table);
/// How a setting is named to people: by its flag, or else by its key.
[[nodiscard]] const std::string& name_of(const Option& option);
/// Every option that has a key, nested by its path, as a file has it.
[[nodiscard]] std::string to_json(const OptionTable& table);

}  // namespace terrace::config
