#include "terrace/data/dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "file_list.h"
#include "source_file.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/entry.h"

namespace terrace::data {
namespace {

/// Files that stay open at most: the largest ones. Beyond that there is nothing to be gained.
constexpr std::size_t kFilesOpenMax = 256;
/// Data above this is announced before it is read, as that takes a while.
constexpr std::uint64_t kAnnounceBytes = 4 * kGiB;
constexpr double kAnnounceSeconds = 2;
/// A folder with more unsupported bytes than this many times the others holds data that cannot be
/// read, and the text in it is about that data.
constexpr std::uint64_t kUnsupportedMax = 9;

void count(Tally& tally, const std::filesystem::path& path) {
  if (tally.count++ == 0) tally.example = path;
}

void count_all(Tally& tally, const std::vector<std::filesystem::path>& paths) {
  for (const std::filesystem::path& path : paths) count(tally, path);
}

Tally& tally_of(DatasetReport& report, SkipReason reason) {
  switch (reason) {
    case SkipReason::empty:
      return report.empty;
    case SkipReason::binary:
      return report.binary;
    case SkipReason::utf16:
      return report.utf16;
    case SkipReason::unsupported:
      return report.unsupported;
    case SkipReason::unreadable:
      return report.unreadable;
  }
  fail(ErrorKind::internal, "a file was skipped for no reason");
}

}  // namespace

std::vector<std::string> DatasetReport::notes() const {
  const std::pair<const Tally&, std::string_view> kinds[] = {
      {not_utf8, "taken, but not valid UTF-8: their bytes are tokens as they are"},
      {carriage_returns, "taken, with CRLF and CR read as LF"},
      {repeated, "reached twice: taken once"},
      {empty, "skipped: empty"},
      {binary, "skipped: binary (a NUL byte in it)"},
      {utf16, "skipped: UTF-16, but text must be UTF-8"},
      {unsupported, "skipped: the format is not supported yet"},
      {unreadable, "skipped: cannot be read"},
      {hidden, "skipped: hidden"},
      {linked_folders, "skipped: a link to a folder"},
      {own, "skipped: written by Terrace itself"}};
  std::vector<std::string> lines;
  for (const auto& [tally, what] : kinds) {
    if (tally.count == 0) continue;
    lines.push_back(tally.count == 1 ? fmt::format("1 file {}: {}", what, tally.example.string())
                                     : fmt::format("{} files {}; the first is {}", tally.count,
                                                   what, tally.example.string()));
  }
  return lines;
}

struct Dataset::Files {
  std::vector<SourceFile> files;
  std::vector<std::int64_t> begins;  ///< of each file in the stream
};

/// Takes files one by one into a new dataset.
class Dataset::Builder {
 public:
  Builder(Dataset& dataset, const DatasetOptions& options, std::size_t arguments)
      : dataset_(dataset), report_(dataset.report_), options_(options), balances_(arguments) {}

  void add(const ListedFile& file, SourceScanner::Scanned scanned) {
    Balance& balance = balances_[file.argument];
    if (auto* skip = std::get_if<Skip>(&scanned.result)) {
      require(!file.is_named, ErrorKind::data, "{}", skip->sentence);
      count(tally_of(report_, skip->reason), file.path);
      if (skip->reason != SkipReason::unsupported) return;
      balance.unsupported_bytes += file.bytes;
      if (balance.unsupported.empty()) balance.unsupported = skip->sentence;
      return;
    }
    auto& source = std::get<SourceFile>(scanned.result);
    require_usable(source);
    if (!scanned.is_utf8) count(report_.not_utf8, file.path);
    if (scanned.has_carriage_returns) count(report_.carriage_returns, file.path);
    ++(source.is_text() ? report_.text_files : report_.token_files);
    balance.taken_bytes += source.contents().bytes;
    report_.bytes += source.contents().bytes;
    dataset_.files_->begins.push_back(report_.tokens);
    report_.tokens += source.tokens();
    dataset_.fingerprint_.files.push_back({.path = source.path(), .contents = source.contents()});
    dataset_.files_->files.push_back(std::move(source));
  }

  void finish(std::span<const std::filesystem::path> paths) {
    for (std::size_t argument = 0; argument < paths.size(); ++argument) {
      const Balance& balance = balances_[argument];
      require(balance.unsupported_bytes <= kUnsupportedMax * balance.taken_bytes, ErrorKind::data,
              "nearly all of the folder {} is in formats that are not supported yet ({} of them, "
              "and {} of "
              "text or token files): {}; or name the files to use one by one",
              paths[argument].string(), format_bytes(balance.unsupported_bytes),
              format_bytes(balance.taken_bytes), balance.unsupported);
    }
    const std::vector<std::string> notes = report_.notes();
    require(
        !dataset_.files_->files.empty(), ErrorKind::data,
        "{} names no text and no token file{}{}; give plain text in UTF-8, or token files (.npy, "
        "llm.c's .bin)",
        options_.flag, notes.empty() ? "" : ": ", fmt::join(notes, "; "));
    keep_largest_open();
  }

