// Faults of the system calls below swap, checkpoints and data: never a wrong byte, never a hang,
// always a message with the path. The calls are intercepted at link time (--wrap), so that what is
// tested is what ships. Faults of io_uring are played by FaultyDriver and MemoryDisk, above which
// the same engine works.
#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <string>
#include <vector>

#include "io/page_contents.h"
#include "io/store_on_memory.h"
#include "io/temporary_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/checksum.h"
#include "terrace/io/file.h"
#include "terrace/io/page_channel.h"

namespace {

/// What the next calls do. Transfers above the manifest's and headers' size are counted only, so
/// that k counts those of the data.
struct Calls {
  std::atomic<int> skip{0};
  std::atomic<int> times{0};
  std::atomic<int> error{0};  ///< 0: a short transfer of half
  std::atomic<bool> on_read{false};
  std::atomic<bool> refuse_direct{false};
};
Calls calls;  // The wrapped functions have no other way to be told.

/// -1: make the call as asked; else how many bytes to move; errors set errno and return -2.
long intercept(bool is_read, std::size_t size) {
  if (is_read != calls.on_read || size < 8192) return -1;
  if (calls.skip.fetch_sub(1) > 0) return -1;
  if (calls.times.fetch_sub(1) <= 0) return -1;
  if (calls.error == 0) return static_cast<long>(size / 2 / 4096 * 4096);
  errno = calls.error;
  return -2;
}

}  // namespace

extern "C" {
// NOLINTBEGIN: the linker gives these names.
ssize_t __real_pread(int, void*, size_t, off_t);
ssize_t __real_pwrite(int, const void*, size_t, off_t);
int __real_open(const char*, int, ...);

ssize_t __wrap_pread(int file, void* data, size_t size, off_t offset) {
  const long moved = intercept(true, size);
  return moved == -2
             ? -1
             : __real_pread(file, data, moved < 0 ? size : static_cast<size_t>(moved), offset);
}

ssize_t __wrap_pwrite(int file, const void* data, size_t size, off_t offset) {
  const long moved = intercept(false, size);
  return moved == -2
             ? -1
             : __real_pwrite(file, data, moved < 0 ? size : static_cast<size_t>(moved), offset);
}

int __wrap_open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (calls.refuse_direct && (flags & O_DIRECT) != 0) {
    errno = EINVAL;
    return -1;
  }
  return __real_open(path, flags, mode);
}
// NOLINTEND
}

namespace terrace::io {
namespace {

using terrace::testing::fill_page;
using terrace::testing::on_memory;
using terrace::testing::same_bytes;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kBytes = 9 * kMiB + 4097;
constexpr int kForEver = 1 << 30;

enum class Place { swap, swap_through_page_cache, swap_on_memory, plain_file };

struct Fault {
  std::string name;
  int error;
  int times;
  bool recovers;         ///< with right bytes
  bool recovers_direct;  ///< the same where O_DIRECT can be left
};

const std::vector<Fault> kFaults = {
    {"short_transfer", 0, 1, true, true},
    {"short_transfers", 0, 3, true, true},
    {"EINTR", EINTR, 1, true, true},
    {"EAGAIN", EAGAIN, 3, true, true},
    {"EAGAIN_for_ever", EAGAIN, kForEver, false, false},
    {"EIO", EIO, 1, false, false},
    {"EINVAL", EINVAL, 1, false, true},
    {"EINVAL_for_ever", EINVAL, kForEver, false, false},
    {"ENOSPC", ENOSPC, 1, false, false},
};

using Parameter = std::tuple<Place, bool, int, std::size_t>;  // place, on read, k, fault

class FaultTest : public ::testing::TestWithParam<Parameter> {
 protected:
  void TearDown() override { calls.times = 0; }

  [[nodiscard]] Place place() const { return std::get<0>(GetParam()); }
  [[nodiscard]] bool on_read() const { return std::get<1>(GetParam()); }
  [[nodiscard]] int k() const { return std::get<2>(GetParam()); }
  [[nodiscard]] const Fault& fault() const { return kFaults[std::get<3>(GetParam())]; }

  void begin_faults() {
    if (place() == Place::swap_on_memory) {
      disk_->add_fault({.kind = on_read() ? Operation::read : Operation::write,
                        .path_part = "pages",
                        .skip = k(),
                        .times = fault().times,
                        .error = fault().error,
                        .moved = 4096});
      return;
    }
    calls.on_read = on_read();
    calls.error = fault().error;
    calls.skip = k();
    calls.times = fault().times;
  }

  PageStoreOptions options() {
    if (place() == Place::swap_on_memory) return on_memory(disk_);
    PageStoreOptions options;
    options.engine.driver = DriverKind::threads;
    options.engine.direct = place() == Place::swap;
    return options;
  }

