#pragma once

#include <cstdint>
#include <memory>

#include "terrace/device/device.h"

namespace terrace::device {

/// A test double of the host device on which all streams share one thread, and the order in which
/// they advance is drawn from `seed`: which stream runs its next task, among those whose next task
/// may run. A stream may starve for long while another runs far ahead, as no scheduler of threads
/// would have it. What a stream must wait for, and nothing else, decides what the work sees: a
/// missing wait shows under some seed. Threads of the caller that signal events are beyond its
/// control.
[[nodiscard]] std::unique_ptr<Device> make_seeded_device(std::uint64_t seed);

}  // namespace terrace::device
