#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/training.h"

// Every way to keep a run's state that the table of options offers. A choice that is added to the
// table is in these lists without anybody's doing.

namespace terrace::train::testing {

/// An option with its choices, each meaning once (aliases are left out).
struct StateChoices {
  std::string key;
  std::vector<std::string> choices;
};

/// The options that choose what state there is, in what form and on which tier.
[[nodiscard]] std::vector<StateChoices> state_choices();
[[nodiscard]] StateChoices choices_of(std::string_view key);

/// One choice of each, by key.
using StateChoice = std::map<std::string, std::string>;
[[nodiscard]] std::vector<StateChoice> all_state_choices();
[[nodiscard]] std::string describe(const StateChoice& choice);

void choose(config::Settings& settings, std::string_view key, const std::string& value);

/// Runs of 6 steps, each of which takes some 20 ms.
class StateChoicesTest : public TrainingTest {
 protected:
  [[nodiscard]] config::Settings with(const StateChoice& choice) const;

  /// What is offered at the start works to the end: the run saves, goes on from a checkpoint and
  /// from what a signal leaves (a committed store, or a checkpoint) with the same losses, and what
  /// it saved is inspected, exported in every type and evaluated. Or the run is refused at its
  /// start, with a sentence; returns whether it was not.
  bool works_to_the_end(const config::Settings& settings);

  int from_stores_ = 0;  ///< how often a run went on from a committed store

 private:
  void goes_on_from_a_checkpoint(const config::Settings& settings,
                                 const std::vector<Row>& reference);
  void goes_on_after_a_signal(const config::Settings& settings, const std::vector<Row>& reference);
  void is_inspected_and_exported(const config::Settings& settings);
};

}  // namespace terrace::train::testing
