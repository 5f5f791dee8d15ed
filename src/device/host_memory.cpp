#include "host_memory.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::device {
namespace {

std::size_t mapped_bytes(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1), static_cast<std::size_t>(::getpagesize()));
}

}  // namespace

void* map_pages(std::size_t bytes, const std::string& purpose) {
  void* data = ::mmap(nullptr, mapped_bytes(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(data != MAP_FAILED, ErrorKind::out_of_memory,
          "cannot allocate {} for {}: {}; lower the batch size or the sequence length, or move "
          "state to a slower tier",
          format_bytes(bytes), purpose, errno_name(errno));
  // Large pages cut the cost of first touch and of address translation; a refusal is harmless.
  ::madvise(data, mapped_bytes(bytes), MADV_HUGEPAGE);
  return data;
}

void unmap_pages(void* data, std::size_t bytes) noexcept { ::munmap(data, mapped_bytes(bytes)); }

}  // namespace terrace::device
