#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "terrace/io/checksum.h"
#include "terrace/io/file.h"
#include "text_scan.h"
#include "token_file.h"

namespace terrace::data {

/// Why a file is not part of the data. In a folder such files are skipped and counted; a file that
/// was named is refused.
enum class SkipReason { empty, binary, utf16, unsupported, unreadable };

struct Skip {
  SkipReason reason;
  std::string sentence;  ///< for the user who named the file
};

/// One file of the data, as a run of tokens: a text with the separator behind it, or the ids of a
/// token file. Nothing of its contents is held in memory. Thread-safe: reads are positioned.
class SourceFile {
 public:
  /// `file` is what was scanned.
  SourceFile(const io::InputFile& file, io::Fingerprint contents,
             std::variant<TextLayout, TokenLayout> layout)
      : path_(file.path()),
        contents_(contents),
        layout_(std::move(layout)),
        unchanged_(std::make_unique<Unchanged>(file.opened())) {}

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const io::Fingerprint& contents() const { return contents_; }
  [[nodiscard]] bool is_text() const { return std::holds_alternative<TextLayout>(layout_); }
  [[nodiscard]] std::int64_t tokens() const;

  /// Keeps the file open from now on; otherwise each read opens it.
  void keep_open() { kept_.emplace(path_); }

  /// Tokens [first, first + target.size()), which lie inside the file.
  /// A file with another time of modification, or another one of its name, is compared with what
  /// was scanned and taken where its contents are the same. Errors: data, when they are not, or the
  /// file has gone (one that is kept open may go, which leaves it as it was); io.
  void read(std::int64_t first, std::span<std::int32_t> target) const;

 private:
  /// The last stamp of which it is known that the contents are those that were scanned.
  struct Unchanged {
    explicit Unchanged(const io::FileStamp& scanned) : stamp(scanned) {}
    std::mutex mutex;
    io::FileStamp stamp;
  };

  void require_unchanged(const io::InputFile& file) const;

  std::filesystem::path path_;
  io::Fingerprint contents_;
  std::variant<TextLayout, TokenLayout> layout_;
  std::optional<io::InputFile> kept_;
  std::unique_ptr<Unchanged> unchanged_;
};

/// Reads files from front to back, once: finds out what each is, checks all of it and takes its
/// fingerprint. Single-owner (it owns the buffer).
class SourceScanner {
 public:
  /// Ids at or above `vocab_size` are refused.
  explicit SourceScanner(std::int64_t vocab_size);

  struct Scanned {
    std::variant<SourceFile, Skip> result;
    bool is_utf8 = true;
    bool has_carriage_returns = false;
  };
  /// Errors: data, when the file is a token file, but damaged or with an id outside the vocabulary
  /// (file, position and id are named); io.
  [[nodiscard]] Scanned scan(const std::filesystem::path& path);

 private:
  [[nodiscard]] Scanned scan_text(const io::InputFile& file);
  [[nodiscard]] Scanned scan_tokens(const io::InputFile& file, const TokenLayout& layout);
  [[nodiscard]] std::span<std::byte> read_piece(const io::InputFile& file, std::uint64_t offset);
  template <class Id>
  void require_known(const io::InputFile& file, std::span<const std::byte> piece,
                     std::int64_t first, bool is_signed) const;

  std::int64_t vocab_size_;
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace terrace::data
