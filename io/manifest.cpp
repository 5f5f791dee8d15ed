#include "manifest.h"

#include <algorithm>
#include <cstring>

#include "byte_stream.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/checksum.h"

namespace terrace::io {
namespace {

constexpr std::uint64_t kFrontMagic = 0x3150534543415254ULL;  // "TRACESP1"
constexpr std::uint64_t kSlotMagic = 0x313054534c435254ULL;   // "TRCLST01"
constexpr std::uint32_t kFormat = 1;
constexpr std::uint64_t kBlock = PageStore::kAlignment;
/// Magic number and checksum stand before what the checksum covers.
constexpr std::size_t kCheckedFrom = 2 * sizeof(std::uint64_t);
/// Fixed fields of a slot and of a page in it, rounded up generously.
constexpr std::uint64_t kSlotHeaderBytes = 128;
constexpr std::uint64_t kSlotPageBytes = 16;

std::uint64_t text_bytes(std::string_view text) { return sizeof(std::uint64_t) + text.size(); }

std::uint64_t layout_bytes(const PageTable& table, const Manifest::Description& description) {
  std::uint64_t bytes = 64;
  for (const auto& folder : description.folders) bytes += text_bytes(folder.native()) + 8;
  for (const PageSpec& spec : table.specs()) bytes += 16 + text_bytes(spec.description);
  return bytes + table.segments().size() * (4 + 4 * 8);
}

std::uint64_t slot_bytes(const PageTable& table, const Manifest::Description& description) {
  return round_up(kSlotHeaderBytes + table.specs().size() * kSlotPageBytes +
                      table.block_count() * sizeof(std::uint64_t) + description.run_state_bytes_max,
                  kBlock);
}

/// Puts the checksum of everything behind the first two words into the second.
void seal(std::span<std::byte> record) {
  const std::uint64_t sum = crc64(record.subspan(kCheckedFrom));
  std::memcpy(record.data() + sizeof(std::uint64_t), &sum, sizeof(sum));
}

bool is_sealed(std::span<const std::byte> record, std::uint64_t magic) {
  std::uint64_t found[2];
  std::memcpy(found, record.data(), sizeof(found));
  return found[0] == magic && found[1] == crc64(record.subspan(kCheckedFrom));
}

}  // namespace

std::uint64_t Manifest::file_bytes(const PageTable& table, const Description& description) {
  return kBlock + round_up(layout_bytes(table, description), kBlock) +
         2 * slot_bytes(table, description);
}

Manifest::Manifest(Engine& engine, const std::filesystem::path& path, Description description,
                   const PageTable& table)
    : engine_(engine), path_(path), description_(std::move(description)) {
  front_bytes_ = kBlock + round_up(layout_bytes(table, description_), kBlock);
  slot_ = AlignedMemory(slot_bytes(table, description_));
  run_state_.reserve(description_.run_state_bytes_max);
  file_ = engine_.open(path_, {.create = true, .bytes = file_bytes(table, description_)}).id;
  const AlignedMemory front(front_bytes_);
  encode_front(table, front.span());
  transfer(engine_, {Operation::write, file_, 0, front.data(), front.size(), 0});
  transfer(engine_, {.kind = Operation::flush, .file = file_});
}

void Manifest::encode_front(const PageTable& table, std::span<std::byte> front) {
  std::memset(front.data(), 0, front.size());
  const std::span layout = front.subspan(kBlock);
  ByteWriter writer(layout);
  writer.put(static_cast<std::uint64_t>(description_.folders.size()));
  for (std::size_t file = 0; file < description_.folders.size(); ++file) {
    writer.put_text(description_.folders[file].native());
    writer.put(table.file_bytes()[file]);
  }
  writer.put(static_cast<std::uint64_t>(table.specs().size()));
  for (const PageSpec& spec : table.specs()) {
    writer.put(spec.id.value);
    writer.put(spec.bytes);
    writer.put_text(spec.description);
  }
  writer.put(static_cast<std::uint64_t>(table.segments().size()));
  for (const Segment& segment : table.segments()) {
    writer.put(static_cast<std::uint32_t>(segment.file));
    writer.put(segment.begin);
    writer.put(segment.bytes);
    writer.put(segment.offset[0]);
    writer.put(segment.offset[1]);
  }
  ByteWriter head(front.first(kBlock));
  head.put(kFrontMagic);
  head.put(std::uint64_t{0});  // The checksum, by `seal`.
  head.put(kFormat);
  head.put(static_cast<std::uint32_t>(table.extents()));
  head.put(description_.identity);
  head.put(static_cast<std::uint64_t>(layout.size()));
  head.put(crc64(layout));
  head.put(static_cast<std::uint64_t>(slot_.size()));
  head.put(description_.run_state_bytes_max);
  head.put(static_cast<std::uint32_t>(description_.phases));
  seal(front.first(kBlock));
}

Manifest::Manifest(Engine& engine, const std::filesystem::path& path)
    : engine_(engine), path_(path) {
  const OpenedFile opened = engine_.open(path_, {});
  file_ = opened.id;
  require(opened.bytes >= kBlock, ErrorKind::corrupt,
          "{} is no manifest of a page store: it has {} bytes", path_.native(), opened.bytes);
  const AlignedMemory head(kBlock);
  transfer(engine_, {Operation::read, file_, 0, head.data(), head.size(), 0});
  require(is_sealed(head.span(), kFrontMagic), ErrorKind::corrupt,
          "{} is no manifest of a page store, or its first block is damaged", path_.native());
  const std::string name = path_.native();
  ByteReader reader(head.span(), name);
  (void)reader.get_bytes(kCheckedFrom);
  const auto format = reader.get<std::uint32_t>();
  require(format == kFormat, ErrorKind::corrupt, "{} has format {}, but this program reads {}",
          name, format, kFormat);
  const auto extents = static_cast<int>(reader.get<std::uint32_t>());
  description_.identity = reader.get<std::uint64_t>();
  const auto length = reader.get<std::uint64_t>();
  const auto sum = reader.get<std::uint64_t>();
  const auto slot_length = reader.get<std::uint64_t>();
  description_.run_state_bytes_max = reader.get<std::uint64_t>();
  description_.phases = static_cast<Phases>(reader.get<std::uint32_t>());
  front_bytes_ = kBlock + length;
  require(opened.bytes >= front_bytes_ + 2 * slot_length, ErrorKind::corrupt,
          "{} is truncated: it has {} bytes, but {} were expected", name, opened.bytes,
          front_bytes_ + 2 * slot_length);
  slot_ = AlignedMemory(slot_length);
  run_state_.reserve(description_.run_state_bytes_max);
  const AlignedMemory layout(length);
  transfer(engine_, {Operation::read, file_, kBlock, layout.data(), layout.size(), 0});
  require(crc64(layout.span()) == sum, ErrorKind::corrupt, "the list of pages in {} is damaged",
          name);
  decode_layout(layout.span(), extents);
}

void Manifest::decode_layout(std::span<const std::byte> layout, int extents) {
  const std::string name = path_.native();
  ByteReader reader(layout, name);
  std::vector<std::uint64_t> file_sizes(reader.get<std::uint64_t>());
  for (std::uint64_t& bytes : file_sizes) {
    description_.folders.emplace_back(reader.get_text());
    bytes = reader.get<std::uint64_t>();
  }
  std::vector<PageSpec> specs(reader.get<std::uint64_t>());
  for (PageSpec& spec : specs) {
    spec.id = PageId(reader.get<std::uint64_t>());
    spec.bytes = reader.get<std::uint64_t>();
    spec.description = reader.get_text();
  }
  std::vector<Segment> segments(reader.get<std::uint64_t>());
  for (Segment& segment : segments) {
    segment.file = static_cast<int>(reader.get<std::uint32_t>());
    segment.begin = reader.get<std::uint64_t>();
    segment.bytes = reader.get<std::uint64_t>();
    segment.offset[0] = reader.get<std::uint64_t>();
    segment.offset[1] = reader.get<std::uint64_t>();
  }
  table_ = std::make_unique<PageTable>(std::move(specs), std::move(segments), std::move(file_sizes),
                                       extents);
}

std::uint64_t Manifest::slot_offset(std::uint64_t sequence) const {
  return front_bytes_ + sequence % 2 * slot_.size();
}

std::optional<std::uint64_t> Manifest::sequence_of(std::span<const std::byte> slot) const {
  if (!is_sealed(slot, kSlotMagic)) return std::nullopt;
  std::uint64_t sequence = 0;
  std::memcpy(&sequence, slot.data() + kCheckedFrom, sizeof(sequence));
  return sequence;
}

void Manifest::restore(PageTable& table) {
  const AlignedMemory slots[2] = {AlignedMemory(slot_.size()), AlignedMemory(slot_.size())};
  std::optional<std::uint64_t> newest;
  bool is_blank = true;
  for (std::uint64_t i = 0; i < 2; ++i) {
    transfer(engine_,
             {Operation::read, file_, slot_offset(i), slots[i].data(), slots[i].size(), 0});
    const auto sequence = sequence_of(slots[i].span());
    if (sequence && (!newest || *sequence > *newest)) newest = sequence;
    is_blank = is_blank && std::ranges::all_of(slots[i].span(),
                                               [](std::byte byte) { return byte == std::byte{0}; });
  }
  if (newest) decode_slot(slots[*newest % 2].span(), table);
  // A first commit that the power cut tore leaves one damaged slot and a blank one: nothing was
  // committed then, and that is not an error. Two damaged slots are.
  if (newest || is_blank) return;
  const bool one_is_blank = std::ranges::any_of(slots, [](const AlignedMemory& slot) {
    return std::ranges::all_of(slot.span(), [](std::byte byte) { return byte == std::byte{0}; });
  });
  require(one_is_blank, ErrorKind::corrupt,
          "both records of the last commits in {} are damaged; resume from a checkpoint",
          path_.native());
}

void Manifest::decode_slot(std::span<const std::byte> slot, PageTable& table) {
  const std::string name = path_.native();
  ByteReader reader(slot, name);
  (void)reader.get_bytes(kCheckedFrom);
  sequence_ = reader.get<std::uint64_t>();
  const auto version = reader.get<std::int64_t>();
  torn_ = reader.get<std::uint64_t>() != 0;
  const auto run_state_bytes = reader.get<std::uint64_t>();
  if (!torn_ && version >= 0) version_ = Version(version);
  for (std::size_t page = 0; page < table.specs().size(); ++page) {
    PageTable::Committed committed;
    committed.extent = static_cast<int>(reader.get<std::int64_t>());
    committed.version = Version(reader.get<std::int64_t>());
    if (committed.extent < 0) continue;
    require(committed.extent < table.extents(), ErrorKind::corrupt,
            "{} names extent {} of a page that has {}", name, committed.extent, table.extents());
    const auto sums = table.checksums(page, committed.extent);
    std::memcpy(sums.data(), reader.get_bytes(sums.size_bytes()).data(), sums.size_bytes());
    if (!torn_) table.restore(page, committed);
  }
  const auto state = reader.get_bytes(run_state_bytes);
  run_state_.assign(state.begin(), state.end());
}

void Manifest::write_slot(PageTable& table, std::optional<Version> next) {
  ByteWriter writer(slot_.span());
  writer.put(kSlotMagic);
  writer.put(std::uint64_t{0});
  writer.put(sequence_ + 1);
  writer.put(next ? next->value : version_ ? version_->value : std::int64_t{-1});
  writer.put(static_cast<std::uint64_t>(next ? 0 : 1));
  writer.put(static_cast<std::uint64_t>(run_state_.size()));
  for (std::size_t page = 0; page < table.specs().size(); ++page) {
    const auto record = next ? table.next(page, *next) : table.committed(page);
    writer.put(static_cast<std::int64_t>(record.extent));
    writer.put(record.version.value);
    if (record.extent >= 0) {
      writer.put_bytes(std::as_bytes(table.checksums(page, record.extent)));
    }
  }
  writer.put_bytes(run_state_);
  std::memset(slot_.data() + writer.position(), 0, slot_.size() - writer.position());
  seal(slot_.span());
  transfer(engine_,
           {Operation::write, file_, slot_offset(sequence_ + 1), slot_.data(), slot_.size(), 0});
  transfer(engine_, {.kind = Operation::flush, .file = file_});
  ++sequence_;
}

void Manifest::write(PageTable& table, Version version, std::span<const std::byte> run_state) {
  require(run_state.size() <= description_.run_state_bytes_max, ErrorKind::usage,
          "the run state has {} bytes, but {} was made for at most {}", run_state.size(),
          path_.native(), description_.run_state_bytes_max);
  run_state_.assign(run_state.begin(), run_state.end());
  write_slot(table, version);
  version_ = version;
  torn_ = false;
}

void Manifest::write_torn(PageTable& table) {
  write_slot(table, std::nullopt);
  torn_ = true;
}

}  // namespace terrace::io
