#include "terrace/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "checkpoint/small_model.h"
#include "core/error_of.h"
#include "io/temporary_folder.h"

namespace terrace::checkpoint {
namespace {

using terrace::testing::error_of;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + rest;
}

std::string make_file(const std::string& header, const std::string& data) {
  return with_length(header.size(), header + data);
}

class Safetensors : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& contents) {
    std::ofstream(path_, std::ios::binary) << contents;
    return path_;
  }
  /// The refusal of a file with this header, before `data`.
  Error refusal(const std::string& header, const std::string& data = "") {
    write(make_file(header, data));
    return error_of([&] { SafetensorsFile file(path_); });
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "model.safetensors";
};

const std::string kTwo = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}})";

TEST_F(Safetensors, a_file_cut_short_is_refused_with_its_size_and_the_needed_one) {
  const std::string whole = make_file(kTwo, std::string(12, 'x'));
  const std::size_t header = kTwo.size();
  const std::string all = std::to_string(whole.size());
  const std::string header_end = std::to_string(8 + header);
  const std::vector<std::pair<std::size_t, std::string>> cuts = {
      {0, "10"},         {4, "10"},
      {8, header_end},   {8 + header - 1, header_end},
      {8 + header, all}, {whole.size() - 1, all}};
  for (const auto& [cut, needed] : cuts) {
    write(whole.substr(0, cut));
    const Error error = error_of([&] { SafetensorsFile file(path_, ErrorKind::corrupt); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("model.safetensors"),
                                    HasSubstr("has " + std::to_string(cut) + " bytes"),
                                    HasSubstr(needed), HasSubstr("incomplete download?")));
  }
  write(whole);
  EXPECT_EQ(SafetensorsFile(path_).tensors().size(), 2U);
  write(whole + "y");
  EXPECT_THAT(error_of([&] { SafetensorsFile file(path_); }).what(),
              HasSubstr("tensors end at byte " + all));
}

TEST_F(Safetensors, a_claimed_header_length_is_never_trusted) {
  const std::string rest = "{}" + std::string(30, ' ');
  const std::uint64_t size = 8 + rest.size();
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 31, std::uint64_t{1} << 63,
        std::numeric_limits<std::uint64_t>::max(), size + 1, size - 7}) {
    write(with_length(length, rest));
    const Error error = error_of([&] { SafetensorsFile file(path_); });
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(
        error.what(),
        HasSubstr(length > size && length < (1ULL << 30) ? "its header alone needs" : "header"))
        << length;
  }
}

TEST_F(Safetensors, a_header_of_101_MB_is_read) {
  const std::string value(101'000'000, 'v');
  write(make_file(R"({"__metadata__":{"long":")" + value +
                      R"("},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                  "z"));
  const SafetensorsFile file(path_);
  ASSERT_EQ(file.metadata().size(), 1U);
  EXPECT_EQ(file.metadata()[0].second, value);
  std::byte last{};
  file.read_bytes(file.tensors()[0], 0, std::span(&last, 1));
  EXPECT_EQ(static_cast<char>(last), 'z');
}

struct BadHeader {
  std::string tensor;  ///< the fields of tensor "bad", which follows "a" of bytes [0, 8)
  std::string complaint;
};

TEST_F(Safetensors, ranges_that_do_not_fit_their_shapes_are_refused_by_name) {
  const std::string big = "18446744073709551615";
  const std::vector<BadHeader> cases = {
      {R"("dtype":"F32","shape":[1],"data_offsets":[12,8])", "before its begin"},
      {R"("dtype":"F32","shape":[1000,1000],"data_offsets":[8,16])", "needs 4000000 bytes"},
      {R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[8,8])", "overflows"},
      {R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[8,8])", "overflows"},
      {R"("dtype":"F32","shape":[)" + big + R"(],"data_offsets":[8,8])", "dimension"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[8,)" + big + "9])", "number"},
      {R"("dtype":"F32","shape":[-1],"data_offsets":[8,12])", "-1"},
      {R"("dtype":"F32","shape":[1.0],"data_offsets":[8,12])", "1.0"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[8,12.5])", "12.5"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])", "-4"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[4,8])", "inside"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[12,16])", "hole"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[8])", "two were expected"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[8,12,16])", "two were expected"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[8,8])", "needs 4 bytes"},
      {R"("dtype":"F32","shape":[[1]],"data_offsets":[8,12])", "array"},
      {R"("dtype":"F32","shape":"x","data_offsets":[8,12])", "string"},
      {R"("dtype":"F33","shape":[1],"data_offsets":[8,12])", "F33"},
      {R"("dtype":3,"shape":[1],"data_offsets":[8,12])", "number"},
      {R"("dtype":"F32","shape":[1])", "lacks"},
      {R"("dtype":"F32","shape":[1],"offsets":[8,12])", "offsets"},
      {R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[8,12])", "second"},
      {R"("dtype":null,"shape":[1],"data_offsets":[8,12])", "null"},
  };
  for (const BadHeader& bad : cases) {
    const Error error = refusal(
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"bad":{)" + bad.tensor + "}}",
        std::string(16, 'x'));
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"bad\""), HasSubstr(bad.complaint),
                                    HasSubstr("model.safetensors")));
  }
}

