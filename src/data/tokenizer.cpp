#include "terrace/data/tokenizer.h"

#include <algorithm>
#include <array>

#include "terrace/core/error.h"
#include "terrace/core/json.h"
#include "terrace/io/file.h"

namespace terrace::data {
namespace {

/// Looks keys up quickly, of which a vocabulary has many.
using IndexedJson = nlohmann::json;

constexpr std::array kTokenizerFiles = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "vocab.txt",
                                        "tokenizer.model",
                                        "spiece.model",
                                        "sentencepiece.bpe.model",
                                        "tekken.json",
                                        "chat_template.jinja"};

/// A code point below U+0800 in UTF-8.
std::string utf8(unsigned code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

/// The byte-level alphabet: bytes that are printable in Latin-1 stand for themselves, the others
/// take U+0100, U+0101, ... in order of value.
/// Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (GPT-2).
std::array<std::string, Tokenizer::kVocabSize> byte_alphabet() {
  std::array<std::string, Tokenizer::kVocabSize> alphabet;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < alphabet.size(); ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    alphabet[byte] = utf8(printable ? byte : next++);
  }
  return alphabet;
}

/// The regular expression that splits words is off: without merges it changes no id.
Json byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

Json tokenizer_json() {
  Json vocab = Json::object();
  std::int32_t id = 0;
  for (const std::string& entry : byte_alphabet()) vocab[entry] = id++;
  Json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", false},
                {"vocab", std::move(vocab)},
                {"merges", Json::array()}};
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", Json::array()},
          {"normalizer", nullptr},     {"pre_tokenizer", byte_level()},
          {"post_processor", nullptr}, {"decoder", byte_level()},
          {"model", std::move(model)}};
}

/// Whether the member is absent, null or an empty array.
bool is_vacant(const IndexedJson& object, const char* key) {
  const auto member = object.find(key);
  return member == object.end() || member->is_null() || (member->is_array() && member->empty());
}

bool has_byte_vocabulary(const IndexedJson& model) {
  const auto vocab = model.find("vocab");
  if (vocab == model.end() || !vocab->is_object() || vocab->size() != Tokenizer::kVocabSize) {
    return false;
  }
  const auto alphabet = byte_alphabet();
  for (std::size_t byte = 0; byte < alphabet.size(); ++byte) {
    const auto entry = vocab->find(alphabet[byte]);
    if (entry == vocab->end() || *entry != byte) return false;
  }
  return true;
}

/// Whether this is a tokenizer that gives every text its bytes as ids. Offsets, decoding and the
/// version may differ: they change no id.
bool gives_bytes(const IndexedJson& tokenizer) {
  if (!tokenizer.is_object() || !tokenizer.contains("model")) return false;
  const IndexedJson& model = tokenizer["model"];
  const IndexedJson split = tokenizer.value("pre_tokenizer", IndexedJson());
  return model.is_object() && split.is_object() && model.value("type", IndexedJson()) == "BPE" &&
         is_vacant(model, "merges") && is_vacant(model, "continuing_subword_prefix") &&
         is_vacant(model, "end_of_word_suffix") && is_vacant(tokenizer, "added_tokens") &&
         is_vacant(tokenizer, "normalizer") && is_vacant(tokenizer, "post_processor") &&
         is_vacant(tokenizer, "truncation") && is_vacant(tokenizer, "padding") &&
         split.value("type", IndexedJson()) == "ByteLevel" &&
         split.value("add_prefix_space", IndexedJson(true)) == false && has_byte_vocabulary(model);
}

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  const std::size_t nul = text.find('\0');
  require(
      nul == std::string_view::npos, ErrorKind::usage,
      "the text holds a NUL byte at position {}, which stands for the end of a document; remove "
      "it",
      nul);
  std::vector<std::int32_t> ids(text.size());
  std::ranges::transform(text, ids.begin(),
                         [](char byte) { return static_cast<unsigned char>(byte); });
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < kVocabSize) {
      text += static_cast<char>(id);
    } else {
      text += "\xEF\xBF\xBD";
    }
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> Tokenizer::files() const {
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"clean_up_tokenization_spaces", false}};
  return {{"tokenizer.json", json_text(tokenizer_json())},
          {"tokenizer_config.json", json_text(config)}};
}

void Tokenizer::write(const std::filesystem::path& folder) const {
  for (const auto& [name, contents] : files()) io::write_file(folder / name, contents);
}

TokenizerKind identify_tokenizer(const std::filesystem::path& folder) {
  if (tokenizer_files(folder).empty()) return TokenizerKind::none;
  const std::filesystem::path path = folder / "tokenizer.json";
  if (!io::is_there(path, ErrorKind::data)) return TokenizerKind::other;
  const IndexedJson tokenizer =
      IndexedJson::parse(io::read_file(path), nullptr, /*allow_exceptions=*/false);
  require(!tokenizer.is_discarded(), ErrorKind::corrupt,
          "{} is not JSON, so it is truncated or altered; fetch or copy the model folder again",
          path.string());
  return gives_bytes(tokenizer) ? TokenizerKind::bytes : TokenizerKind::other;
}

bool is_tokenizer_file(std::string_view name) {
  return std::ranges::find(kTokenizerFiles, name) != kTokenizerFiles.end();
}

std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const char* name : kTokenizerFiles) {
    if (io::is_file(folder / name, ErrorKind::data)) files.push_back(folder / name);
  }
  return files;
}

}  // namespace terrace::data
