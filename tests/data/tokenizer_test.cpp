#include "terrace/data/tokenizer.h"

#include <gmock/gmock.h>

#include <numeric>

#include "core/parsed_json.h"
#include "data/data_files.h"
#include "terrace/io/file.h"

namespace terrace {
namespace {

using data::Tokenizer;
using data::TokenizerKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;
using testing::TemporaryFolder;
using testing::write_bytes;

TEST(Tokenizer, ids_are_byte_values_and_decode_gives_the_text_back) {
  const Tokenizer tokenizer;
  EXPECT_THAT(tokenizer.encode("Aé\r\n\xFF"), ElementsAre(65, 0xC3, 0xA9, 13, 10, 255));
  std::string every(255, '\0');
  std::iota(every.begin(), every.end(), '\1');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(every)), every);
  EXPECT_TRUE(tokenizer.encode("").empty());
}

TEST(Tokenizer, encode_refuses_the_separator_and_names_its_place) {
  const std::string message = refusal(ErrorKind::usage, [] {
    static_cast<void>(Tokenizer().encode(std::string_view("ab\0c", 4)));
  });
  EXPECT_THAT(message, HasSubstr("position 2"));
}

TEST(Tokenizer, decode_marks_ids_that_are_no_bytes) {
  EXPECT_EQ(Tokenizer().decode(std::vector<std::int32_t>{72, 256, -1, 105}),
            "H\xEF\xBF\xBD\xEF\xBF\xBDi");
}

TEST(Tokenizer, a_written_folder_is_recognised) {
  const TemporaryFolder folder;
  EXPECT_EQ(data::identify_tokenizer(folder.path()), TokenizerKind::none);
  EXPECT_TRUE(data::tokenizer_files(folder.path()).empty());
  Tokenizer().write(folder.path());
  EXPECT_EQ(data::identify_tokenizer(folder.path()), TokenizerKind::bytes);
  EXPECT_THAT(data::tokenizer_files(folder.path()),
              ElementsAre(folder / "tokenizer.json", folder / "tokenizer_config.json"));
}

TEST(Tokenizer, the_vocabulary_is_the_byte_level_alphabet) {
  const TemporaryFolder folder;
  Tokenizer().write(folder.path());
  const auto json = testing::read_json(folder / "tokenizer.json");
  const auto& vocab = json["model"]["vocab"];
  ASSERT_EQ(vocab.size(), 256U);
  // From GPT-2's published table: NUL, LF, space, '!', 'A', DEL, 0xA0, 0xAD and 0xFF.
  EXPECT_EQ(vocab["\u0100"], 0);
  EXPECT_EQ(vocab["\u010A"], 10);
  EXPECT_EQ(vocab["\u0120"], 32);
  EXPECT_EQ(vocab["!"], 33);
  EXPECT_EQ(vocab["A"], 65);
  EXPECT_EQ(vocab["\u0121"], 127);
  EXPECT_EQ(vocab["\u0142"], 160);
  EXPECT_EQ(vocab["\u0143"], 173);
  EXPECT_EQ(vocab["\u00FF"], 255);
}

TEST(Tokenizer, whatever_could_give_other_ids_is_another_tokenizer) {
  const TemporaryFolder folder;
  Tokenizer().write(folder.path());
  const auto original = testing::read_json(folder / "tokenizer.json");
  const auto kind_with = [&](const char* pointer, const nlohmann::json& value) {
    auto changed = original;
    changed[nlohmann::json::json_pointer(pointer)] = value;
    write_bytes(folder / "tokenizer.json", changed.dump());
    return data::identify_tokenizer(folder.path());
  };
  EXPECT_EQ(kind_with("/version", "1.0"), TokenizerKind::bytes);
  EXPECT_EQ(kind_with("/model/vocab/A", 66), TokenizerKind::other);
  EXPECT_EQ(kind_with("/model/vocab/AB", 256), TokenizerKind::other);
  EXPECT_EQ(kind_with("/model/merges", {"A B"}), TokenizerKind::other);
  EXPECT_EQ(kind_with("/model/type", "Unigram"), TokenizerKind::other);
  EXPECT_EQ(kind_with("/normalizer", {{"type", "NFC"}}), TokenizerKind::other);
  EXPECT_EQ(kind_with("/post_processor", {{"type", "TemplateProcessing"}}), TokenizerKind::other);
  EXPECT_EQ(kind_with("/pre_tokenizer", nullptr), TokenizerKind::other);
  EXPECT_EQ(kind_with("/pre_tokenizer/add_prefix_space", true), TokenizerKind::other);
  EXPECT_EQ(kind_with("/added_tokens", {{{"id", 0}, {"content", "\u0100"}}}), TokenizerKind::other);
  EXPECT_EQ(kind_with("", nlohmann::json::array()), TokenizerKind::other);
}

TEST(Tokenizer, other_tokenizer_files_are_another_tokenizer) {
  const TemporaryFolder folder;
  write_bytes(folder / "tokenizer.model", "sentencepiece");
  EXPECT_EQ(data::identify_tokenizer(folder.path()), TokenizerKind::other);
}

TEST(Tokenizer, a_truncated_file_is_corrupt) {
  const TemporaryFolder folder;
  Tokenizer().write(folder.path());
  const std::string whole = io::read_file(folder / "tokenizer.json");
  write_bytes(folder / "tokenizer.json", whole.substr(0, whole.size() / 2));
  const std::string message = refusal(
      ErrorKind::corrupt, [&] { static_cast<void>(data::identify_tokenizer(folder.path())); });
  EXPECT_THAT(message, HasSubstr((folder / "tokenizer.json").string()));
}

}  // namespace
}  // namespace terrace
