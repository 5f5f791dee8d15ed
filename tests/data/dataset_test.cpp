#include "terrace/data/dataset.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <chrono>
#include <random>
#include <thread>

#include "data/data_files.h"

namespace terrace {
namespace {

using data::TokenizerKind;
using testing::all_tokens;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::npy;
using testing::open_quietly;
using testing::refusal;
using testing::TemporaryFolder;
using testing::tokens_of;
using testing::write_bytes;
namespace fs = std::filesystem;

std::string message_about(const std::vector<fs::path>& paths,
                          const data::DatasetOptions& options = {}) {
  return refusal(ErrorKind::data, [&] { open_quietly(paths, options); });
}

TEST(Dataset, a_folder_is_walked_in_the_order_of_names) {
  const TemporaryFolder folder;
  write_bytes(folder / "data/b.txt", "two");
  write_bytes(folder / "data/a/z.md", "one");
  write_bytes(folder / "data/B.txt", "zero");
  write_bytes(folder / "data/c", "three");
  write_bytes(folder / "last.txt", "first");
  std::vector<std::string> lines;
  const auto dataset = open_quietly({folder / "last.txt", folder / "data"}, {}, &lines);
  EXPECT_EQ(all_tokens(*dataset), tokens_of({"first", "zero", "one", "two", "three"}));
  EXPECT_EQ(dataset->report().text_files, 5);
  EXPECT_EQ(dataset->report().bytes, 20U);
  EXPECT_TRUE(dataset->is_text());
  EXPECT_THAT(lines, IsEmpty());
}

TEST(Dataset, a_byte_order_mark_changes_no_token) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "\xEF\xBB\xBFgrüße");
  write_bytes(folder / "b.txt", "grüße");
  EXPECT_EQ(all_tokens(*open_quietly({folder / "a.txt"})),
            all_tokens(*open_quietly({folder / "b.txt"})));
}

TEST(Dataset, line_ends_of_any_kind_give_the_same_tokens) {
  const TemporaryFolder folder;
  const std::vector<std::int32_t> expected = tokens_of({"\none\n\n \ntwo\nthree\n"});
  for (const std::string text : {"\none\n\n \ntwo\nthree\n", "\r\none\r\n\r\n \r\ntwo\r\nthree\r\n",
                                 "\rone\r\r \rtwo\rthree\r", "\none\r\n\r \r\ntwo\rthree\r\n"}) {
    write_bytes(folder / "a.txt", text);
    EXPECT_EQ(all_tokens(*open_quietly({folder / "a.txt"})), expected);
  }
  std::vector<std::string> lines;
  open_quietly({folder / "a.txt"}, {}, &lines);
  EXPECT_THAT(lines, Contains(HasSubstr("CRLF")));
}

// A text over several pieces of the scan, dense in carriage returns, read from everywhere.
TEST(Dataset, carriage_returns_are_right_wherever_a_read_begins) {
  const TemporaryFolder folder;
  std::mt19937 random(5);
  for (const char* alphabet : {"\r\n", "\r\nabcdefg", "\rabcdefghijklmnopqrstuvwxyz"}) {
    const std::string letters = alphabet;
    std::string raw(2'500'000, '\0');
    for (char& byte : raw) byte = letters[random() % letters.size()];
    std::string clean;
    for (std::size_t at = 0; at < raw.size(); ++at) {
      if (raw[at] == '\n' && at > 0 && raw[at - 1] == '\r') continue;
      clean += raw[at] == '\r' ? '\n' : raw[at];
    }
    write_bytes(folder / "a.txt", raw);
    const auto dataset = open_quietly({folder / "a.txt"});
    const std::vector<std::int32_t> expected = tokens_of({clean});
    ASSERT_EQ(all_tokens(*dataset), expected);
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<std::int32_t> read(1 + random() % 9000);
      const std::size_t first = random() % (expected.size() - read.size() + 1);
      dataset->read(static_cast<std::int64_t>(first), read);
      ASSERT_TRUE(std::equal(read.begin(), read.end(),
                             expected.begin() + static_cast<std::ptrdiff_t>(first)))
          << first << " and " << read.size() << " on";
    }
  }
}

