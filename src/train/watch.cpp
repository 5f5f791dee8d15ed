#include "terrace/train/watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "terrace/core/clock.h"
#include "terrace/core/units.h"

namespace terrace::train {
namespace {

/// A signal handler can wake nobody, so the flag is looked at.
constexpr std::chrono::milliseconds kPause{100};

std::string in_about(double seconds) {
  return seconds > 0 ? fmt::format(", in about {}", format_duration(seconds)) : "";
}

}  // namespace

Stopped::Stopped(int signal, const std::string& doing)
    : std::runtime_error(
          fmt::format("stopped by signal {}{}{}", signal, doing.empty() ? "" : " while ", doing)),
      signal_(signal) {}

Watch::Watch(const std::atomic<int>& signal, Terminal& terminal, Log& log, double patience_seconds)
    : signal_(signal),
      terminal_(terminal),
      log_(log),
      patience_seconds_(patience_seconds),
      thread_([this] { look_on(); }) {}

Watch::~Watch() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watch::answer(StopAnswer answer) {
  const std::scoped_lock lock(mutex_);
  answer_ = std::move(answer);
  answer_since_us_ = now_us();
}

void Watch::stop_if_asked(const std::string& doing) const {
  if (const int signal = signal_.load(); signal != 0) throw Stopped(signal, doing);
}

void Watch::look_on() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPause, [this] { return ending_; })) {
    if (signal_.load() != 0 && !std::exchange(answered_, true)) answer_signal();
    if (!activities_.empty()) tell(*activities_.back());
  }
}

void Watch::answer_signal() {
  const Activity* activity = activities_.empty() ? nullptr : activities_.back();
  const std::string safe = answer_.safe.empty() ? "" : answer_.safe + "; ";
  std::string stop;
  if (activity != nullptr && !activity->options_.to_the_end) {
    const std::string then = answer_.then.empty() ? "" : fmt::format(", then {}", answer_.then);
    stop = fmt::format("{} is cut short{}{}", activity->doing_, then,
                       in_about(then.empty() ? 0 : answer_.then_seconds));
  } else {
    // What has lasted longer than was expected may last for any time.
    const double left = activity != nullptr
                            ? activity->seconds_left()
                            : std::max(0.0, answer_.seconds - seconds_since(answer_since_us_));
    const std::string& doing = activity != nullptr ? activity->doing_ : answer_.doing;
    const bool knows_all = left > 0 && answer_.then_seconds > 0;
    stop = fmt::format("the run stops when {} is done", doing.empty() ? "what goes on" : doing);
    if (answer_.then.empty()) {
      stop += in_about(left);
    } else if (knows_all) {
      stop += fmt::format(" and {}{}", answer_.then, in_about(left + answer_.then_seconds));
    } else {
      stop += fmt::format("{} and {}", in_about(left) + (left > 0 ? "," : ""), answer_.then);
    }
  }
  log_.info("signal {}: {}{}; a second signal stops it at once", signal_.load(), safe, stop);
}

void Watch::tell(Activity& activity) {
  const double lasted = seconds_since(activity.since_us_);
  if (lasted < patience_seconds_) return;
  if (terminal_.rewrites()) return terminal_.overlay(activity.line());
  // Lines that stay get fewer and fewer.
  if (activity.told_after_seconds_ > 0 && lasted < 2 * activity.told_after_seconds_) return;
  activity.told_after_seconds_ = lasted;
  log_.info("{}", activity.line());
}

Activity::Activity(Watch& watch, std::string doing, ActivityOptions options)
    : watch_(watch),
      doing_(std::move(doing)),
      options_(std::move(options)),
      since_us_(now_us()),
      total_(options_.total) {
  check();
  const std::scoped_lock lock(watch_.mutex_);
  watch_.activities_.push_back(this);
}

Activity::~Activity() {
  const std::scoped_lock lock(watch_.mutex_);
  std::erase(watch_.activities_, this);
  watch_.terminal_.overlay("");
}

void Activity::advance(std::uint64_t done, std::uint64_t total) {
  done_ = done;
  if (total > 0) total_ = total;
  check();
}

void Activity::check() const {
  if (!options_.to_the_end) watch_.stop_if_asked(doing_);
}

ProgressFunction Activity::progress() {
  return [this](const Progress& progress) { advance(progress.bytes_done, progress.bytes_total); };
}

double Activity::seconds_left() const {
  const auto done = static_cast<double>(done_.load());
  const auto total = static_cast<double>(total_.load());
  return done > 0 && done < total ? seconds_since(since_us_) * (total - done) / done : 0;
}

std::string Activity::line() const {
  const std::uint64_t done = done_.load();
  const std::uint64_t total = total_.load();
  if (total == 0) return doing_;
  const auto amount = [this](std::uint64_t count) {
    return options_.noun.empty() ? format_bytes(count) : counted(count, options_.noun.c_str());
  };
  if (done == 0) return fmt::format("{} ({})", doing_, amount(total));
  const double left = seconds_left();
  return fmt::format("{} ({} of {}){}", doing_,
                     options_.noun.empty() ? format_bytes(done) : fmt::format("{}", done),
                     amount(total),
                     left > 0 ? fmt::format(", {} left", format_duration(left)) : "");
}

}  // namespace terrace::train
