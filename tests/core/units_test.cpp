#include "terrace/core/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "terrace/core/error.h"

namespace terrace {
namespace {

TEST(Counted, is_one_or_several) {
  EXPECT_EQ(counted(1, "file"), "1 file");
  EXPECT_EQ(counted(0, "file"), "0 files");
  EXPECT_EQ(counted(2, "file"), "2 files");
  EXPECT_EQ(counted(1, "micro-batch", "micro-batches"), "1 micro-batch");
  EXPECT_EQ(counted(2, "micro-batch", "micro-batches"), "2 micro-batches");
}

TEST(ParseSize, reads_bytes_and_both_families_of_units) {
  const std::vector<std::pair<std::string, std::uint64_t>> cases = {{"0", 0},
                                                                    {"4096", 4096},
                                                                    {"12B", 12},
                                                                    {"1k", 1024},
                                                                    {"64G", 64 * kGiB},
                                                                    {"64GiB", 64 * kGiB},
                                                                    {"64GB", 64000000000},
                                                                    {"64gb", 64000000000},
                                                                    {"1.5M", 3 * kMiB / 2},
                                                                    {"2 MiB", 2 * kMiB},
                                                                    {"3MB", 3000000},
                                                                    {"1T", 1024 * kGiB},
                                                                    {"2TB", 2000000000000},
                                                                    {"1e3", 1000}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(parse_size(text, "--disk"), bytes) << text;
}

TEST(ParseSize, reads_a_share_of_a_whole_only_where_there_is_one) {
  EXPECT_EQ(parse_size("80%", "--host_memory", 1000), 800U);
  EXPECT_EQ(parse_size("100%", "--host_memory", 1000), 1000U);
  EXPECT_THROW((void)parse_size("80%", "--disk"), Error);
  EXPECT_THROW((void)parse_size("101%", "--host_memory", 1000), Error);
}

TEST(ParseSize, refuses_what_is_no_size_and_names_the_flag_and_the_text) {
  for (const char* text :
       {"", "G", "-1", "-1G", "1X", "1GG", "1G1", "0x10", "nan", "inf", "1e30", "ten", "1,5G"}) {
    try {
      (void)parse_size(text, "--host_memory", 1000);
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("--host_memory is \"" + std::string(text)));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("64GiB"));
    }
  }
}

TEST(FormatBytes, always_carries_its_unit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(3 * kMiB / 2), "1.50 MiB");
  EXPECT_EQ(format_bytes(80 * kGiB), "80.00 GiB");
  EXPECT_EQ(format_bytes(2048 * kGiB), "2.00 TiB");
}

TEST(FormatDuration, changes_unit_where_people_do) {
  EXPECT_EQ(format_duration(0.0025), "2.50 ms");
  EXPECT_EQ(format_duration(0), "0 ms");
  EXPECT_EQ(format_duration(0.25), "250 ms");
  EXPECT_EQ(format_duration(3.25), "3.2 s");
  EXPECT_EQ(format_duration(250), "4 min 10 s");
  EXPECT_EQ(format_duration(7500), "2 h 5 min");
  EXPECT_EQ(format_duration(90000), "1 d 1 h");
}

TEST(FormatCountAndRate, use_powers_of_ten) {
  EXPECT_EQ(format_count(4096), "4096");
  EXPECT_EQ(format_count(124'439'808), "124.44M");
  EXPECT_EQ(format_count(1'100'000'000), "1.10B");
  EXPECT_EQ(format_rate(1.23e9), "1.23 GB/s");
  EXPECT_EQ(format_rate(45.6e6), "45.6 MB/s");
}

TEST(RoundUp, gives_the_smallest_multiple_at_or_above) {
  EXPECT_EQ(round_up(0, 128), 0U);
  EXPECT_EQ(round_up(1, 128), 128U);
  EXPECT_EQ(round_up(128, 128), 128U);
  EXPECT_EQ(round_up(129, 100), 200U);
}

}  // namespace
}  // namespace terrace
