#pragma once

#include <sched.h>

#include <vector>

namespace terrace {

/// The processors a thread may run on, as the system takes them.
class AffinityMask {
 public:
  /// The calling thread's own.
  AffinityMask() { known_ = ::sched_getaffinity(0, sizeof mask_, &mask_) == 0; }
  explicit AffinityMask(const std::vector<int>& cpus) {
    for (const int cpu : cpus) {
      if (cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &mask_);
    }
  }
  /// Binds the calling thread. A refusal is harmless: the thread stays where it may run.
  void apply() const {
    if (known_) (void)::sched_setaffinity(0, sizeof mask_, &mask_);
  }

 private:
  cpu_set_t mask_{};
  bool known_ = true;
};

/// Binds the calling thread until the end of a scope.
class ThreadBinding {
 public:
  explicit ThreadBinding(const AffinityMask& mask) { mask.apply(); }
  ~ThreadBinding() { before_.apply(); }
  ThreadBinding(const ThreadBinding&) = delete;
  ThreadBinding& operator=(const ThreadBinding&) = delete;

 private:
  AffinityMask before_;  // read before the body of the constructor
};

}  // namespace terrace
