#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "source_file.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::data {
namespace {

constexpr std::size_t kPieceBytes = kMiB;
constexpr std::string_view kConvert =
    "convert it to plain text (one file a document) or to a token file (.npy of uint16, uint32 or "
    "int32, or llm.c's .bin)";

struct Format {
  std::string_view extensions;  ///< each between blanks
  std::string_view name;
  std::string_view remedy;
};

/// Formats that are known by name and never read as bytes, though some of them are text.
constexpr std::array kUnsupported = {
    Format{" .json .jsonl .ndjson .csv .tsv ", "JSON, JSON lines or CSV", kConvert},
    Format{" .parquet .arrow .feather .orc .avro .lance .mds .tfrecord .msgpack .db .sqlite .h5 "
           ".hdf5 .idx .npz ",
           "a record format such as Parquet or Arrow", kConvert},
    Format{" .gz .zip .zst .xz .bz2 .lz4 .7z .rar .tar .tgz .tbz .txz ", "a packed file",
           "unpack it first"},
    Format{" .pdf .doc .docx .odt .rtf .epub .xls .xlsx .ppt .pptx ", "an office document",
           kConvert},
    Format{" .safetensors .gguf .pt .pth .ckpt .pkl .pickle .onnx ", "a model or a pickle",
           "a model is given with --model"}};

std::string extension_of(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  return extension;
}

std::optional<Skip> skip_by_name(const std::filesystem::path& path, const std::string& extension) {
  if (extension.empty() || extension.find(' ') != std::string::npos) return std::nullopt;
  for (const Format& format : kUnsupported) {
    if (format.extensions.find(" " + extension + " ") == std::string_view::npos) continue;
    return Skip{
        SkipReason::unsupported,
        fmt::format("{} is not supported yet: it is {} by its name, and data is plain text or "
                    "token files; {}",
                    path.string(), format.name, format.remedy)};
  }
  return std::nullopt;
}

SourceScanner::Scanned skipped(SkipReason reason, std::string sentence) {
  return {.result = Skip{reason, std::move(sentence)}};
}

bool begins_with(std::span<const std::uint8_t> piece, std::string_view mark) {
  return piece.size() >= mark.size() && std::memcmp(piece.data(), mark.data(), mark.size()) == 0;
}

}  // namespace

SourceScanner::SourceScanner(std::int64_t vocab_size)
    : vocab_size_(vocab_size), buffer_(std::make_unique<std::byte[]>(kPieceBytes)) {}

SourceScanner::Scanned SourceScanner::scan(const std::filesystem::path& path) {
  const std::string extension = extension_of(path);
  if (auto skip = skip_by_name(path, extension)) return {.result = *std::move(skip)};
  std::optional<io::InputFile> file;
  try {
    file.emplace(path);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) throw;
    return skipped(SkipReason::unreadable, error.what());
  }
  if (file->size() == 0) {
    return skipped(SkipReason::empty,
                   fmt::format("{} is empty; remove it from the data", path.string()));
  }
  if (extension != ".npy" && extension != ".bin") return scan_text(*file);
  const auto header = extension == ".npy" ? read_npy_header(*file) : read_llmc_header(*file);
  if (const auto* layout = std::get_if<TokenLayout>(&header)) return scan_tokens(*file, *layout);
  return skipped(SkipReason::unsupported,
                 fmt::format("{} {}; other {} files are not supported yet", path.string(),
                             std::get<NoTokens>(header).reason, extension));
}

std::span<std::byte> SourceScanner::read_piece(const io::InputFile& file, std::uint64_t offset) {
  const std::span piece(buffer_.get(), std::min<std::uint64_t>(kPieceBytes, file.size() - offset));
  file.read(offset, piece);
  return piece;
}

