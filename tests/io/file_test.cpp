#include "terrace/io/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <vector>

#include "core/error_of.h"
#include "io/temporary_folder.h"
#include "terrace/core/random.h"
#include "terrace/io/checksum.h"

namespace terrace::io {
namespace {

using terrace::testing::error_of;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::size_t entries_in(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(OutputFile, appears_whole_under_its_name_and_only_after_commit) {
  const TemporaryFolder folder;
  const auto path = folder / "state.bin";
  write_file(path, "old");
  {
    OutputFile file(path, {.buffer_bytes = 8});
    file.write("0123");
    file.write("456789abcdef");
    file.write("g");
    EXPECT_EQ(file.position(), 17U);
    EXPECT_EQ(read_file(path), "old");
    file.commit();
  }
  EXPECT_EQ(read_file(path), "0123456789abcdefg");
  EXPECT_EQ(entries_in(folder.path()), 1U);
}

TEST(OutputFile, without_commit_leaves_nothing_behind) {
  const TemporaryFolder folder;
  {
    OutputFile file(folder / "a");
    file.write("x");
    OutputFile direct(folder / "b", {.atomic = false});
    direct.write("x");
  }
  EXPECT_EQ(entries_in(folder.path()), 0U);
}

TEST(OutputFile, positioned_writes_leave_the_position_alone) {
  const TemporaryFolder folder;
  OutputFile file(folder / "a");
  file.write("head");
  file.write_at(4, std::as_bytes(std::span("tail", 4)));
  EXPECT_EQ(file.position(), 4U);
  file.commit();
  EXPECT_EQ(read_file(folder / "a"), "headtail");
}

TEST(OutputFile, names_the_path_when_the_folder_is_missing) {
  const TemporaryFolder folder;
  const Error error = error_of([&] { OutputFile file(folder / "none/a"); });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("none/a"), HasSubstr("ENOENT")));
}

TEST(OutputFile, a_folder_of_its_name_is_found_before_anything_is_written) {
  const TemporaryFolder folder;
  const Error error = error_of([&] { OutputFile file(folder.path()); });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_THAT(error.what(), HasSubstr("EISDIR"));
}

TEST(RenameDurably, names_the_errno_of_its_own_call) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "full" / "inner");
  std::filesystem::create_directory(folder / "empty");
  errno = EPIPE;  // An earlier call's.
  const Error error = error_of([&] { rename_durably(folder / "empty", folder / "full"); });
  EXPECT_THAT(error.what(), HasSubstr("ENOTEMPTY"));
}

TEST(OutputFile, continues_past_what_one_system_call_moves) {
  if (::getenv("TERRACE_LARGE_TESTS") == nullptr) {
    GTEST_SKIP() << "writes 2.2 GiB; set TERRACE_LARGE_TESTS=1 to run it";
  }
  const TemporaryFolder folder;
  std::vector<std::byte> data((std::size_t{1} << 31) + (std::size_t{200} << 20));
  const RandomStream random(1, 1);
  for (std::size_t i = 0; i < data.size(); i += 4096) data[i] = std::byte(random.bits(i));
  OutputFile file(folder / "large");
  file.write(data);
  file.commit();
  EXPECT_EQ(fingerprint_file(folder / "large"), (Fingerprint{data.size(), crc64(data)}));
}

TEST(InputFile, says_where_a_truncated_file_ends) {
  const TemporaryFolder folder;
  write_file(folder / "short.bin", "12345");
  const InputFile file(folder / "short.bin", ErrorKind::corrupt);
  std::vector<std::byte> target(4);
  file.read(1, target);
  EXPECT_EQ(static_cast<char>(target[0]), '2');
  const Error error = error_of([&] { file.read(3, target); });
  EXPECT_EQ(error.kind(), ErrorKind::corrupt);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("short.bin ends at byte 5"),
                                  HasSubstr("2 more bytes were expected")));
}

TEST(InputFile, refuses_what_is_no_file) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { InputFile file(folder.path()); }).what(), HasSubstr("is a folder"));
  const Error error = error_of([&] { InputFile file(folder / "none"); });
  EXPECT_EQ(error.kind(), ErrorKind::data);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("none"), HasSubstr("ENOENT")));
}

TEST(RemoveTemporaries, takes_them_whatever_process_their_names_carry) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    new OutputFile(folder / "a");  // Never committed, never destroyed: as if killed.
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  std::ofstream(folder / "b.terrace-tmp-1-0") << "of a container whose first process is another";
  std::ofstream(folder / "c") << "kept";
  std::ofstream(folder / "c.terrace-tmp-notes") << "kept";
  EXPECT_EQ(entries_in(folder.path()), 4U);
  EXPECT_EQ(remove_temporaries(folder.path()), 2U);
  EXPECT_EQ(entries_in(folder.path()), 2U);
}

TEST(Crc64, has_its_published_check_value_and_continues) {
  // The check value of CRC-64/XZ (the CRC of "123456789") in the catalogue of parametrised CRC
  // algorithms.
  const auto text = std::as_bytes(std::span("123456789", 9));
  EXPECT_EQ(crc64(text), 0x995dc9bbdf1939faULL);
  EXPECT_EQ(crc64(text.subspan(4), crc64(text.first(4))), crc64(text));
}

}  // namespace
}  // namespace terrace::io
