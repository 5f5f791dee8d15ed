#pragma once

#include <memory>

#include "terrace/core/trace.h"
#include "terrace/plan/plan.h"

namespace terrace::runtime {

/// What a plan says of its training tasks for a trace: an arrow from each task to those of other
/// lanes that use what it made; the bytes in use on device and host beside those that stay (a
/// transient region from its first use to its last, a chunk's slot from its first task to its
/// last); the bytes on their way from and to the disks; the chunk slots that are free.
[[nodiscard]] Trace::Relations relations_of(const plan::Plan& plan);

/// An empty trace of the steps of a run, its lanes numbered as `plan::Lane`.
[[nodiscard]] std::unique_ptr<Trace> make_trace(const plan::Plan& plan, StepRange steps);

}  // namespace terrace::runtime
