#include "terrace/io/memory_disk.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::io {

void MemoryDisk::add_fault(MemoryFault fault) {
  const std::scoped_lock lock(mutex_);
  faults_.push_back(std::move(fault));
}

void MemoryDisk::cut_power_after(std::uint64_t calls) {
  const std::scoped_lock lock(mutex_);
  calls_left_ = calls;
}

void MemoryDisk::power_on() {
  const std::scoped_lock lock(mutex_);
  has_power_ = true;
  calls_left_.reset();
}

std::uint64_t MemoryDisk::calls() const {
  const std::scoped_lock lock(mutex_);
  return calls_;
}

void MemoryDisk::flip_bit(const std::string& path, std::uint64_t bit) {
  const std::scoped_lock lock(mutex_);
  File& file = files_.at(path);
  file.written.at(bit / 8) ^= std::byte(1U << (bit % 8));
  file.durable.at(bit / 8) ^= std::byte(1U << (bit % 8));
}

std::uint64_t MemoryDisk::draw(std::uint64_t bound) { return random_.below(draws_++, bound); }

bool MemoryDisk::chance(double probability) {
  return probability > 0 && random_.uniform(draws_++) < probability;
}

OpenedFile MemoryDisk::open(const std::string& path, const OpenOptions& options) {
  const std::scoped_lock lock(mutex_);
  require(has_power_, ErrorKind::io, "cannot open {}: {}", path, errno_name(EIO));
  require(options.create != files_.contains(path), ErrorKind::io, "cannot {} {}: {}",
          options.create ? "create" : "open", path, errno_name(options.create ? EEXIST : ENOENT));
  File& file = files_[path];
  if (options.create) {
    file.written.resize(options.bytes);
    file.durable.resize(options.bytes);
    file.dirty.resize(options.bytes / kSectorBytes + 1);
  }
  return {.id = {},
          .bytes = file.written.size(),
          .direct = options.direct,
          .direct_error = 0,
          .memory_alignment = options.direct ? kSectorBytes : 1,
          .offset_alignment = options.direct ? kSectorBytes : 1};
}

std::uint64_t MemoryDisk::size_of(const std::string& path) const {
  const std::scoped_lock lock(mutex_);
  return files_.at(path).written.size();
}

std::optional<std::int32_t> MemoryDisk::fault_for(const std::string& path, const Piece& piece) {
  for (MemoryFault& fault : faults_) {
    const bool touches =
        piece.kind == Operation::flush ||
        (piece.offset < fault.offset_end && piece.offset + piece.size > fault.offset_begin);
    if (fault.times == 0 || fault.kind != piece.kind || !touches ||
        path.find(fault.path_part) == std::string::npos) {
      continue;
    }
    if (fault.skip > 0) {
      --fault.skip;
      continue;
    }
    --fault.times;
    if (fault.error != 0) return -fault.error;
    return static_cast<std::int32_t>(std::min(fault.moved, piece.size));
  }
  if (chance(options_.passing_probability)) {
    static constexpr std::array kPassing = {EAGAIN, EINTR, EBUSY};
    return -kPassing[draw(kPassing.size())];
  }
  if (piece.size > kSectorBytes && chance(options_.short_probability)) {
    return static_cast<std::int32_t>(draw(piece.size / kSectorBytes) * kSectorBytes);
  }
  return std::nullopt;
}

std::int32_t MemoryDisk::run(const std::string& path, const Piece& piece) {
  const std::scoped_lock lock(mutex_);
  if (calls_left_ && *calls_left_ == 0 && has_power_) cut_power();
  if (!has_power_) return -EIO;
  if (calls_left_) --*calls_left_;
  ++calls_;
  const std::optional<std::int32_t> fault = fault_for(path, piece);
  if (fault && *fault < 0) return *fault;
  File& file = files_.at(path);
  if (piece.kind == Operation::flush) {
    file.durable = file.written;
    file.dirty.assign(file.dirty.size(), false);
    return 0;
  }
  const std::uint64_t size = file.written.size();
  const std::uint64_t room = piece.offset < size ? size - piece.offset : 0;
  const auto length =
      std::min<std::uint64_t>(room, fault ? static_cast<std::uint64_t>(*fault) : piece.size);
  if (piece.kind == Operation::read) {
    std::memcpy(piece.data, file.written.data() + piece.offset, length);
  } else {
    if (length == 0 && !fault) return -ENOSPC;
    std::memcpy(file.written.data() + piece.offset, piece.data, length);
    for (std::uint64_t byte = piece.offset; byte < piece.offset + length; byte += kSectorBytes) {
      file.dirty[byte / kSectorBytes] = true;
    }
  }
  return static_cast<std::int32_t>(length);
}