TEST(Dataset, reads_go_over_the_borders_of_many_small_files) {
  const TemporaryFolder folder;
  std::vector<std::string> documents;
  for (int file = 0; file < 300; ++file) {  // more than stay open
    documents.push_back("document " + std::to_string(1000 + file));
    write_bytes(folder / ("data/" + std::to_string(1000 + file)), documents.back());
  }
  const auto dataset = open_quietly({folder / "data"});
  const std::vector<std::int32_t> expected = tokens_of(documents);
  ASSERT_EQ(all_tokens(*dataset), expected);
  std::vector<std::int32_t> read(100);
  for (std::size_t first = 0; first + read.size() <= expected.size(); first += 7) {
    dataset->read(static_cast<std::int64_t>(first), read);
    ASSERT_TRUE(std::equal(read.begin(), read.end(),
                           expected.begin() + static_cast<std::ptrdiff_t>(first)));
  }
}

TEST(Dataset, threads_may_read_at_once) {
  const TemporaryFolder folder;
  std::string text(300'000, 'a');
  for (std::size_t at = 0; at < text.size(); ++at) text[at] = static_cast<char>('a' + at % 23);
  write_bytes(folder / "a.txt", text);
  const auto dataset = open_quietly({folder / "a.txt"});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<std::int32_t> read(50);
      for (std::size_t first = thread; first + 50 < text.size(); first += 997) {
        dataset->read(static_cast<std::int64_t>(first), read);
        wrong[thread] += read[49] != text[first + 49];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

TEST(Dataset, a_named_file_that_is_no_text_is_refused) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& name, std::string_view contents) {
    write_bytes(folder / name, contents);
    const std::string message = message_about({folder / name});
    EXPECT_THAT(message, HasSubstr((folder / name).string()));
    return message;
  };
  EXPECT_THAT(refused("empty.txt", ""), HasSubstr("is empty"));
  EXPECT_THAT(refused("bom.txt", "\xEF\xBB\xBF"), HasSubstr("byte-order mark"));
  EXPECT_THAT(refused("binary.txt", std::string_view("text\0more", 9)), HasSubstr("offset 4"));
  EXPECT_THAT(refused("le.txt", std::string_view("\xFF\xFEt\0", 4)), HasSubstr("UTF-16"));
  EXPECT_THAT(refused("be.txt", std::string_view("\xFE\xFF\0t", 4)), HasSubstr("UTF-16"));
  for (const char* name : {"a.json", "a.jsonl", "a.JSON", "a.csv", "a.parquet", "a.arrow", "a.gz",
                           "a.txt.zst", "a.zip", "a.pdf", "a.safetensors"}) {
    EXPECT_THAT(refused(name, "plain enough"), HasSubstr("not supported yet")) << name;
  }
}

TEST(Dataset, what_cannot_be_found_or_read_twice_is_refused) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_about({folder / "missing.txt"}),
              AllOf(HasSubstr("--data"), HasSubstr((folder / "missing.txt").string())));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_about({folder / "pipe"}), HasSubstr("neither a file nor a folder"));
  fs::create_directory(folder / "nothing");
  EXPECT_THAT(message_about({folder / "nothing"}), HasSubstr("no text and no token file"));
  if (::geteuid() != 0) {
    write_bytes(folder / "locked.txt", "text");
    ::chmod((folder / "locked.txt").c_str(), 0);
    EXPECT_THAT(message_about({folder / "locked.txt"}), HasSubstr("EACCES"));
  }
}

