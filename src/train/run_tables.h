#pragma once

#include "run_start.h"
#include "terrace/core/log.h"

namespace terrace::train {

/// Says what a run is about to do: the settings with all that they leave open, its memory, what it
/// writes to its drives.
void print_tables(const RunStart& start, Log& log);

/// What is reserved, by tier and purpose: before the run, and when memory gave out.
void print_memory(const RunStart& start, Log& log);

}  // namespace terrace::train