TEST_F(Safetensors, duplicates_and_what_is_no_header_are_refused) {
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                      "xy")
                  .what(),
              HasSubstr("tensor \"a\" twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{},"__metadata__":{}})").what(), HasSubstr("twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})").what(), HasSubstr("a number"));
  EXPECT_THAT(refusal(R"({"__metadata__":[]})").what(), HasSubstr("array"));
  EXPECT_THAT(refusal(R"({"a":1})").what(), HasSubstr("a number"));
  EXPECT_THAT(refusal("[1,2]").what(), HasSubstr("does not begin"));
  EXPECT_THAT(refusal("{\"a\":").what(), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("{} {}").what(), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("{\"a\xff\":1}").what(), HasSubstr("not JSON"));
  write("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  EXPECT_THAT(error_of([&] { SafetensorsFile file(path_); }).what(), HasSubstr("git lfs pull"));
}

TEST_F(Safetensors, empty_and_rank_0_tensors_are_legal_anywhere) {
  for (int position = 0; position < 3; ++position) {
    std::vector<TensorShape> tensors = {{"x", {2, 3}}, {"y", {3}}};
    const std::vector<TensorShape> odd = {{"none", {0}}, {"no_rows", {0, 64}}, {"scalar", {}}};
    tensors.insert(tensors.begin() + position, odd.begin(), odd.end());
    SafetensorsWriter writer(path_, DType::f32, tensors);
    const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    writer.write(values);
    const io::Fingerprint written = writer.commit();
    EXPECT_EQ(written, io::fingerprint_file(path_));
    EXPECT_EQ(written.bytes, SafetensorsWriter::file_bytes(DType::f32, tensors));
    const SafetensorsFile file(path_);
    ASSERT_EQ(file.tensors().size(), 5U);
    std::vector<float> read;
    for (const TensorShape& tensor : tensors) {
      const TensorEntry* entry = file.find(tensor.name);
      ASSERT_NE(entry, nullptr);
      EXPECT_EQ(entry->shape, tensor.shape);
      std::vector<float> part(static_cast<std::size_t>(entry->elements()));
      file.read(*entry, 0, part);
      read.insert(read.end(), part.begin(), part.end());
    }
    EXPECT_EQ(read, values);
  }
}

TEST_F(Safetensors, data_need_not_be_aligned) {
  // A header of a length that is 2 more than a multiple of 8, and a bf16 tensor before the FP32
  // one, so that neither lies at a multiple of its size.
  std::string header = R"({"b":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},)"
                       R"("a":{"dtype":"F32","shape":[2],"data_offsets":[2,10]}})";
  while (header.size() % 8 != 2) header += ' ';
  const std::array<float, 2> values = {1.5F, -2.25F};
  std::string data(10, '\0');
  const std::uint16_t bf16 = to_bf16(3.0F).bits;
  std::memcpy(data.data(), &bf16, 2);
  std::memcpy(data.data() + 2, values.data(), 8);
  write(make_file(header, data));
  const SafetensorsFile file(path_);
  std::array<float, 2> a{};
  file.read(*file.find("a"), 0, a);
  EXPECT_EQ(a, values);
  std::array<float, 1> b{};
  file.read(*file.find("b"), 0, b);
  EXPECT_EQ(b[0], 3.0F);
}

TEST_F(Safetensors, the_writer_pads_its_header_to_8_bytes) {
  for (std::size_t length = 1; length <= 9; ++length) {
    const std::vector<TensorShape> tensors = {{std::string(length, 'n'), {1}}};
    SafetensorsWriter writer(path_, DType::bf16, tensors);
    writer.write(std::array{1.0F});
    (void)writer.commit();
    EXPECT_EQ(SafetensorsFile(path_).data_begin() % 8, 0U);
  }
}

