#include "terrace/core/line_writer.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "terrace/core/clock.h"

namespace terrace {
namespace {

/// How long a line is waited for; after that none is until the descriptor takes something again.
constexpr std::chrono::milliseconds kPatience{100};
/// How long the end waits for a reader that takes nothing.
constexpr std::chrono::seconds kPatienceAtEnd{2};
/// What may wait to be written.
constexpr std::size_t kWaitingBytesMax = std::size_t{1} << 20;

std::int64_t lines_in(std::string_view text) {
  return std::max<std::int64_t>(1, std::count(text.begin(), text.end(), '\n'));
}

/// Signals go to the program's other threads; a pipe without a reader is an errno.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &former_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &former_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t former_ = {};
};

}  // namespace

int write_text(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      // Whoever shares the descriptor has made it so.
      pollfd room{.fd = descriptor, .events = POLLOUT, .revents = 0};
      (void)::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

struct LineWriter::State {
  explicit State(int descriptor_in) : descriptor(descriptor_in) {}

  [[nodiscard]] bool is_idle() const { return waiting.empty() && !writing; }

  void lose(std::int64_t lines, int error) {
    if (losses.lines == 0) losses = {0, error, utc_now()};
    losses.lines += lines;
  }

  /// The thread.
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !waiting.empty() || ending; });
      if (waiting.empty() || abandoned) return;
      const std::string text = std::move(waiting.front());
      waiting.pop_front();
      waiting_bytes -= text.size();
      writing = true;
      lines_being_written = lines_in(text);
      lock.unlock();
      const int error = write_text(descriptor, text);
      lock.lock();
      writing = false;
      held = false;
      ++settled;
      if (error != 0) lose(lines_being_written, error);
      changed.notify_all();
    }
  }

  const int descriptor;
  bool has_thread = true;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> waiting;
  std::size_t waiting_bytes = 0;
  std::int64_t lines_being_written = 0;
  bool writing = false;
  bool held = false;          ///< the last text that was waited for was not taken in time
  std::uint64_t taken = 0;    ///< texts that were to be written
  std::uint64_t settled = 0;  ///< of which written, or not
  bool ending = false;
  bool abandoned = false;  ///< the descriptor may be another file's by now
  Losses losses;
};

LineWriter::LineWriter(int descriptor) : state_(std::make_shared<State>(descriptor)) {
  const SignalsBlocked for_the_thread;
  try {
    std::thread([state = state_] { state->run(); }).detach();
  } catch (const std::system_error&) {
    state_->has_thread = false;  // as many processes as are allowed: better a line that may wait
  }
}

LineWriter::~LineWriter() {
  std::unique_lock lock(state_->mutex);
  State& state = *state_;
  state.ending = true;
  state.changed.notify_all();
  for (bool goes_on = true; goes_on && !state.is_idle();) {
    const std::uint64_t before = state.settled;
    goes_on = state.changed.wait_for(lock, kPatienceAtEnd,
                                     [&] { return state.is_idle() || state.settled != before; });
  }
  state.abandoned = true;
}

void LineWriter::write(std::string text) {
  if (text.empty()) return;
  std::unique_lock lock(state_->mutex);
  State& state = *state_;
  if (!state.has_thread) {
    if (const int error = write_text(state.descriptor, text); error != 0) {
      state.lose(lines_in(text), error);
    }
    return;
  }
  if (state.waiting_bytes + text.size() > kWaitingBytesMax) {
    return state.lose(lines_in(text), EAGAIN);
  }
  state.waiting_bytes += text.size();
  state.waiting.push_back(std::move(text));
  const std::uint64_t place = ++state.taken;
  state.changed.notify_all();
  if (state.held) return;
  state.held = !state.changed.wait_for(lock, kPatience, [&] { return state.settled >= place; });
}

LineWriter::Losses LineWriter::losses() const {
  const std::scoped_lock lock(state_->mutex);
  Losses all = state_->losses;
  if (!state_->held) return all;
  if (all.lines == 0) all = {0, EAGAIN, utc_now()};
  for (const std::string& text : state_->waiting) all.lines += lines_in(text);
  if (state_->writing) all.lines += state_->lines_being_written;
  return all;
}

}  // namespace terrace