SourceScanner::Scanned SourceScanner::scan_text(const io::InputFile& file) {
  const std::string path = file.path().string();
  io::Fingerprint contents{.bytes = file.size()};
  std::optional<TextScan> text;
  for (std::uint64_t offset = 0; offset < file.size(); offset += kPieceBytes) {
    const std::span<const std::byte> raw = read_piece(file, offset);
    contents.crc64 = io::crc64(raw, contents.crc64);
    std::span piece(reinterpret_cast<const std::uint8_t*>(raw.data()), raw.size());
    if (!text) {
      if (begins_with(piece, "\xFF\xFE") || begins_with(piece, "\xFE\xFF")) {
        return skipped(SkipReason::utf16,
                       fmt::format("{} is UTF-16 text, but text must be UTF-8; convert it with "
                                   "iconv -f UTF-16 -t UTF-8",
                                   path));
      }
      const std::size_t mark = begins_with(piece, "\xEF\xBB\xBF") ? 3 : 0;
      piece = piece.subspan(mark);
      text.emplace(mark);
    }
    text->feed(piece);
    if (const auto nul = text->nul()) {
      return skipped(
          SkipReason::binary,
          fmt::format("{} is not text: it has a NUL byte at offset {}; give plain text in "
                      "UTF-8, or a token file (.npy, llm.c's .bin)",
                      path, *nul));
    }
  }
  const bool is_utf8 = text->is_utf8();
  const bool has_carriage_returns = text->has_carriage_returns();
  TextLayout layout = text->finish();
  if (layout.tokens == 0) {
    return skipped(
        SkipReason::empty,
        fmt::format("{} holds nothing but a byte-order mark; remove it from the data", path));
  }
  return {.result = SourceFile(file, contents, std::move(layout)),
          .is_utf8 = is_utf8,
          .has_carriage_returns = has_carriage_returns};
}

template <class Id>
void SourceScanner::require_known(const io::InputFile& file, std::span<const std::byte> piece,
                                  std::int64_t first, bool is_signed) const {
  const std::span ids(reinterpret_cast<const Id*>(piece.data()), piece.size() / sizeof(Id));
  Id highest = 0;
  for (const Id id : ids) highest = std::max(highest, id);
  if (std::int64_t{highest} < vocab_size_) return;
  const auto bad =
      std::ranges::find_if(ids, [&](Id id) { return std::int64_t{id} >= vocab_size_; });
  const std::int64_t shown =
      is_signed ? std::int64_t{static_cast<std::int32_t>(*bad)} : std::int64_t{*bad};
  fail(ErrorKind::data,
       "{} holds the token id {} at position {}, but the model's vocabulary has {} entries, 0 to "
       "{}; the file was made with another tokenizer, or it is damaged",
       file.path().string(), shown, first + (bad - ids.begin()), vocab_size_, vocab_size_ - 1);
}

SourceScanner::Scanned SourceScanner::scan_tokens(const io::InputFile& file,
                                                  const TokenLayout& layout) {
  if (layout.tokens == 0) {
    return skipped(SkipReason::empty, fmt::format("{} holds no tokens; remove it from the data",
                                                  file.path().string()));
  }
  io::Fingerprint contents{.bytes = file.size()};
  const auto header = std::span(buffer_.get(), kPieceBytes).first(layout.offset);
  file.read(0, header);
  contents.crc64 = io::crc64(header);
  // From here on in pieces that begin with a whole id.
  for (std::uint64_t offset = layout.offset; offset < file.size(); offset += kPieceBytes) {
    const std::span<const std::byte> piece = read_piece(file, offset);
    contents.crc64 = io::crc64(piece, contents.crc64);
    const auto first = static_cast<std::int64_t>((offset - layout.offset) / layout.width);
    if (layout.width == sizeof(std::uint16_t)) {
      require_known<std::uint16_t>(file, piece, first, layout.is_signed);
    } else {
      require_known<std::uint32_t>(file, piece, first, layout.is_signed);
    }
  }
  return {.result = SourceFile(file, contents, layout)};
}

}  // namespace terrace::data
