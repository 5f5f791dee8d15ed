#include "terrace/core/container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr double kGiB = 0x1p30;

/// A folder that stands for "/", with the files a test puts there.
class Container : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "terrace_container_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    put("proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1024 kB\nMemAvailable: 33554432 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  fs::path root_;
};

TEST_F(Container, without_cgroups_the_hosts_memory_counts) {
  const ContainerLimits limits = read_container_limits(root_);
  EXPECT_FALSE(limits.cpus);
  EXPECT_FALSE(limits.memory_bytes);
  EXPECT_EQ(available_memory(root_).value, 32 * kGiB);
  EXPECT_EQ(total_memory(root_).value, 64 * kGiB);
  EXPECT_THAT(total_memory(root_).source, ::testing::HasSubstr("host"));
}

TEST_F(Container, without_proc_the_kernel_says_what_memory_there_is) {
  fs::remove_all(root_ / "proc");
  EXPECT_GT(available_memory(root_).value, 0);
  EXPECT_GE(total_memory(root_).value, available_memory(root_).value);
  EXPECT_THAT(total_memory(root_).source, ::testing::HasSubstr("meminfo cannot be read"));
  // A container sees its own group as the root.
  put("sys/fs/cgroup/memory.max", "1048576\n");
  EXPECT_EQ(total_memory(root_).value, 1048576);
}

TEST_F(Container, v2_max_is_no_limit) {
  put("proc/self/cgroup", "0::/job\n");
  put("sys/fs/cgroup/job/memory.max", "max\n");
  put("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  const ContainerLimits limits = read_container_limits(root_);
  EXPECT_FALSE(limits.cpus);
  EXPECT_FALSE(limits.memory_bytes);
}

TEST_F(Container, v2_page_cache_that_can_be_dropped_is_not_in_use) {
  put("proc/self/cgroup", "0::/job\n");
  put("sys/fs/cgroup/job/memory.max", "8589934592\n");
  put("sys/fs/cgroup/job/memory.current", "6442450944\n");
  put("sys/fs/cgroup/job/memory.stat", "anon 1\nactive_file 7\ninactive_file 4294967296\n");
  const ContainerLimits limits = read_container_limits(root_);
  ASSERT_TRUE(limits.memory_bytes);
  EXPECT_EQ(limits.memory_bytes->value, 8 * kGiB);
  EXPECT_EQ(limits.memory_used_bytes, std::uint64_t{2} << 30);
  EXPECT_EQ(available_memory(root_).value, 6 * kGiB);
  EXPECT_EQ(total_memory(root_).value, 8 * kGiB);
}

TEST_F(Container, v2_a_parents_tighter_limit_wins_with_the_parents_use) {
  put("proc/self/cgroup", "0::/slice/job\n");
  put("sys/fs/cgroup/slice/job/memory.max", "8589934592\n");
  put("sys/fs/cgroup/slice/job/memory.current", "1073741824\n");
  put("sys/fs/cgroup/slice/memory.max", "4294967296\n");
  put("sys/fs/cgroup/slice/memory.current", "3221225472\n");
  put("sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/slice/cpu.max", "150000 100000\n");
  const ContainerLimits limits = read_container_limits(root_);
  ASSERT_TRUE(limits.memory_bytes);
  EXPECT_EQ(limits.memory_bytes->value, 4 * kGiB);
  EXPECT_THAT(limits.memory_bytes->source, ::testing::EndsWith("slice/memory.max"));
  EXPECT_EQ(available_memory(root_).value, 1 * kGiB);
  ASSERT_TRUE(limits.cpus);
  EXPECT_EQ(limits.cpus->value, 1.5);
  EXPECT_THAT(limits.cpus->source, ::testing::EndsWith("slice/cpu.max"));
}

// Inside a container's own cgroup namespace the path is "/" and the mount's root is the group.
TEST_F(Container, v2_the_root_of_a_namespace_is_read) {
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", "2147483648\n");
  put("sys/fs/cgroup/memory.current", "0\n");
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  const ContainerLimits limits = read_container_limits(root_);
  ASSERT_TRUE(limits.memory_bytes);
  EXPECT_EQ(limits.memory_bytes->value, 2 * kGiB);
  ASSERT_TRUE(limits.cpus);
  EXPECT_EQ(limits.cpus->value, 0.5);
}

TEST_F(Container, v1_limits_are_read_from_their_hierarchies) {
  put("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n1:name=systemd:/job\n");
  put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
  put("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4294967296\n");
  put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "3221225472\n");
  put("sys/fs/cgroup/memory/job/memory.stat", "cache 9\ntotal_inactive_file 1073741824\n");
  const ContainerLimits limits = read_container_limits(root_);
  ASSERT_TRUE(limits.cpus);
  EXPECT_EQ(limits.cpus->value, 3);
  ASSERT_TRUE(limits.memory_bytes);
  EXPECT_EQ(limits.memory_bytes->value, 4 * kGiB);
  EXPECT_EQ(available_memory(root_).value, 2 * kGiB);
}

TEST_F(Container, v1_a_parents_tighter_limit_wins) {
  put("proc/self/cgroup", "4:memory:/pod/job\n5:cpu:/pod/job\n");
  put("sys/fs/cgroup/memory/pod/job/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "1073741824\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/cpu/pod/job/cpu.cfs_quota_us", "400000\n");
  put("sys/fs/cgroup/cpu/pod/job/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "200000\n");
  put("sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000\n");
  const ContainerLimits limits = read_container_limits(root_);
  ASSERT_TRUE(limits.memory_bytes);
  EXPECT_EQ(limits.memory_bytes->value, 1 * kGiB);
  ASSERT_TRUE(limits.cpus);
  EXPECT_EQ(limits.cpus->value, 2);
}

TEST_F(Container, v1_no_limit_is_written_as_minus_one_and_as_a_huge_number) {
  put("proc/self/cgroup", "4:memory:/job\n5:cpu:/job\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  const ContainerLimits limits = read_container_limits(root_);
  EXPECT_FALSE(limits.cpus);
  EXPECT_FALSE(limits.memory_bytes);
}

TEST_F(Container, available_memory_is_the_hosts_when_that_is_less_than_what_the_limit_leaves) {
  put("proc/self/cgroup", "0::/job\n");
  put("sys/fs/cgroup/job/memory.max", "53687091200\n");  // 50 GiB of 64, the host has 32 left
  put("sys/fs/cgroup/job/memory.current", "0\n");
  EXPECT_EQ(available_memory(root_).value, 32 * kGiB);
  EXPECT_EQ(total_memory(root_).value, 50 * kGiB);
}

TEST_F(Container, use_beyond_the_limit_leaves_nothing_not_less) {
  put("proc/self/cgroup", "0::/job\n");
  put("sys/fs/cgroup/job/memory.max", "1073741824\n");
  put("sys/fs/cgroup/job/memory.current", "2147483648\n");
  EXPECT_EQ(available_memory(root_).value, 0);
}

}  // namespace
}  // namespace terrace
