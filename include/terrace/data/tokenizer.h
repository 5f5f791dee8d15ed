#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::data {

/// Which tokenizer a model folder brings.
enum class TokenizerKind {
  none,   ///< no tokenizer file at all
  bytes,  ///< the one below
  other,  ///< a tokenizer that is not supported yet: such a model trains on token files only
};

/// The default tokenizer: text is bytes, a byte's id is its value. Id 0, which no text holds, ends
/// every document. Thread-safe (it has no state).
///
/// As a Hugging Face tokenizer it is a byte-level BPE without merges whose 256 entries are numbered
/// by byte value. It names no special token on purpose: the entry of byte 0 is written "Ā", and as
/// a special token that would swallow the letter Ā of ordinary text. So id 0 belongs into
/// `eos_token_id` of the model's configuration, and no text loses its own ids.
class Tokenizer {
 public:
  static constexpr std::int32_t kSeparator = 0;
  static constexpr std::int64_t kVocabSize = 256;

  /// One id a byte; nothing is added, removed or normalised (it is the reading of text files that
  /// changes line ends, see `Dataset`).
  /// Errors: usage, when `text` holds a NUL byte, naming its position.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;

  /// The bytes of `ids`, so UTF-8 only if the ids are. An id outside 0 to 255, which a model with a
  /// larger vocabulary can draw, becomes U+FFFD.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const;

  /// Its Hugging Face files, by name and contents: `tokenizer.json` and `tokenizer_config.json`.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> files() const;
  /// Writes `tokenizer.json` and `tokenizer_config.json` into `folder`, which exists, replacing
  /// those there. Errors: io.
  void write(const std::filesystem::path& folder) const;
};

/// Looks at the tokenizer files of a model folder. Errors: corrupt, when `tokenizer.json` is no
/// JSON; otherwise as `io::read_file`.
[[nodiscard]] TokenizerKind identify_tokenizer(const std::filesystem::path& folder);

/// Whether a file of that name is one of a tokenizer's.
[[nodiscard]] bool is_tokenizer_file(std::string_view name);

/// The tokenizer files that `folder` holds, in a fixed order: what a checkpoint copies, and what a
/// resume compares. Empty for `TokenizerKind::none`. Errors: none; what cannot be seen is not
/// listed.
[[nodiscard]] std::vector<std::filesystem::path> tokenizer_files(
    const std::filesystem::path& folder);

}  // namespace terrace::data
