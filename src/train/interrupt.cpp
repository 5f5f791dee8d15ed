#include "terrace/train/interrupt.h"

#include <unistd.h>

#include <array>
#include <csignal>

#include "terrace/core/error.h"

namespace terrace::train {
namespace {

constexpr std::array kTaken = {SIGINT, SIGTERM, SIGHUP};

// The one exception to "no globals": a signal handler can reach nothing else.
std::atomic<int> first_signal{0};
std::atomic<bool> installed{false};
std::array<struct sigaction, kTaken.size()> former;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch it");

extern "C" void note_signal(int signal) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal) || signal == SIGHUP) return;
  _exit(exit_code_of_signal(signal));
}

}  // namespace

Interrupt::Interrupt() {
  require(!installed.exchange(true), ErrorKind::internal, "a second Interrupt was made");
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;  // system calls go on: the step is finished first
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kTaken.size(); ++i) {
    sigaction(kTaken[i], nullptr, &former[i]);
    if (former[i].sa_handler != SIG_IGN) sigaction(kTaken[i], &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (std::size_t i = 0; i < kTaken.size(); ++i) sigaction(kTaken[i], &former[i], nullptr);
  installed = false;
}

const std::atomic<int>& Interrupt::flag() const noexcept { return first_signal; }

}  // namespace terrace::train
