#pragma once

#include "terrace/runtime/run_context.h"

namespace terrace::runtime {

/// Gives what the updates of chunks read and write to the NUMA nodes that will update it: of each
/// chunk's state, parameter and gradient, element by element alike, the first part to the first of
/// the optimizer's nodes, and so on ("Note on NUMA nodes"), whether the memory is the state's home
/// or a slot through which it streams from disk; a slot is split as the largest chunk that uses it.
/// The norm, which cuts a whole flat's gradient, finds some of it on another node; a huge page lies
/// on one node whole, so each cut is right to within one. Writes a zero to each page
/// of memory in which nothing is yet: right after it was allocated, and before it is registered
/// with a disk's driver, which would touch it. Where its threads have no nodes, nothing is done.
void touch_first(const RunContext& context);

}  // namespace terrace::runtime
