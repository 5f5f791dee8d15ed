#pragma once

#include <memory>

#include "terrace/device/device.h"

namespace terrace::device {

/// A stream of no device, for work on host memory: what is enqueued runs at once, on the calling
/// thread. So do waits, which block it; errors are thrown where they come up, and none is kept.
[[nodiscard]] std::unique_ptr<Stream> make_inline_stream();

}  // namespace terrace::device