TEST(Dataset, in_a_folder_what_is_no_text_is_skipped_and_counted) {
  const TemporaryFolder folder;
  write_bytes(folder / "d/a.txt", "some text that outweighs the records beside it");
  write_bytes(folder / "d/b.png", std::string_view("\x89PNG\0\0", 6));
  write_bytes(folder / "d/c.png", std::string_view("\x89PNG\0\0", 6));
  write_bytes(folder / "d/empty", "");
  write_bytes(folder / "d/wide.txt", std::string_view("\xFF\xFEt\0", 4));
  write_bytes(folder / "d/e.json", "{}");
  write_bytes(folder / "d/.hidden", "hidden");
  write_bytes(folder / "d/.git/config", "hidden");
  write_bytes(folder / "d/latin.txt", "gr\xFC\xDF");
  fs::create_symlink("nowhere", folder / "d/broken");
  fs::create_directory_symlink(".", folder / "d/loop");
  fs::create_symlink("a.txt", folder / "d/same.txt");
  std::vector<std::string> lines;
  const auto dataset = open_quietly({folder / "d"}, {}, &lines);
  const data::DatasetReport& report = dataset->report();
  EXPECT_EQ(report.text_files, 2);
  EXPECT_EQ(report.binary.count, 2);
  EXPECT_EQ(report.binary.example, folder / "d/b.png");
  EXPECT_EQ(report.empty.count, 1);
  EXPECT_EQ(report.utf16.count, 1);
  EXPECT_EQ(report.unsupported.count, 1);
  EXPECT_EQ(report.unreadable.count, 1);
  EXPECT_EQ(report.hidden.count, 2);
  EXPECT_EQ(report.linked_folders.count, 1);
  EXPECT_EQ(report.repeated.count, 1);
  EXPECT_EQ(report.not_utf8.count, 1);
  EXPECT_EQ(lines.size(), 9U);
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr("2 files skipped: binary"), HasSubstr("b.png"))));
}

TEST(Dataset, utf8_is_told_from_what_only_looks_like_it) {
  const TemporaryFolder folder;
  const auto is_utf8 = [&](const std::string& text) {
    // The scan takes pieces of 1 MiB: the text lies across their border, and at the end.
    std::string contents(1024 * 1024 - 1, ' ');
    write_bytes(folder / "a.txt", contents + text);
    return open_quietly({folder / "a.txt"})->report().not_utf8.count == 0;
  };
  for (const char* good : {"a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF",
                           "\xEE\x80\x80", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF",
                           "\xE4\xB8\x96"
                           "b"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xC1\xBF", "\xC2", "\xC2z", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE4\xB8",
        "\xE4\xB8z", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_FALSE(is_utf8(bad)) << static_cast<int>(bad[0]);
  }
}

TEST(Dataset, a_folder_of_nearly_nothing_but_unsupported_files_is_refused) {
  const TemporaryFolder folder;
  write_bytes(folder / "d/README.md", "A data set.");
  write_bytes(folder / "d/train-00000.parquet", std::string(100, 'x'));
  EXPECT_THAT(message_about({folder / "d"}),
              AllOf(HasSubstr("train-00000.parquet"), HasSubstr("not supported yet")));
  write_bytes(folder / "d/README.md", "A folder of text.");
  EXPECT_EQ(open_quietly({folder / "d"})->report().text_files, 1);
}

TEST(Dataset, text_and_token_files_do_not_mix) {
  const TemporaryFolder folder;
  write_bytes(folder / "d/README.md", "Tokens.");
  write_bytes(folder / "d/a.npy", npy("<u2", "(2,)", bytes_of(std::vector<std::uint16_t>{7, 8})));
  EXPECT_THAT(message_about({folder / "d"}), AllOf(HasSubstr("README.md"), HasSubstr("a.npy")));
}

TEST(Dataset, text_is_bytes_only_for_a_model_that_reads_bytes) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "text");
  const std::vector<fs::path> paths = {folder / "a.txt"};
  EXPECT_THAT(message_about(paths, {.tokenizer = TokenizerKind::other, .vocab_size = 50257}),
              AllOf(HasSubstr("a.txt"), HasSubstr("not supported yet")));
  EXPECT_THAT(message_about(paths, {.tokenizer = TokenizerKind::none, .vocab_size = 50257}),
              HasSubstr("no tokenizer"));
  EXPECT_EQ(open_quietly(paths, {.tokenizer = TokenizerKind::none, .vocab_size = 256})->tokens(),
            5);
  EXPECT_EQ(open_quietly(paths, {.tokenizer = TokenizerKind::bytes, .vocab_size = 50257})->tokens(),
            5);
  EXPECT_THAT(refusal(ErrorKind::usage, [&] { open_quietly(paths, {.vocab_size = 100}); }),
              HasSubstr("vocab_size"));
}