void MemoryDisk::cut_power() {
  for (auto& [path, file] : files_) {
    for (std::size_t sector = 0; sector < file.dirty.size(); ++sector) {
      const std::size_t begin = sector * kSectorBytes;
      if (file.dirty[sector] && draw(2) == 0) {
        const std::size_t length = std::min<std::size_t>(kSectorBytes, file.written.size() - begin);
        std::memcpy(file.durable.data() + begin, file.written.data() + begin, length);
      }
    }
    file.written = file.durable;
    file.dirty.assign(file.dirty.size(), false);
  }
  has_power_ = false;
}

class MemoryDriver final : public Driver {
 public:
  explicit MemoryDriver(std::shared_ptr<MemoryDisk> disk) : disk_(std::move(disk)) {}

  [[nodiscard]] std::string_view name() const override { return "memory"; }
  OpenedFile open(const std::filesystem::path& path, const OpenOptions& options) override {
    OpenedFile opened = disk_->open(path.native(), options);
    opened.id = FileId(static_cast<int>(paths_.size()));
    paths_.push_back(path.native());
    return opened;
  }
  void use_page_cache(FileId) override {}
  void start() override {}
  [[nodiscard]] std::uint64_t size_of(FileId file) override {
    return disk_->size_of(path_of(file));
  }
  [[nodiscard]] int register_buffers(std::span<const std::span<std::byte>>) override { return 0; }

  void push(const Piece& piece) override {
    const std::scoped_lock lock(disk_->mutex_);
    const int delay = disk_->options_.delay_max;
    queued_.push_back(
        {piece,
         delay > 0 ? static_cast<int>(disk_->draw(static_cast<std::uint64_t>(delay) + 1)) : 0});
  }

  /// Each call is a round: what has waited its rounds is due, at most half of it is returned.
  [[nodiscard]] std::size_t reap(std::span<Outcome> outcomes, bool block) override {
    std::size_t count = 0;
    do {
      for (Queued& queued : queued_) --queued.rounds;
      const std::size_t share = (queued_.size() + 1) / 2;
      while (count < std::min(share, outcomes.size())) {
        const std::size_t due = pick();
        if (due == queued_.size()) break;
        const Piece piece = queued_[due].piece;
        queued_.erase(queued_.begin() + static_cast<std::ptrdiff_t>(due));
        outcomes[count++] = {piece.slot, disk_->run(path_of(piece.file), piece)};
      }
    } while (block && count == 0 && !queued_.empty());
    return count;
  }

 private:
  struct Queued {
    Piece piece;
    int rounds = 0;
  };

  [[nodiscard]] const std::string& path_of(FileId file) const {
    return paths_[static_cast<std::size_t>(file.value)];
  }

  /// The index of a call that is due, or the number of calls when none is.
  [[nodiscard]] std::size_t pick() {
    const std::scoped_lock lock(disk_->mutex_);
    const std::size_t begin =
        disk_->options_.reorder && !queued_.empty() ? disk_->draw(queued_.size()) : 0;
    for (std::size_t i = 0; i < queued_.size(); ++i) {
      const std::size_t index = (begin + i) % queued_.size();
      if (queued_[index].rounds <= 0) return index;
    }
    return queued_.size();
  }

  std::shared_ptr<MemoryDisk> disk_;
  std::vector<std::string> paths_;
  std::vector<Queued> queued_;
};

std::unique_ptr<Driver> make_memory_driver(std::shared_ptr<MemoryDisk> disk) {
  return std::make_unique<MemoryDriver>(std::move(disk));
}

}  // namespace terrace::io
