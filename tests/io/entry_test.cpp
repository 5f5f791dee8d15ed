#include "terrace/io/entry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "core/error_of.h"
#include "io/temporary_folder.h"
#include "terrace/io/file.h"

namespace terrace::io {
namespace {

using terrace::testing::error_of;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LookAt, tells_files_folders_and_others_through_links) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  std::filesystem::create_symlink(folder / "file", folder / "link");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(look_at(folder.path()), Entry::folder);
  EXPECT_EQ(look_at(folder / "file"), Entry::file);
  EXPECT_EQ(look_at(folder / "link"), Entry::file);
  EXPECT_EQ(look_at(folder / "pipe"), Entry::other);
  EXPECT_TRUE(is_there(folder / "pipe"));
  EXPECT_FALSE(is_file(folder / "pipe"));
}

TEST(LookAt, only_what_is_known_not_to_be_there_is_nothing) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  std::filesystem::create_symlink(folder / "gone", folder / "dangling");
  std::filesystem::create_symlink(folder / "circle", folder / "circle");
  EXPECT_EQ(look_at(folder / "gone"), Entry::nothing);
  EXPECT_EQ(look_at(folder / "gone/below"), Entry::nothing);
  EXPECT_EQ(look_at(folder / "file/below"), Entry::nothing);
  EXPECT_EQ(look_at(folder / "dangling"), Entry::nothing);
  EXPECT_EQ(look_at(folder / std::string(300, 'a')), Entry::nothing);
  EXPECT_EQ(look_at(""), Entry::nothing);
  const Error error = error_of([&] { return look_at(folder / "circle", ErrorKind::data); });
  EXPECT_EQ(error.kind(), ErrorKind::data);
  EXPECT_THAT(error.what(), AllOf(HasSubstr((folder / "circle").string()), HasSubstr("ELOOP")));
}

TEST(LookAtDeathTest, a_closed_folder_is_named_with_what_to_change) {
  const TemporaryFolder folder;
  const std::filesystem::path closed = folder / "closed";
  std::filesystem::create_directories(closed / "below");
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(closed, std::filesystem::perms(0));
  const auto look = [&] {
    // Nothing is closed to root, whose own folder this is then.
    if (::geteuid() == 0 && ::seteuid(65534) != 0) std::_Exit(1);
    try {
      (void)is_there(closed / "below/model", ErrorKind::data);
    } catch (const Error& error) {
      std::cerr << error.what();
      std::_Exit(exit_code(error.kind()));
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(look(), ::testing::ExitedWithCode(4),
              "closed/below/model, because the folder .*/closed is closed: EACCES .*change its "
              "rights");
  std::filesystem::permissions(closed, std::filesystem::perms(0755));
}

TEST(ExistingPart, is_the_nearest_folder_above_what_is_not_there) {
  const TemporaryFolder folder;
  EXPECT_EQ(existing_part(folder / "a/b/c"), plain_path(folder.path()));
  make_folder(folder / "a/b");
  EXPECT_EQ(existing_part(folder / "a/b/c"), plain_path(folder / "a/b"));
  EXPECT_EQ(existing_part(folder / "a/b"), plain_path(folder / "a/b"));
}

TEST(MakeFolder, says_why_it_cannot) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  const Error error = error_of([&] { return make_folder(folder / "file/below"), 0; });
  EXPECT_EQ(error.kind(), ErrorKind::io);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr((folder / "file/below").string()), HasSubstr("ENOTDIR")));
}

TEST(ReasonOf, ends_with_what_to_change_where_that_is_known) {
  EXPECT_EQ(reason_of(EINTR), "EINTR (Interrupted system call)");
  EXPECT_THAT(reason_of(EMFILE), HasSubstr("ulimit -n"));
  EXPECT_THAT(reason_of(EROFS), HasSubstr("can be written to"));
}

TEST(OpenFilesShare, follows_the_limit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(open_files_share(), 32U);
  low.rlim_cur = 2;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(open_files_share(), 1U);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(InputFile, once_closed_is_opened_for_each_read_and_must_be_the_same) {
  const TemporaryFolder folder;
  write_file(folder / "file", "0123456789");
  InputFile file(folder / "file");
  file.close();
  std::array<std::byte, 2> bytes{};
  file.read(3, bytes);
  EXPECT_EQ(bytes[0], std::byte{'3'});
  EXPECT_EQ(file.stamp(), file.opened());
  write_file(folder / "file", "abc");
  const Error error = error_of([&] { return file.read(0, bytes), 0; });
  EXPECT_EQ(error.kind(), ErrorKind::data);
  EXPECT_THAT(error.what(), HasSubstr("was changed"));
}

}  // namespace
}  // namespace terrace::io
