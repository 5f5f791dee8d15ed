#include "terrace/engine/interrupt.h"

#include <unistd.h>

#include <csignal>

#include "terrace/core/error.h"

namespace terrace::engine {
namespace {

// The one exception to "no globals": a signal handler can reach nothing else.
std::atomic<int> first_signal{0};
std::atomic<bool> installed{false};
struct sigaction former_int, former_term;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch it");

extern "C" void note_signal(int signal) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal)) _exit(exit_code_of_signal(signal));
}

}  // namespace

Interrupt::Interrupt() {
  require(!installed.exchange(true), ErrorKind::internal, "a second Interrupt was made");
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;  // system calls go on: the step is finished first
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &former_int);
  sigaction(SIGTERM, &action, &former_term);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &former_int, nullptr);
  sigaction(SIGTERM, &former_term, nullptr);
  installed = false;
}

const std::atomic<int>& Interrupt::flag() const noexcept { return first_signal; }

}  // namespace terrace::engine
