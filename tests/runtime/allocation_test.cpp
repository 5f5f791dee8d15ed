#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>

#include "runtime/rig.h"

// Steps allocate nothing: this program counts every `operator new` of all threads, but for those
// that libraries call of their own.

namespace {

std::atomic<bool> counting{false};
std::atomic<int> count{0};

/// What was allocated first, so that a failure names it.
struct Culprit {
  char thread[16] = {};
  std::array<void*, 24> stack{};
  int depth = 0;
};
std::array<Culprit, 8> culprits;

/// Whether the code at `address` is a library's that is not ours to change: oneDNN's contexts of
/// execution, and what OpenMP and TBB keep of their threads.
bool is_foreign(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return false;
  const std::string_view name = info.dli_fname;
  return name.find("libdnnl") != name.npos || name.find("libgomp") != name.npos ||
         name.find("libtbb") != name.npos;
}

bool is_standard(void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr &&
         std::string_view(info.dli_fname).find("libstdc++") != std::string_view::npos;
}

/// `caller` is who called `operator new`.
void note(void* caller) {
  Culprit culprit;
  culprit.depth = backtrace(culprit.stack.data(), static_cast<int>(culprit.stack.size()));
  int frame = 0;
  while (frame < culprit.depth && culprit.stack[static_cast<std::size_t>(frame)] != caller) ++frame;
  while (frame < culprit.depth && is_standard(culprit.stack[static_cast<std::size_t>(frame)])) {
    ++frame;
  }
  if (frame < culprit.depth && is_foreign(culprit.stack[static_cast<std::size_t>(frame)])) return;
  const int number = count.fetch_add(1);
  if (number >= static_cast<int>(culprits.size())) return;
  pthread_getname_np(pthread_self(), culprit.thread, sizeof culprit.thread);
  culprits[static_cast<std::size_t>(number)] = culprit;
}

/// Null when there is no memory.
void* try_to_allocate(std::size_t bytes, std::size_t alignment, void* caller) noexcept {
  if (counting.load(std::memory_order_relaxed)) note(caller);
  void* data = nullptr;
  const int error =
      posix_memalign(&data, std::max(alignment, sizeof(void*)), std::max<std::size_t>(bytes, 1));
  return error == 0 ? data : nullptr;
}

void* allocate(std::size_t bytes, std::size_t alignment, void* caller) {
  void* data = try_to_allocate(bytes, alignment, caller);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

/// Apart, so that no compiler that sees a `new` but inlines only its `delete` warns of a mismatch.
[[gnu::noinline]] void release(void* data) noexcept { std::free(data); }

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 16, __builtin_return_address(0)); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 16, __builtin_return_address(0)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
// std::stable_sort asks for its buffer this way.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return try_to_allocate(bytes, 16, __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return try_to_allocate(bytes, 16, __builtin_return_address(0));
}
void operator delete(void* data) noexcept { release(data); }
void operator delete[](void* data) noexcept { release(data); }
void operator delete(void* data, std::size_t) noexcept { release(data); }
void operator delete[](void* data, std::size_t) noexcept { release(data); }
void operator delete(void* data, std::align_val_t) noexcept { release(data); }
void operator delete[](void* data, std::align_val_t) noexcept { release(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { release(data); }
void operator delete[](void* data, std::size_t, std::align_val_t) noexcept { release(data); }

namespace terrace::runtime::testing {
namespace {

/// Allocations of steps 3 to 5, from the post of the third to the end of the fifth.
int allocations(const plan::PlanRequest& request) {
  Rig rig(request);
  count = 0;
  rig.before_step_ = [](std::int64_t step) { counting = step >= 3 && step <= 5; };
  (void)rig.run_threads(5);
  return count;
}

void print_culprits() {
  for (int i = 0; i < std::min(count.load(), static_cast<int>(culprits.size())); ++i) {
    const Culprit& culprit = culprits[static_cast<std::size_t>(i)];
    std::fprintf(stderr, "thread \"%s\" allocates:\n", culprit.thread);
    backtrace_symbols_fd(culprit.stack.data(), culprit.depth, STDERR_FILENO);
  }
}

TEST(Steps, allocate_nothing_once_they_run) {
  for (const plan::PlanRequest& request : requests()) {
    SCOPED_TRACE("parameters on " + std::string(name_of(request.placement.parameters)) +
                 ", state on " + std::string(name_of(request.placement.state)));
    EXPECT_EQ(allocations(request), 0);
    print_culprits();
  }
}

TEST(Steps, what_does_allocate_is_counted) {
  count = 0;
  counting = true;
  ::operator delete(::operator new(4));
  counting = false;
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace terrace::runtime::testing