 private:
  /// Bytes below one of the arguments.
  struct Balance {
    std::uint64_t taken_bytes = 0;
    std::uint64_t unsupported_bytes = 0;
    std::string unsupported;  ///< the sentence about the first one
  };

  void require_usable(const SourceFile& source) const {
    const std::vector<SourceFile>& files = dataset_.files_->files;
    if (!files.empty() && files.front().is_text() != source.is_text()) {
      const SourceFile& text = source.is_text() ? source : files.front();
      const SourceFile& tokens = source.is_text() ? files.front() : source;
      fail(ErrorKind::data,
           "{} holds both text ({}) and token files ({}), whose tokens may differ in meaning; name "
           "only the files of one kind",
           options_.flag, text.path().string(), tokens.path().string());
    }
    if (!source.is_text()) return;
    const bool reads_bytes =
        options_.tokenizer == TokenizerKind::bytes ||
        (options_.tokenizer == TokenizerKind::none && options_.vocab_size == Tokenizer::kVocabSize);
    require(
        reads_bytes, ErrorKind::data,
        "{} is text, but {}; give token files (.npy of uint16, uint32 or int32, or llm.c's .bin) "
        "made with the model's tokenizer",
        source.path().string(),
        options_.tokenizer == TokenizerKind::none
            ? "the model folder has no tokenizer"
            : "text for a model that brings its own tokenizer is not supported yet");
    require(
        options_.vocab_size >= Tokenizer::kVocabSize, ErrorKind::usage,
        "text is read as bytes and needs a vocabulary of 256 entries, but the model has {}; raise "
        "vocab_size",
        options_.vocab_size);
  }

  void keep_largest_open() {
    std::vector<SourceFile>& files = dataset_.files_->files;
    std::vector<std::size_t> order(files.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const std::size_t kept = std::min({order.size(), kFilesOpenMax, io::open_files_share()});
    std::ranges::nth_element(order, order.begin() + static_cast<std::ptrdiff_t>(kept),
                             std::ranges::greater(),
                             [&](std::size_t file) { return files[file].contents().bytes; });
    for (const std::size_t file : std::span(order).first(kept)) files[file].keep_open();
  }

  Dataset& dataset_;
  DatasetReport& report_;
  const DatasetOptions& options_;
  std::vector<Balance> balances_;  ///< one for each argument
};

Dataset::Dataset() : files_(std::make_unique<Files>()) {}
Dataset::~Dataset() = default;

std::shared_ptr<const Dataset> Dataset::open(std::span<const std::filesystem::path> paths,
                                             const DatasetOptions& options, Log& log) {
  require(options.vocab_size > 0 && options.vocab_size <= std::int64_t{1} << 31, ErrorKind::usage,
          "the model's vocab_size is {}, but 1 to 2^31 was expected", options.vocab_size);
  const std::int64_t start_us = now_us();
  const FileList list = list_files(paths, options);
  std::uint64_t listed_bytes = 0;
  for (const ListedFile& file : list.files) listed_bytes += file.bytes;
  if (listed_bytes > kAnnounceBytes) {
    log.info("checking {} of data once, for the fingerprint that a resume compares",
             format_bytes(listed_bytes));
  }
  const std::shared_ptr<Dataset> dataset(new Dataset());
  dataset->flag_ = options.flag;
  DatasetReport& report = dataset->report_;
  count_all(report.hidden, list.hidden);
  count_all(report.linked_folders, list.links);
  count_all(report.own, list.own);
  count_all(report.repeated, list.repeated);
  Builder builder(*dataset, options, paths.size());
  SourceScanner scanner(options.vocab_size);
  for (const ListedFile& file : list.files) builder.add(file, scanner.scan(file.path));
  builder.finish(paths);
  report.seconds = seconds_since(start_us);
  for (const std::string& note : report.notes()) log.warning("{}: {}", options.flag, note);
  if (report.seconds > kAnnounceSeconds) {
    log.info("{} of data were checked in {} ({})", format_bytes(report.bytes),
             format_duration(report.seconds),
             format_rate(static_cast<double>(report.bytes) / report.seconds));
  }
  return dataset;
}

void Dataset::read(std::int64_t first, std::span<std::int32_t> target) const {
  const auto length = static_cast<std::int64_t>(target.size());
  require(first >= 0 && length <= tokens() - first, ErrorKind::internal,
          "tokens {} to {} of {} were asked for", first, first + length, tokens());
  const std::vector<std::int64_t>& begins = files_->begins;
  auto file =
      static_cast<std::size_t>(std::ranges::upper_bound(begins, first) - begins.begin()) - 1;
  while (!target.empty()) {
    const SourceFile& source = files_->files[file];
    const std::int64_t inside = first - begins[file];
    const auto piece =
        target.first(std::min(target.size(), static_cast<std::size_t>(source.tokens() - inside)));
    source.read(inside, piece);
    first += static_cast<std::int64_t>(piece.size());
    target = target.subspan(piece.size());
    ++file;
  }
}

}  // namespace terrace::data
