#include "standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace terrace::tools {

void hold_standard_descriptors() {
  for (const int descriptor : std::array{STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // The lowest free number is this one. Opened the other way round, so that it stays unusable.
    const int how = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", how) < 0) (void)::open("/", O_PATH);  // where there is no /dev
  }
  (void)std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace terrace::tools