TEST(Dataset, a_file_that_is_touched_or_replaced_by_its_like_is_the_same) {
  const TemporaryFolder folder;
  for (int file = 0; file < 300; ++file) {  // the smallest do not stay open
    write_bytes(folder / ("d/" + std::to_string(1000 + file)), std::string(10, 'x'));
  }
  write_bytes(folder / "d/0", "tiny");
  const auto dataset = open_quietly({folder / "d"});
  const std::vector<std::int32_t> tokens = all_tokens(*dataset);
  const auto later = [&](int hours) {
    return fs::file_time_type::clock::now() + std::chrono::hours(hours);
  };
  for (const char* name : {"d/0", "d/1000"}) fs::last_write_time(folder / name, later(1));
  EXPECT_EQ(all_tokens(*dataset), tokens) << "touched";
  for (const auto& [name, contents] : {std::pair("d/0", "tiny"), {"d/1000", "xxxxxxxxxx"}}) {
    write_bytes(folder / "new", contents);
    fs::rename(folder / "new", folder / name);
  }
  EXPECT_EQ(all_tokens(*dataset), tokens) << "replaced";
  // Of the same size and time, as what copies with its times leaves.
  const auto time = fs::last_write_time(folder / "d/0");
  write_bytes(folder / "new", "TINY");
  fs::last_write_time(folder / "new", time);
  fs::rename(folder / "new", folder / "d/0");
  EXPECT_THAT(refusal(ErrorKind::data, [&] { static_cast<void>(all_tokens(*dataset)); }),
              AllOf(HasSubstr("d/0 was changed"), HasSubstr("checksum")));
  write_bytes(folder / "d/0", "tiny");
  EXPECT_EQ(all_tokens(*dataset), tokens) << "put back";
}

TEST(Dataset, what_is_not_the_users_is_passed_over_and_counted) {
  const TemporaryFolder folder;
  for (const char* name : {"d/a.txt", "d/own.txt", "d/own/b.txt", "d/e/own.txt"}) {
    write_bytes(folder / name, name);
  }
  const data::DatasetOptions options{
      .is_own = [](const fs::path& path) { return path.stem() == "own"; }};
  std::vector<std::string> lines;
  const auto dataset = open_quietly({folder / "d", folder / "d/own.txt"}, options, &lines);
  EXPECT_EQ(dataset->report().text_files, 1);
  EXPECT_EQ(dataset->report().own.count, 4);
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr("4 files skipped: written by Terrace itself"),
                                       HasSubstr("d/e/own.txt"))));
}

TEST(Dataset, a_file_that_changes_while_in_use_is_refused) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> read(4);
  for (int file = 0; file < 300; ++file) {  // the smallest do not stay open
    write_bytes(folder / ("d/" + std::to_string(1000 + file)), std::string(10, 'x'));
  }
  write_bytes(folder / "d/0", "tiny");
  write_bytes(folder / "d/large", std::string(50, 'y'));  // stays open
  const auto dataset = open_quietly({folder / "d"});
  const std::int64_t large = dataset->tokens() - 51;
  const auto refuses = [&](std::int64_t first, const std::string& name) {
    EXPECT_THAT(refusal(ErrorKind::data, [&] { dataset->read(first, read); }),
                AllOf(HasSubstr((folder / name).string()), HasSubstr("do not change data in use")));
  };
  // A clock of files may stand still for some milliseconds.
  const auto touch = [&](const std::string& name) {
    fs::last_write_time(folder / name, fs::file_time_type::clock::now() + std::chrono::hours(1));
  };
  dataset->read(0, read);
  write_bytes(folder / "d/0", "TINY");
  touch("d/0");
  refuses(0, "d/0");
  write_bytes(folder / "d/0", "tiny no more");
  refuses(0, "d/0");

  const fs::path other = folder / "other";
  write_bytes(other, std::string(50, 'z'));
  fs::rename(folder / "d/large", folder / "old");
  fs::rename(other, folder / "d/large");
  dataset->read(large, read);
  EXPECT_EQ(read, std::vector<std::int32_t>(4, 'y')) << "what is open stays what it was";
  write_bytes(folder / "old", std::string(50, 'z'));
  touch("old");
  refuses(large, "d/large");
}

TEST(Dataset, messages_name_the_flag_that_the_user_gave) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_about({folder / "missing"}, {.flag = "--eval_data"}),
              HasSubstr("--eval_data"));
}

}  // namespace
}  // namespace terrace
