#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "terrace/core/log.h"
#include "terrace/data/fingerprint.h"
#include "terrace/data/tokenizer.h"

namespace terrace::data {

struct DatasetOptions {
  /// What the model folder brings; `bytes` for a preset. `none` is taken as bytes for a model whose
  /// vocabulary has exactly 256 entries.
  TokenizerKind tokenizer = TokenizerKind::bytes;
  /// Entries of the model's vocabulary, at most 2^31.
  std::int64_t vocab_size = Tokenizer::kVocabSize;
  /// How the user named the data, for messages.
  std::string flag = "--data";
  /// What Terrace itself has written, which is no data: it is asked of each file, and of each entry
  /// of a folder. Empty: nothing is.
  std::function<bool(const std::filesystem::path&)> is_own = {};
};

/// How often something was met, and where first.
struct Tally {
  std::int64_t count = 0;
  std::filesystem::path example;
};

/// What became of every file that was named or found in a folder.
struct DatasetReport {
  std::int64_t text_files = 0;
  std::int64_t token_files = 0;
  std::int64_t tokens = 0;
  std::uint64_t bytes = 0;  ///< of the files that gave tokens
  double seconds = 0;       ///< that reading, checking and fingerprinting them took

  Tally not_utf8;          ///< taken: their bytes are tokens as they are
  Tally carriage_returns;  ///< taken, with CRLF and CR read as LF

  Tally empty, binary, utf16, unsupported, unreadable;  ///< skipped, in folders only
  Tally hidden, linked_folders;                         ///< skipped, in folders only
  Tally own;                                            ///< skipped: `DatasetOptions::is_own`
  Tally repeated;                                       ///< reached twice, taken once

  /// One line for each kind of file that was not simply taken; what `Dataset::open` logs.
  [[nodiscard]] std::vector<std::string> notes() const;
};

/// The data as one stream of tokens: the files in order, one after the other.
///
/// Text: a file is a document. Its tokens are its bytes (`Tokenizer`), without a UTF-8 byte-order
/// mark, CRLF and lone CR read as LF; blank lines are text. A separator follows every document.
/// Token files (`.npy` of one dimension and uint16, uint32 or int32; llm.c's `.bin`): the ids as
/// they are, nothing put between files. One stream is either text or token files.
///
/// What a file is, its name's ending says: `.npy` and `.bin` are token files; JSON, JSON lines,
/// CSV, Parquet, Arrow, packed files, office documents and models are not supported yet; every
/// other file is text, unless it is empty, begins as UTF-16 or holds a NUL byte ("binary"). A file
/// that was named and is not one of the supported is refused; in a folder it is skipped and
/// counted, but a folder of whose bytes more than nine tenths are in unsupported formats is
/// refused, so that no run trains on the README beside the data. Hidden files and links to folders
/// are skipped, and what Terrace itself has written there.
///
/// Opening reads every file once, for the checks and the fingerprint; nothing is held in memory but
/// paths and, for text with carriage returns, 8 bytes for 4096 tokens.
///
/// Thread-safe once open (immutable; reads are positioned).
class Dataset {
 public:
  /// Opens files and folders, the latter walked to the bottom in the order of names.
  /// Errors: data, naming the file and what to do: as above; a missing path or a folder that cannot
  /// be read; an id that is not below `vocab_size`, with its position; a damaged token file; text
  /// for a model with another tokenizer; text and token files together; no data at all. usage: a
  /// vocabulary that cannot hold bytes. io.
  [[nodiscard]] static std::shared_ptr<const Dataset> open(
      std::span<const std::filesystem::path> paths, const DatasetOptions& options, Log& log);
  ~Dataset();
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  /// Length of the stream.
  [[nodiscard]] std::int64_t tokens() const { return report_.tokens; }
  [[nodiscard]] bool is_text() const { return report_.text_files > 0; }
  [[nodiscard]] const std::string& flag() const { return flag_; }
  [[nodiscard]] const DatasetFingerprint& fingerprint() const { return fingerprint_; }
  [[nodiscard]] const DatasetReport& report() const { return report_; }

  /// Tokens [first, first + target.size()) of the stream, which lie inside it. Allocates nothing
  /// but what opening a file takes. A file that was touched or replaced since it was scanned is
  /// read again from front to back: its contents decide. Errors: data, when they have changed; io.
  void read(std::int64_t first, std::span<std::int32_t> target) const;

 private:
  struct Files;  ///< the files and where each begins in the stream
  class Builder;

  Dataset();

  std::string flag_;
  std::unique_ptr<Files> files_;
  DatasetFingerprint fingerprint_;
  DatasetReport report_;
};

}  // namespace terrace::data
