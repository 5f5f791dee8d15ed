#include "terrace/data/fingerprint.h"

#include <gmock/gmock.h>

#include "data/data_files.h"

namespace terrace {
namespace {

using data::DatasetFingerprint;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::npy;
using testing::open_quietly;
using testing::refusal;
using testing::TemporaryFolder;
using testing::write_bytes;
namespace fs = std::filesystem;

class Fingerprint : public ::testing::Test {
 protected:
  Fingerprint() {
    write_bytes(folder_ / "d/a.txt", "alpha");
    write_bytes(folder_ / "d/b.txt", "beta\r\n");
    began_with_ = fingerprint();
  }
  [[nodiscard]] DatasetFingerprint fingerprint() const {
    return open_quietly({folder_ / "d"})->fingerprint();
  }
  [[nodiscard]] std::string message() const {
    return refusal(ErrorKind::data,
                   [&] { data::require_same_data(began_with_, fingerprint(), "--data"); });
  }

  TemporaryFolder folder_;
  DatasetFingerprint began_with_;
};

TEST_F(Fingerprint, is_of_the_bytes_on_disk) {
  ASSERT_EQ(began_with_.files.size(), 2U);
  EXPECT_EQ(began_with_.files[1].path, folder_ / "d/b.txt");
  EXPECT_EQ(began_with_.files[1].contents, io::fingerprint_file(folder_ / "d/b.txt"));
  const fs::path tokens = folder_ / "t.npy";
  std::vector<std::uint16_t> ids(1'300'000, 17);
  ids.back() = 18;
  write_bytes(tokens, npy("<u2", "(1300000,)", bytes_of(ids)));
  EXPECT_EQ(open_quietly({tokens})->fingerprint().files[0].contents, io::fingerprint_file(tokens));
}

TEST_F(Fingerprint, the_same_data_passes_even_elsewhere) {
  data::require_same_data(began_with_, fingerprint(), "--data");
  fs::rename(folder_ / "d", folder_ / "moved");
  data::require_same_data(began_with_, open_quietly({folder_ / "moved"})->fingerprint(), "--data");
}

TEST_F(Fingerprint, one_changed_byte_is_refused_by_name) {
  write_bytes(folder_ / "d/b.txt", "bete\r\n");
  EXPECT_THAT(message(), AllOf(HasSubstr("b.txt"), HasSubstr("6 bytes"), HasSubstr("--data")));
}

TEST_F(Fingerprint, missing_new_and_swapped_files_are_refused_by_name) {
  write_bytes(folder_ / "d/c.txt", "gamma");
  EXPECT_THAT(message(), AllOf(HasSubstr("c.txt"), HasSubstr("is new")));
  fs::remove(folder_ / "d/c.txt");
  fs::remove(folder_ / "d/b.txt");
  EXPECT_THAT(message(), AllOf(HasSubstr("b.txt"), HasSubstr("is missing")));
  write_bytes(folder_ / "d/a.txt", "beta\r\n");
  write_bytes(folder_ / "d/b.txt", "alpha");
  EXPECT_THAT(message(), AllOf(HasSubstr("a.txt"), HasSubstr("was")));
}

TEST_F(Fingerprint, json_gives_it_back) {
  began_with_.files[0].contents = {.bytes = 1ULL << 60, .crc64 = 0xfedcba9876543210};
  const std::string json = data::to_json(began_with_);
  EXPECT_EQ(json.find('\n'), std::string::npos);
  const DatasetFingerprint back = data::parse_dataset_fingerprint(json, "state");
  ASSERT_EQ(back.files.size(), 2U);
  EXPECT_EQ(back.files[0].contents, began_with_.files[0].contents);
  EXPECT_EQ(back.files[0].path, began_with_.files[0].path);
  EXPECT_EQ(back.files[1].contents, began_with_.files[1].contents);
}

TEST_F(Fingerprint, altered_json_is_corrupt) {
  for (const char* json : {"", "{}", "[]", R"({"files":[{"path":"a","bytes":1}]})",
                           R"({"files":[{"path":"a","bytes":1,"crc64":"xyz"}]})",
                           R"({"files":[{"path":"a","bytes":"1","crc64":"00"}]})"}) {
    EXPECT_THAT(
        refusal(ErrorKind::corrupt,
                [&] {
                  static_cast<void>(data::parse_dataset_fingerprint(json, "trainer_state.json"));
                }),
        HasSubstr("trainer_state.json"))
        << json;
  }
}

}  // namespace
}  // namespace terrace
