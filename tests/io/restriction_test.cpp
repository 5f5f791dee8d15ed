// What a container or an unprivileged user is refused, for real: seccomp filters, the limit on
// locked memory, a full file system. Each case runs in a child process, which it restricts.
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "io/child.h"
#include "io/page_contents.h"
#include "io/small_file_system.h"
#include "io/temporary_folder.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/page_channel.h"

namespace terrace::io {
namespace {

using terrace::testing::fill_page;
using terrace::testing::in_child;
using terrace::testing::same_bytes;
using terrace::testing::SmallFileSystem;
using terrace::testing::TemporaryFolder;

constexpr std::uint64_t kBytes = 24 * kMiB;

/// Makes the system call `number` fail with `error` from now on.
void forbid(std::uint32_t number, int error) {
  const std::array<sock_filter, 4> program = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter = {program.size(), const_cast<sock_filter*>(program.data())};
  require(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
              ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0,
          ErrorKind::io, "cannot install a seccomp filter: {}", errno_name(errno));
}

/// Makes a store in `folder`, moves a page there and back through registered memory, and returns
/// whether the bytes are the same. `log` has the fall-backs, `found` what the channel could do.
bool round_trip(const std::filesystem::path& folder, Log& log, Capabilities& found) {
  const StoreFolder folders[] = {{folder, 1}};
  const PageSpec page{PageId(1), kBytes, "the page"};
  const AlignedMemory source(kBytes), target(kBytes);
  fill_page(source.span(), 1, 1);
  const auto store = PageStore::create(folders, {&page, 1}, {}, log);
  const auto channel = store->open_channel();
  const std::span<std::byte> buffers[] = {source.span(), target.span()};
  channel->register_buffers(buffers);
  std::uint64_t tag = 0;
  channel->write(page.id, source.span(), 0);
  (void)channel->wait({&tag, 1});
  store->commit(Version(1), {});
  channel->read(page.id, target.span(), 0);
  (void)channel->wait({&tag, 1});
  found = channel->capabilities();
  return same_bytes(source.span(), target.span());
}

bool mentions(const Log& log, std::string_view text) {
  for (const std::string& line : log.fallbacks()) {
    if (line.find(text) != std::string::npos) return true;
  }
  return false;
}

class SeccompTest : public ::testing::TestWithParam<int> {};

TEST_P(SeccompTest, without_io_uring_threads_do_the_same) {
  const TemporaryFolder folder;
  const int code = in_child([&] {
    forbid(SYS_io_uring_setup, GetParam());
    Log log([](LogLevel, std::string_view) {});
    Capabilities found;
    if (!round_trip(folder.path(), log, found)) return 1;
    if (found.driver != "threads") return 2;
    // Once, though two engines were made.
    if (log.fallbacks().size() != 1) return 3;
    if (!mentions(log, strerrorname_np(GetParam()))) return 4;
    return mentions(log, "sysctl kernel.io_uring_disabled=0") ? 0 : 5;
  });
  EXPECT_EQ(code, 0);
}

TEST_P(SeccompTest, without_io_uring_register_the_rest_still_works) {
  const TemporaryFolder folder;
  const int code = in_child([&] {
    forbid(SYS_io_uring_register, GetParam());
    Log log([](LogLevel, std::string_view) {});
    Capabilities found;
    if (!round_trip(folder.path(), log, found)) return 1;
    if (found.registered) return 2;
    return log.fallbacks().empty() ? 3 : 0;
  });
  EXPECT_EQ(code, 0);
}

INSTANTIATE_TEST_SUITE_P(Errors, SeccompTest, ::testing::Values(EPERM, ENOSYS, EINVAL),
                         [](const auto& error) { return strerrorname_np(error.param); });

class LockedMemoryTest : public ::testing::TestWithParam<rlim_t> {};

TEST_P(LockedMemoryTest, an_unprivileged_user_below_the_limit_goes_unregistered) {
  const TemporaryFolder folder;
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  const int code = in_child([&] {
    const rlimit limit = {GetParam(), GetParam()};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 90;
    // Root ignores the limit. Any user without privileges will do.
    if (::geteuid() == 0 && (::setgid(12345) != 0 || ::setuid(12345) != 0)) return 91;
    // Below a folder that others cannot enter, the working folder is the way in.
    if (::chdir(folder.path().c_str()) != 0) return 92;
    Log log([](LogLevel, std::string_view) {});
    Capabilities found;
    if (!round_trip(".", log, found)) return 1;
    if (found.driver != "io_uring") return mentions(log, "io_uring is refused") ? 0 : 2;
    if (found.registered) return 3;  // 48 MiB are above each limit.
    return mentions(log, "ulimit -l unlimited") ? 0 : 4;
  });
  if (code == 92) GTEST_SKIP() << "another user cannot enter the working folder";
  EXPECT_EQ(code, 0);
}

INSTANTIATE_TEST_SUITE_P(Limits, LockedMemoryTest,
                         ::testing::Values(rlim_t{0}, rlim_t{64 * kKiB}, rlim_t{8 * kMiB}),
                         [](const auto& limit) {
                           return std::to_string(limit.param / kKiB) + "KiB";
                         });

TEST(FullFileSystem, the_write_fails_with_exit_code_5_and_the_last_commit_still_opens) {
  const TemporaryFolder folder;
  const SmallFileSystem small(folder.path());
  if (!small.mounted()) GTEST_SKIP() << "cannot mount a file system in a file here";
  Log log([](LogLevel, std::string_view) {});
  const StoreFolder folders[] = {{small.path(), 1}};
  const PageSpec page{PageId(1), kBytes, "the page"};
  const AlignedMemory memory(kBytes), expected(kBytes);
  fill_page(expected.span(), 1, 1);
  std::uint64_t tag = 0;
  {
    const auto store = PageStore::create(folders, {&page, 1}, {}, log);
    const auto channel = store->open_channel();
    channel->write(page.id, expected.span(), 0);
    (void)channel->wait({&tag, 1});
    store->commit(Version(1), {});
    // Someone else takes the space that this file system could not reserve.
    small.fill(0);
    fill_page(memory.span(), 1, 2);
    try {
      channel->write(page.id, memory.span(), 0);
      (void)channel->wait({&tag, 1});
      FAIL() << "the write was expected to find no space";
    } catch (const Error& error) {
      EXPECT_EQ(exit_code(error.kind()), 5);
      EXPECT_NE(std::string(error.what()).find("ENOSPC"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find((small.path() / "pages").string()),
                std::string::npos);
    }
    EXPECT_THROW(store->commit(Version(2), {}), Error);
  }
  const std::filesystem::path paths[] = {small.path()};
  const auto store = PageStore::open(paths, {}, log);
  EXPECT_EQ(store->committed_version(), Version(1));
  const auto channel = store->open_channel();
  channel->read(page.id, memory.span(), 0);
  (void)channel->wait({&tag, 1});
  EXPECT_TRUE(same_bytes(memory.span(), expected.span()));
}

}  // namespace
}  // namespace terrace::io
