#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "terrace/core/log.h"
#include "terrace/io/engine.h"
#include "terrace/io/page_store.h"

namespace terrace::tools {

/// Pages in plain files, moved by the same engine as a page store's and by nothing else: no
/// checksums, no versions, no manifest. What a page store costs is measured against this, so it
/// writes each page beside its last contents as well (a drive may treat space that it has just
/// written unlike other space), and starts its blocks one by one (the kernel would join what is
/// started at once into longer transfers). It has the calls of `io::PageChannel` that the benchmark
/// needs. Single-owner.
class RawPages {
 public:
  /// Reserves a file of its share of twice `pages` pages of `page_bytes` in each folder.
  /// Errors: as `io::Engine::open`.
  RawPages(std::span<const std::filesystem::path> folders, const io::EngineOptions& engine,
           std::uint64_t pages, std::uint64_t page_bytes, Log& log);

  /// Look at each byte of the pages from now on, as a checksum has to: a sum of its words, when a
  /// page was read and before one is written.
  void look(bool looks) { looks_ = looks; }

  void register_buffers(std::span<const std::span<std::byte>> buffers);
  void read(io::PageId page, std::span<std::byte> target, std::uint64_t tag);
  void write(io::PageId page, std::span<std::byte> source, std::uint64_t tag);
  /// As `io::PageChannel::wait`. Errors: `io`.
  [[nodiscard]] std::size_t wait(std::span<std::uint64_t> done_tags);
  [[nodiscard]] std::size_t in_flight() const { return engine_->in_flight(); }
  /// Makes what was written durable; nothing is in flight.
  void flush();

 private:
  /// A page on its way.
  struct Transfer {
    io::Operation kind = io::Operation::read;
    std::span<std::byte> memory;
    std::uint64_t blocks_left = 0;
  };

  void start(io::Operation kind, io::PageId page, std::span<std::byte> memory, std::uint64_t tag);
  void add_up(std::span<const std::byte> memory);

  std::uint64_t page_bytes_;
  std::uint64_t block_bytes_;
  std::vector<bool> in_second_half_;  ///< of its file, by page
  std::unique_ptr<io::Engine> engine_;
  std::vector<io::FileId> files_;
  std::uint64_t half_bytes_ = 0;     ///< of a file
  std::vector<Transfer> transfers_;  ///< by tag
  std::vector<io::Completion> completions_;
  bool looks_ = false;
  std::uint64_t sum_ = 0;  ///< kept, so that the sum is not left out
};

}  // namespace terrace::tools
