#include "manifest.h"

#include <algorithm>
#include <cstring>

#include "byte_stream.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/checksum.h"
#include "terrace/io/file.h"

namespace terrace::io {
namespace {

constexpr std::uint64_t kFrontMagic = 0x3150534543415254ULL;  // "TRACESP1"
constexpr std::uint64_t kSlotMagic = 0x313054534c435254ULL;   // "TRCLST01"
constexpr std::uint32_t kFormat = 2;                          ///< 1 had no run id
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

void encode_front(const PageTable& table, const Manifest::Description& description,
                  std::span<std::byte> front) {
  std::memset(front.data(), 0, front.size());
  const std::span layout = front.subspan(kBlock);
  ByteWriter writer(layout);
  writer.put(static_cast<std::uint64_t>(description.folders.size()));
  for (std::size_t file = 0; file < description.folders.size(); ++file) {
    writer.put_text(description.folders[file].native());
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
  head.put(description.id.store);
  head.put(description.id.run.high);
  head.put(description.id.run.low);
  head.put(static_cast<std::uint64_t>(layout.size()));
  head.put(crc64(layout));
  head.put(slot_bytes(table, description));
  head.put(description.run_state_bytes_max);
  head.put(static_cast<std::uint32_t>(description.phases));
  seal(front.first(kBlock));
}

/// The first block, which is of a fixed size.
struct Head {
  int extents = 0;
  StoreId id;
  std::uint64_t layout_bytes = 0;
  std::uint64_t layout_checksum = 0;
  std::uint64_t slot_bytes = 0;
  std::uint64_t run_state_bytes_max = 0;
  Phases phases = Phases::mixed;
};

Head decode_head(std::span<const std::byte> block, const std::string& name) {
  require(is_sealed(block, kFrontMagic), ErrorKind::corrupt,
          "{} is not the manifest of a page store, or its first block is damaged", name);
  ByteReader reader(block, name);
  (void)reader.get_bytes(kCheckedFrom);
  const auto format = reader.get<std::uint32_t>();
  require(format == kFormat, ErrorKind::corrupt,
          "{} has format {}, but this program reads {}: go on with the version that made it", name,
          format, kFormat);
  Head head;
  head.extents = static_cast<int>(reader.get<std::uint32_t>());
  head.id.store = reader.get<std::uint64_t>();
  head.id.run.high = reader.get<std::uint64_t>();
  head.id.run.low = reader.get<std::uint64_t>();
  head.layout_bytes = reader.get<std::uint64_t>();
  head.layout_checksum = reader.get<std::uint64_t>();
  head.slot_bytes = reader.get<std::uint64_t>();
  head.run_state_bytes_max = reader.get<std::uint64_t>();
  head.phases = static_cast<Phases>(reader.get<std::uint32_t>());
  return head;
}

/// The folders of a store and the sizes of its data files, with which a layout begins.
struct Folders {
  std::vector<std::filesystem::path> paths;
  std::vector<std::uint64_t> file_bytes;
};

Folders decode_folders(ByteReader& reader) {
  Folders folders;
  for (auto left = reader.get<std::uint64_t>(); left > 0; --left) {
    folders.paths.emplace_back(reader.get_text());
    folders.file_bytes.push_back(reader.get<std::uint64_t>());
  }
  return folders;
}

bool is_blank(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

std::uint64_t Manifest::file_bytes(const PageTable& table, const Description& description) {
  return kBlock + round_up(layout_bytes(table, description), kBlock) +
         2 * slot_bytes(table, description);
}

void Manifest::make(Engine& engine, const std::filesystem::path& path,
                    const Description& description, const PageTable& table) {
  const FileId file =
      engine.open(path, {.create = true, .bytes = file_bytes(table, description)}).id;
  const AlignedMemory front(kBlock + round_up(layout_bytes(table, description), kBlock));
  encode_front(table, description, front.span());
  transfer(engine, {Operation::write, file, 0, front.data(), front.size(), 0});
  transfer(engine, {.kind = Operation::flush, .file = file});
}

std::optional<Manifest::Description> Manifest::describe(const std::filesystem::path& path) {
  try {
    const InputFile file(path, ErrorKind::corrupt);
    std::vector<std::byte> block(kBlock);
    file.read(0, block);
    const Head head = decode_head(block, path.native());
    require(head.layout_bytes <= file.size(), ErrorKind::corrupt, "{} is truncated", path.native());
    std::vector<std::byte> layout(head.layout_bytes);
    file.read(kBlock, layout);
    require(crc64(layout) == head.layout_checksum, ErrorKind::corrupt, "{} is damaged",
            path.native());
    const std::string name = path.native();
    ByteReader reader(layout, name);
    return Description{head.id, head.run_state_bytes_max, head.phases,
                       decode_folders(reader).paths};
  } catch (const Error&) {
    return std::nullopt;
  }
}

Manifest::Manifest(Engine& engine, const std::filesystem::path& path)
    : engine_(engine), path_(path) {
  const OpenedFile opened = engine_.open(path_, {});
  file_ = opened.id;
  require(opened.bytes >= kBlock, ErrorKind::corrupt,
          "{} is not the manifest of a page store: it has {} bytes", path_.native(), opened.bytes);
  const AlignedMemory block(kBlock);
  transfer(engine_, {Operation::read, file_, 0, block.data(), block.size(), 0});
  const std::string name = path_.native();
  const Head head = decode_head(block.span(), name);
  description_.id = head.id;
  description_.run_state_bytes_max = head.run_state_bytes_max;
  description_.phases = head.phases;
  front_bytes_ = kBlock + head.layout_bytes;
  require(opened.bytes >= front_bytes_ + 2 * head.slot_bytes, ErrorKind::corrupt,
          "{} is truncated: it has {} bytes, but {} were expected", name, opened.bytes,
          front_bytes_ + 2 * head.slot_bytes);
  slot_ = AlignedMemory(head.slot_bytes);
  run_state_.reserve(description_.run_state_bytes_max);
  const AlignedMemory layout(head.layout_bytes);
  transfer(engine_, {Operation::read, file_, kBlock, layout.data(), layout.size(), 0});
  require(crc64(layout.span()) == head.layout_checksum, ErrorKind::corrupt,
          "the list of pages in {} is damaged", name);
  decode_layout(layout.span(), head.extents);
}

void Manifest::decode_layout(std::span<const std::byte> layout, int extents) {
  const std::string name = path_.native();
  ByteReader reader(layout, name);
  Folders folders = decode_folders(reader);
  description_.folders = std::move(folders.paths);
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
  table_ = std::make_unique<PageTable>(std::move(specs), std::move(segments),
                                       std::move(folders.file_bytes), extents);
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

void Manifest::restore(PageTable& table, Log& log) {
  const AlignedMemory slots[2] = {AlignedMemory(slot_.size()), AlignedMemory(slot_.size())};
  std::optional<std::uint64_t> newest;
  int blank = 0;
  std::string unreadable;
  for (std::uint64_t i = 0; i < 2; ++i) {
    try {
      transfer(engine_,
               {Operation::read, file_, slot_offset(i), slots[i].data(), slots[i].size(), 0});
    } catch (const Error& error) {
      unreadable = error.what();
      continue;
    }
    const auto sequence = sequence_of(slots[i].span());
    if (sequence && (!newest || *sequence > *newest)) newest = sequence;
    if (is_blank(slots[i].span())) ++blank;
  }
  // A first commit that the power cut tore leaves one damaged slot and a blank one: nothing was
  // committed then, and that is not an error. Two damaged slots are; and of one that cannot be read
  // nobody knows.
  require(newest || blank == 2 || (blank == 1 && unreadable.empty()), ErrorKind::corrupt,
          "the records of the last commits in {} are damaged{}{}", path_.native(),
          unreadable.empty() ? "" : ": ", unreadable);
  if (!newest) return;
  decode_slot(slots[*newest % 2].span(), table);
  if (unreadable.empty()) return;
  log.warning(
      "of the two records of the last commits in {} one cannot be read ({}): the other, of step "
      "{}, "
      "counts, and every page is verified as it is read",
      path_.native(), unreadable, version_ ? version_->value : -1);
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
