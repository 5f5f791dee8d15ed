#pragma once

#include <memory>

#include "terrace/device/device.h"

namespace terrace::device {

/// A test double with memory of its own, as a GPU has it: the host can read and write that only
/// from the tasks of the device's streams. Any other access ends the process with SIGSEGV. Streams
/// and events are `inner`'s, a device on the host.
///
/// What a task calls may use threads of its own, so while one task runs every thread has access: a
/// host access at just that time goes unseen. While streams wait or are idle none has.
[[nodiscard]] std::unique_ptr<Device> make_opaque_device(std::unique_ptr<Device> inner);

}  // namespace terrace::device
