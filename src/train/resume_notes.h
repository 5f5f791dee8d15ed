#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/checkpoint/trainer_state.h"
#include "terrace/config/settings.h"
#include "terrace/core/dtype.h"

// What a run keeps of its settings, so that one that goes on with others can say so. Which they are
// follows from the table of options, where each says what another value of it changes.

namespace terrace::train {

/// What a run has made of what its settings leave open.
struct Resolution {
  DType dtype = DType::f32;
  double learning_rate = 0;
  std::int64_t total_steps = 0;
  int threads = 1;
};

/// The settings with that written into them, so that the same run compares equal however it was
/// asked for. The batch is resolved already.
[[nodiscard]] config::Settings written_out(config::Settings settings, const Resolution& resolution);

/// The values of all options that losses follow from, and of those that only the pages of a store
/// follow from, by the names of `name_of`. `settings` are written out.
[[nodiscard]] checkpoint::NamedValues numerics_of(const config::Settings& settings);
[[nodiscard]] checkpoint::NamedValues layout_of(const config::Settings& settings);

/// A line for each setting on which losses depend and that was another one in `before`, and what
/// the learning rate does next where its schedule is another one; at last what `before`, saved by
/// an earlier version, has no record of.
[[nodiscard]] std::vector<std::string> resume_notes(const checkpoint::TrainerState& before,
                                                    const config::Settings& settings);

/// "moments was fp32 and is bf16", for each setting that the pages of a store follow from.
[[nodiscard]] std::vector<std::string> layout_differences(const checkpoint::TrainerState& before,
                                                          const config::Settings& settings);

}  // namespace terrace::train
