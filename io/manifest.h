#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "page_table.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/engine.h"
#include "terrace/io/run_id.h"

namespace terrace::io {

/// The file that says what a store holds. From its front: one block that describes the rest, the
/// layout (folders, pages with descriptions, segments), and two slots that are written in turn. A
/// slot holds a sequence number, the version, for each page its extent, version and checksums, the
/// run state, and a checksum over all of it; the valid slot of the higher sequence counts. Numbers
/// are little-endian. Single-owner.
class Manifest {
 public:
  struct Description {
    StoreId id;  ///< the data files carry it too
    std::uint64_t run_state_bytes_max = 0;
    Phases phases = Phases::mixed;
    std::vector<std::filesystem::path> folders;
  };

  /// Makes the file, durable, with no slot written. Errors: `io`.
  static void make(Engine& engine, const std::filesystem::path& path,
                   const Description& description, const PageTable& table);
  /// What the file says of its store, read without an engine; none where it cannot be read, is no
  /// manifest, or one of another format.
  [[nodiscard]] static std::optional<Description> describe(const std::filesystem::path& path);
  /// Opens one; `take_table` then gives its layout, and `restore` its state. Errors: `io`;
  /// `corrupt` when it is no manifest, of another format, or damaged.
  Manifest(Engine& engine, const std::filesystem::path& path);

  [[nodiscard]] const Description& description() const { return description_; }
  [[nodiscard]] std::unique_ptr<PageTable> take_table() { return std::move(table_); }
  /// Reads the slots and gives the newest valid one to `table`. A slot that cannot be read is as
  /// one that is damaged, and is said to `log`. Errors: `corrupt` when slots were written, or may
  /// have been, and none is valid.
  void restore(PageTable& table, Log& log);

  /// Writes what the table would be at `version` to the older slot and makes it durable.
  void write(PageTable& table, Version version, std::span<const std::byte> run_state);
  /// Writes the committed state once more, marked as being overwritten.
  void write_torn(PageTable& table);

  [[nodiscard]] std::optional<Version> version() const { return version_; }
  [[nodiscard]] bool torn() const { return torn_; }
  [[nodiscard]] std::span<const std::byte> run_state() const { return run_state_; }

  [[nodiscard]] static std::uint64_t file_bytes(const PageTable& table,
                                                const Description& description);

 private:
  void decode_layout(std::span<const std::byte> layout, int extents);
  [[nodiscard]] std::optional<std::uint64_t> sequence_of(std::span<const std::byte> slot) const;
  void decode_slot(std::span<const std::byte> slot, PageTable& table);
  void write_slot(PageTable& table, std::optional<Version> next);
  [[nodiscard]] std::uint64_t slot_offset(std::uint64_t sequence) const;

  Engine& engine_;
  std::filesystem::path path_;
  Description description_;
  FileId file_;
  std::uint64_t front_bytes_ = 0;
  AlignedMemory slot_;  ///< the next one, being built
  std::unique_ptr<PageTable> table_;
  std::uint64_t sequence_ = 0;
  std::optional<Version> version_;
  bool torn_ = false;
  std::vector<std::byte> run_state_;
};

}  // namespace terrace::io
