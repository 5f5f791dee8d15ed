#include "terrace/core/unique_handle.h"

#include <unistd.h>

namespace terrace {

void FileDescriptorTraits::destroy(int descriptor) noexcept { ::close(descriptor); }

}  // namespace terrace
