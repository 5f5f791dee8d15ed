#include "terrace/config/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/parse.h"

namespace terrace::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal_of(const std::string& file_or_name) {
  try {
    (void)find_profile(file_or_name);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  ADD_FAILURE() << file_or_name << " was accepted";
  return "";
}

TEST(Profile, what_was_written_is_read_back_with_what_is_not_known) {
  plan::HardwareProfile profile;
  profile.name = "measured on node7";
  profile.h2d_bytes_per_second = 1.25e10;
  profile.d2h_bytes_per_second = 2e10;
  profile.disk_read_bytes_per_second = 3.5e9;
  profile.disk_mixed_factor = 0.625;
  profile.shared_cores_factor = 0.5;
  profile.fp32_flops_per_second = 1e11;
  profile.task_seconds = 1.5e-5;
  profile.commit_seconds = 0.25;
  const std::string text = profile_json(profile);
  const TextFile file(text);
  const plan::HardwareProfile read = find_profile(file.path());
  EXPECT_EQ(profile_json(read), text);
  EXPECT_EQ(read.name, "measured on node7");
  EXPECT_EQ(read.d2h_bytes_per_second, 2e10);
  EXPECT_EQ(read.disk_mixed_factor, 0.625);
  EXPECT_FALSE(read.disk_write_bytes_per_second.has_value());
  EXPECT_FALSE(read.bf16_flops_per_second.has_value());
  EXPECT_EQ(read.fp32_flops_per_second, 1e11);
  EXPECT_EQ(read.commit_seconds, 0.25);
}

TEST(Profile, an_unknown_key_is_refused_with_line_and_nearest_name) {
  const TextFile file("{\"schema\": \"terrace.profile/1\",\n \"h2d_byte_per_second\": 1e9}\n");
  EXPECT_THAT(refusal_of(file.path()),
              AllOf(HasSubstr(file.path() + " line 2"), HasSubstr("\"h2d_bytes_per_second\""),
                    HasSubstr("the known ones are schema, name, device_memory_bytes, ")));
}

TEST(Profile, a_rate_that_is_none_is_refused) {
  const TextFile file("{\"schema\": \"terrace.profile/1\", \"disk_read_bytes_per_second\": 0}");
  EXPECT_THAT(refusal_of(file.path()), HasSubstr("disk_read_bytes_per_second"));
}

TEST(Profile, another_json_file_is_no_profile) {
  const TextFile file("{\"name\": \"x\"}");
  EXPECT_THAT(refusal_of(file.path()), HasSubstr("terrace.profile/1"));
}

TEST(Profile, an_unknown_name_lists_the_known_ones) {
  EXPECT_THAT(refusal_of("h300"), AllOf(HasSubstr("h200, h200-of-8"), HasSubstr("bench all")));
}

TEST(Profile, figures_that_are_missing_are_assumed_and_no_others) {
  plan::HardwareProfile profile;
  profile.disk_read_bytes_per_second = 1e9;
  profile.disk_mixed_factor = 0.75;
  const plan::HardwareProfile full = with_assumed(profile);
  EXPECT_EQ(full.disk_read_bytes_per_second, 1e9);
  EXPECT_EQ(full.disk_mixed_factor, 0.75);
  EXPECT_THAT(full.name, HasSubstr("assumed")) << "it says whose figures these are";
  EXPECT_EQ(with_assumed(full).name, full.name);
  EXPECT_EQ(with_assumed(find_profile("h200")).name, find_profile("h200").name);
  EXPECT_EQ(full.device_memory_bytes, std::nullopt) << "no rate, and not to be made up";
  const std::string text = profile_json(full);
  EXPECT_THAT(text, ::testing::Not(HasSubstr("per_second\": null")));
}

TEST(Profile, an_assumed_profile_says_so) {
  EXPECT_THAT(find_profile("h200").name, HasSubstr("assumed"));
  EXPECT_EQ(find_profile("h200-of-8").disk_read_bytes_per_second,
            *find_profile("h200").disk_read_bytes_per_second / 8);
}

}  // namespace
}  // namespace terrace::config