  /// Writes and reads a page, commits, and returns the bytes read.
  void use_store() {
    const std::filesystem::path base =
        place() == Place::swap_on_memory ? std::filesystem::path("/m") : folder_.path();
    const StoreFolder folders[] = {{base, 1}};
    const PageSpec page{PageId(1), kBytes, "the page"};
    const auto store = PageStore::create(folders, {&page, 1}, options(), log_);
    const auto channel = store->open_channel();
    std::uint64_t tag = 0;
    if (!on_read()) begin_faults();
    channel->write(page.id, source_.span(), 0);
    while (channel->in_flight() > 0) (void)channel->wait({&tag, 1});
    calls.times = 0;
    store->commit(Version(1), {});
    if (on_read()) begin_faults();
    channel->read(page.id, target_.span(), 0);
    while (channel->in_flight() > 0) (void)channel->wait({&tag, 1});
  }

  void use_file() {
    const auto path = folder_ / "model.safetensors";
    if (!on_read()) begin_faults();
    OutputFile output(path, {.buffer_bytes = 64 * kKiB});
    for (std::size_t begin = 0; begin < source_.size(); begin += kMiB) {
      output.write(
          source_.span().subspan(begin, std::min<std::size_t>(kMiB, source_.size() - begin)));
    }
    output.commit();
    calls.times = 0;
    if (on_read()) begin_faults();
    const InputFile input(path);
    for (std::size_t begin = 0; begin < target_.size(); begin += kMiB) {
      input.read(begin, target_.span().subspan(
                            begin, std::min<std::size_t>(kMiB, target_.size() - begin)));
    }
  }

  TemporaryFolder folder_;
  Log log_{[](LogLevel, std::string_view) {}};
  std::shared_ptr<MemoryDisk> disk_ =
      std::make_shared<MemoryDisk>(MemoryDiskOptions{.seed = 9, .delay_max = 3});
  AlignedMemory source_{kBytes}, target_{kBytes};
};

TEST_P(FaultTest, gives_the_right_bytes_or_an_error_with_the_path) {
  fill_page(source_.span(), 1, 1);
  const bool can_leave_direct = place() == Place::swap || place() == Place::swap_on_memory;
  const bool recovers = can_leave_direct ? fault().recovers_direct : fault().recovers;
  try {
    place() == Place::plain_file ? use_file() : use_store();
    EXPECT_TRUE(recovers) << "an error was expected";
    EXPECT_TRUE(same_bytes(source_.span().first(kBytes), target_.span().first(kBytes)));
  } catch (const Error& error) {
    EXPECT_FALSE(recovers) << error.what();
    EXPECT_EQ(exit_code(error.kind()), 5) << error.what();
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr(strerrorname_np(fault().error)), HasSubstr("bytes at offset")));
    EXPECT_THAT(error.what(),
                HasSubstr(place() == Place::plain_file       ? "model.safetensors"
                          : place() == Place::swap_on_memory ? "/m/pages"
                                                             : folder_.path() / "pages"));
  }
}

std::string name_of(const ::testing::TestParamInfo<Parameter>& info) {
  const auto& [place, on_read, k, fault] = info.param;
  const char* places[] = {"swap", "swap_through_page_cache", "swap_on_memory", "plain_file"};
  return fmt::format("{}_{}_{}_at_{}", places[static_cast<int>(place)], on_read ? "read" : "write",
                     kFaults[fault].name, k);
}

INSTANTIATE_TEST_SUITE_P(
    Everywhere, FaultTest,
    ::testing::Combine(::testing::Values(Place::swap, Place::swap_through_page_cache,
                                         Place::swap_on_memory, Place::plain_file),
                       ::testing::Bool(), ::testing::Values(0, 4),
                       ::testing::Range<std::size_t>(0, kFaults.size())),
    name_of);

TEST(NoDirect, a_file_system_that_refuses_it_at_open_is_used_through_the_page_cache) {
  const TemporaryFolder folder;
  Log log([](LogLevel, std::string_view) {});
  const StoreFolder folders[] = {{folder.path(), 1}};
  const PageSpec page{PageId(1), kBytes, "the page"};
  const AlignedMemory source(kBytes), target(kBytes);
  fill_page(source.span(), 1, 1);
  calls.refuse_direct = true;
  const auto store = PageStore::create(folders, {&page, 1}, {}, log);
  const auto channel = store->open_channel();
  std::uint64_t tag = 0;
  channel->write(page.id, source.span(), 0);
  (void)channel->wait({&tag, 1});
  store->commit(Version(1), {});
  channel->read(page.id, target.span(), 0);
  (void)channel->wait({&tag, 1});
  calls.refuse_direct = false;
  EXPECT_FALSE(channel->capabilities().direct);
  EXPECT_TRUE(same_bytes(source.span().first(kBytes), target.span().first(kBytes)));
  // Once a file: the data, the manifest as it is made, and under its name.
  ASSERT_EQ(log.fallbacks().size(), 3U);
  EXPECT_THAT(log.fallbacks()[0], AllOf(HasSubstr("O_DIRECT"), HasSubstr("EINVAL"),
                                        HasSubstr((folder / "pages").string())));
}

}  // namespace
}  // namespace terrace::io
