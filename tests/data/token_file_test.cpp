#include <gmock/gmock.h>

#include "data/data_files.h"

namespace terrace {
namespace {

using testing::all_tokens;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::llmc;
using testing::npy;
using testing::open_quietly;
using testing::refusal;
using testing::TemporaryFolder;
using testing::write_bytes;

const data::DatasetOptions kGpt2{.tokenizer = data::TokenizerKind::other, .vocab_size = 50257};

const std::vector<std::int32_t> kIds = {0, 1, 255, 256, 50256};

template <class T>
std::string payload() {
  return bytes_of(std::vector<T>(kIds.begin(), kIds.end()));
}

std::string message_about(const std::filesystem::path& path, std::string_view contents,
                          const data::DatasetOptions& options = kGpt2) {
  write_bytes(path, contents);
  const std::string message = refusal(ErrorKind::data, [&] { open_quietly({path}, options); });
  EXPECT_THAT(message, HasSubstr(path.string()));
  return message;
}

TEST(TokenFile, every_npy_dtype_and_version_gives_the_same_ids) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "ids.npy";
  for (const int version : {1, 2, 3}) {
    for (const auto& [dtype, bytes] :
         {std::pair("<u2", payload<std::uint16_t>()), std::pair("<u4", payload<std::uint32_t>()),
          std::pair("<i4", payload<std::int32_t>())}) {
      write_bytes(path, npy(dtype, "(5,)", bytes, version));
      const auto dataset = open_quietly({path}, kGpt2);
      EXPECT_EQ(all_tokens(*dataset), kIds) << dtype << " version " << version;
      EXPECT_FALSE(dataset->is_text());
    }
  }
}

TEST(TokenFile, both_llmc_formats_are_read) {
  const TemporaryFolder folder;
  write_bytes(folder / "gpt2.bin", llmc(20240520, 1, 5, payload<std::uint16_t>()));
  write_bytes(folder / "llama3.bin", llmc(20240801, 7, 5, payload<std::uint32_t>()));
  EXPECT_EQ(all_tokens(*open_quietly({folder / "gpt2.bin"}, kGpt2)), kIds);
  EXPECT_EQ(all_tokens(*open_quietly({folder / "llama3.bin"}, kGpt2)), kIds);
}

TEST(TokenFile, files_follow_each_other_without_separators) {
  const TemporaryFolder folder;
  write_bytes(folder / "b.npy", npy("<u2", "(2,)", bytes_of(std::vector<std::uint16_t>{7, 8})));
  write_bytes(folder / "a.npy", npy("<u4", "(1,)", bytes_of(std::vector<std::uint32_t>{9})));
  const auto dataset = open_quietly({folder / "b.npy", folder / "a.npy"}, kGpt2);
  EXPECT_EQ(all_tokens(*dataset), (std::vector<std::int32_t>{7, 8, 9}));
}

TEST(TokenFile, ids_are_right_wherever_a_read_begins) {
  const TemporaryFolder folder;
  std::vector<std::uint16_t> ids(1'300'000);  // three pieces of the scan, many of a read
  for (std::size_t at = 0; at < ids.size(); ++at) {
    ids[at] = static_cast<std::uint16_t>(at * 7919 % 50257);
  }
  write_bytes(folder / "ids.npy", npy("<u2", "(1300000,)", bytes_of(ids)));
  const auto dataset = open_quietly({folder / "ids.npy"}, kGpt2);
  std::vector<std::int32_t> read(20'000);
  for (const std::size_t first : {0UL, 1UL, 524'287UL, 1'280'000UL}) {
    dataset->read(static_cast<std::int64_t>(first), read);
    for (std::size_t at = 0; at < read.size(); ++at) ASSERT_EQ(read[at], ids[first + at]) << first;
  }
}

TEST(TokenFile, an_id_outside_the_vocabulary_is_named_with_its_position) {
  const TemporaryFolder folder;
  std::vector<std::uint16_t> ids(700'000, 3);
  ids[600'001] = 50257;
  ids[600'002] = 60000;
  EXPECT_THAT(
      message_about(folder / "a.npy", npy("<u2", "(700000,)", bytes_of(ids))),
      AllOf(HasSubstr("id 50257"), HasSubstr("position 600001"), HasSubstr("50257 entries")));
  EXPECT_THAT(message_about(folder / "b.npy",
                            npy("<i4", "(2,)", bytes_of(std::vector<std::int32_t>{5, -1}))),
              AllOf(HasSubstr("id -1"), HasSubstr("position 1")));
  EXPECT_THAT(
      message_about(folder / "c.bin",
                    llmc(20240801, 7, 1, bytes_of(std::vector<std::uint32_t>{4294967295U}))),
      HasSubstr("id 4294967295"));
}

TEST(TokenFile, a_size_that_disagrees_with_the_header_is_refused) {
  const TemporaryFolder folder;
  const std::string bytes = payload<std::uint16_t>();
  EXPECT_THAT(message_about(folder / "a.npy", npy("<u2", "(6,)", bytes)), HasSubstr("6 tokens"));
  EXPECT_THAT(message_about(folder / "b.npy", npy("<u2", "(4,)", bytes)), HasSubstr("4 tokens"));
  EXPECT_THAT(message_about(folder / "c.bin", llmc(20240520, 1, 6, bytes)), HasSubstr("6 tokens"));
  EXPECT_THAT(message_about(folder / "d.bin", llmc(20240520, 1, 4, bytes)), HasSubstr("4 tokens"));
  EXPECT_THAT(message_about(folder / "e.npy", npy("<u2", "(5,)", bytes).substr(0, 60)),
              HasSubstr("cut short"));
}

TEST(TokenFile, what_is_no_token_file_is_said) {
  const TemporaryFolder folder;
  const std::string bytes = payload<std::uint32_t>();
  EXPECT_THAT(message_about(folder / "a.npy", npy("<f4", "(5,)", bytes)),
              AllOf(HasSubstr("'<f4'"), HasSubstr("not supported yet")));
  EXPECT_THAT(message_about(folder / "b.npy", npy(">u4", "(5,)", bytes)), HasSubstr("'>u4'"));
  EXPECT_THAT(message_about(folder / "c.npy", npy("<u4", "(5, 1)", bytes)), HasSubstr("(5, 1)"));
  EXPECT_THAT(message_about(folder / "d.npy", npy("<u4", "()", bytes)), HasSubstr("one dimension"));
  EXPECT_THAT(message_about(folder / "e.npy", npy("<u4", "(5,)", bytes, 4)),
              HasSubstr("version 4"));
  EXPECT_THAT(message_about(folder / "f.npy", "text"), HasSubstr("npy"));
  EXPECT_THAT(message_about(folder / "g.bin", std::string(2048, 'x')), HasSubstr("20240520"));
  EXPECT_THAT(message_about(folder / "h.bin", "short"), HasSubstr("1024"));
  EXPECT_THAT(message_about(folder / "i.bin", llmc(20240520, 2, 5, payload<std::uint16_t>())),
              HasSubstr("version 2"));
  EXPECT_THAT(message_about(folder / "j.npy", npy("<u2", "(0,)", "")), HasSubstr("no tokens"));
}

}  // namespace
}  // namespace terrace