TEST_F(Safetensors, names_are_escaped) {
  const std::vector<TensorShape> tensors = {{"a\"\\\n\xc3\xa9", {1}}};
  SafetensorsWriter writer(path_, DType::f32, tensors);
  writer.write(std::array{1.0F});
  (void)writer.commit();
  EXPECT_NE(SafetensorsFile(path_).find(tensors[0].name), nullptr);
}

TEST_F(Safetensors, every_dtype_comes_back_as_it_was_rounded) {
  constexpr std::size_t kCount = 1'300'001;  // more than one piece of the conversion
  std::vector<float> values(kCount);
  const RandomStream random(7, 1);
  for (std::size_t i = 0; i < kCount; ++i) {
    values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits(i)));
  }
  const std::vector<TensorShape> tensors = {{"x", {static_cast<std::int64_t>(kCount)}}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    SafetensorsWriter writer(path_, dtype, tensors);
    // Pieces of odd lengths, so that their ends fall everywhere.
    for (std::size_t first = 0, piece = 1; first < kCount; first += piece, piece = piece * 3 + 1) {
      piece = std::min(piece, kCount - first);
      writer.write(std::span(values).subspan(first, piece));
    }
    (void)writer.commit();
    const SafetensorsFile file(path_);
    std::vector<float> read(kCount - 5);
    file.read(file.tensors()[0], 5, read);
    for (std::size_t i = 0; i < read.size(); ++i) {
      const float value = values[i + 5];
      const float expected = dtype == DType::f32    ? value
                             : dtype == DType::bf16 ? to_float(to_parameter_bf16(value))
                                                    : to_float(to_f16(value));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(read[i]), std::bit_cast<std::uint32_t>(expected)) << i;
    }
  }
}

TEST_F(Safetensors, other_dtypes_are_listed_but_not_taken_for_numbers) {
  write(
      make_file(R"({"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", std::string(8, '\1')));
  const SafetensorsFile file(path_);
  std::array<float, 1> value{};
  EXPECT_THAT(error_of([&] { file.read(file.tensors()[0], 0, value); }).what(),
              AllOf(HasSubstr("\"i\""), HasSubstr("I64")));
}

TEST_F(Safetensors, a_tensor_of_more_than_2_GiB_and_2_billion_elements_is_read_to_its_end) {
  // A sparse file: only the last page of the tensor holds anything.
  constexpr std::uint64_t kElements = (std::uint64_t{5} << 29) + 3;
  write(make_file(R"({"q":{"dtype":"I8","shape":[)" + std::to_string(kElements) +
                      R"(],"data_offsets":[0,)" + std::to_string(kElements) + "]}}",
                  ""));
  const std::uint64_t begin = std::filesystem::file_size(path_);
  std::filesystem::resize_file(path_, begin + kElements);
  {
    std::fstream end(path_, std::ios::binary | std::ios::in | std::ios::out);
    end.seekp(static_cast<std::streamoff>(begin + kElements - 4096));
    end << std::string(4096, '\7');
  }
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.tensors()[0].elements(), static_cast<std::int64_t>(kElements));
  std::string last(4097, '\1');
  file.read_bytes(file.tensors()[0], kElements - last.size(),
                  std::as_writable_bytes(std::span(last)));
  EXPECT_EQ(last, std::string(1, '\0') + std::string(4096, '\7'));
}

TEST_F(Safetensors, a_tensor_of_more_than_2_GiB_is_written_to_its_end) {
  if (::getenv("TERRACE_LARGE_TESTS") == nullptr) {
    GTEST_SKIP() << "writes 2.5 GiB; set TERRACE_LARGE_TESTS=1 to run it";
  }
  constexpr std::int64_t kElements = (std::int64_t{5} << 27) + 1;
  const std::vector<TensorShape> tensors = {{"big", {kElements}}};
  SafetensorsWriter writer(path_, DType::f32, tensors);
  std::vector<float> piece(1 << 20);
  for (std::int64_t first = 0; first < kElements; first += 1 << 20) {
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(1 << 20, kElements - first));
    std::fill(piece.begin(), piece.end(), static_cast<float>(first >> 20));
    writer.write(std::span(piece).first(count));
  }
  const io::Fingerprint written = writer.commit();
  EXPECT_EQ(written, io::fingerprint_file(path_));
  const SafetensorsFile file(path_);
  std::array<float, 1025> last{};
  file.read(file.tensors()[0], kElements - 1025, last);
  EXPECT_EQ(last.front(), static_cast<float>((kElements - 1025) >> 20));
  EXPECT_EQ(last.back(), static_cast<float>((kElements - 1) >> 20));
}

}  // namespace
}  // namespace terrace::checkpoint
