#include "terrace/io/page_store.h"

#include <array>
#include <cstring>

#include "file_table.h"
#include "manifest.h"
#include "page_table.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/drive_rates.h"
#include "terrace/io/file.h"
#include "terrace/io/free_space.h"
#include "terrace/io/page_channel.h"

namespace terrace::io {
namespace {

constexpr const char* kDataName = "pages";
constexpr const char* kScratchName = "scratch";
constexpr std::uint64_t kDataMagic = 0x3150474154434552ULL;

/// The manifest's name until it is whole.
constexpr const char* kUnfinishedName = "manifest.new";

/// The first bytes of a data file: which store it is of, and which of its files.
using DataHeader = std::array<std::uint64_t, 5>;

DataHeader header_of(const StoreId& id, std::size_t file) {
  return {kDataMagic, id.store, file, id.run.high, id.run.low};
}

std::vector<double> weights_of(std::span<const StoreFolder> folders) {
  std::vector<double> weights;
  for (const StoreFolder& folder : folders) {
    require(folder.weight > 0, ErrorKind::usage,
            "the weight of folder {} is {}, but must be above 0", folder.path.native(),
            folder.weight);
    weights.push_back(folder.weight);
  }
  return weights;
}

void require_space(std::span<const std::filesystem::path> folders,
                   std::span<const std::uint64_t> file_bytes, std::uint64_t manifest_bytes) {
  std::vector<SpaceNeed> needs;
  for (std::size_t file = 0; file < folders.size(); ++file) {
    needs.push_back({folders[file], file_bytes[file] + (file == 0 ? manifest_bytes : 0)});
  }
  require_free_space(needs);
}

void remove_scratch(const std::filesystem::path& folder) {
  const std::error_code code = remove_with_space(folder / kScratchName);
  require(!code, ErrorKind::io, "cannot remove {}: {}", (folder / kScratchName).string(),
          reason_of(code.value()));
}

}  // namespace

PageStore::PageStore(std::vector<std::filesystem::path> folders, const PageStoreOptions& options,
                     Log& log)
    : options_(options), log_(log), folders_(std::move(folders)) {
  require(options_.engine.piece_bytes % kBlockBytes == 0, ErrorKind::usage,
          "the I/O block size is {} bytes, but a multiple of {} is expected, because a checksum "
          "covers that much",
          options_.engine.piece_bytes, kBlockBytes);
  engine_ = new_small_engine();
}

PageStore::~PageStore() {
  // What cannot be removed is left to the next open, which says so.
  for (std::size_t file = 0; scratch_ && file < folders_.size(); ++file) {
    if (!options_.engine_factory) (void)remove_with_space(folders_[file] / kScratchName);
  }
}

std::unique_ptr<Engine> PageStore::new_engine(EngineOptions options) const {
  options.files_max = 2 * static_cast<int>(folders_.size()) + 1;  // and the manifest
  return options_.engine_factory ? options_.engine_factory(options, log_)
                                 : make_engine(options, log_);
}

std::unique_ptr<Engine> PageStore::new_small_engine() const {
  EngineOptions options = options_.engine;
  options.depth = 8;
  options.requests_max = 64;
  options.sqpoll = false;
  return new_engine(options);
}

std::unique_ptr<PageStore> PageStore::create(std::span<const StoreFolder> folders,
                                             std::span<const PageSpec> pages,
                                             const PageStoreOptions& options, Log& log) {
  require(!folders.empty(), ErrorKind::internal, "a page store needs a folder");
  require(options.extents_per_page == 1 || options.extents_per_page == 2, ErrorKind::internal,
          "a page has 1 or 2 extents, not {}", options.extents_per_page);
  std::vector<std::filesystem::path> paths;
  for (const StoreFolder& folder : folders) paths.push_back(folder.path);
  const bool on_files = !options.engine_factory;
  const std::vector<double> weights = weights_of(folders);
  if (on_files) {
    // Before the table, whose own memory a size that was mistyped could exhaust.
    for (const auto& path : paths) require_writable_folder(path);
    require_space(paths, data_file_bytes(pages, weights, options.extents_per_page), 0);
  }
  auto table = std::make_unique<PageTable>(std::vector<PageSpec>(pages.begin(), pages.end()),
                                           weights, options.extents_per_page);
  const Phases phases = options.phases.value_or(Phases::mixed);
  StoreId id = options.id;
  if (id.store == 0) id.store = draw_bits();
  if (on_files) {
    require_space(paths, table->file_bytes(),
                  Manifest::file_bytes(*table, {id, options.run_state_bytes_max, phases, paths}));
  }
  std::unique_ptr<PageStore> store(new PageStore(std::move(paths), options, log));
  store->table_ = std::move(table);
  store->weights_ = weights;
  store->phases_ = phases;
  store->create_data_files(id);
  if (on_files) {
    for (const auto& folder : store->folders_) sync_folder(folder);
  }
  store->create_manifest(id);
  return store;
}

void PageStore::create_manifest(const StoreId& id) {
  const bool on_files = !options_.engine_factory;
  const std::filesystem::path place = folders_[0] / kManifestName;
  const std::filesystem::path made = on_files ? folders_[0] / kUnfinishedName : place;
  Manifest::make(*new_small_engine(), made, {id, options_.run_state_bytes_max, phases_, folders_},
                 *table_);
  if (on_files) rename_durably(made, place);
  manifest_ = std::make_unique<Manifest>(*engine_, place);
}

std::optional<PageStore::Head> PageStore::describe(const std::filesystem::path& folder) {
  if (const auto found = Manifest::describe(folder / kManifestName)) {
    return Head{found->id, found->folders, 0};
  }
  try {
    const InputFile file(folder / kDataName, ErrorKind::corrupt);
    DataHeader header{};
    file.read(0, std::as_writable_bytes(std::span(header)));
    const StoreId id{{header[3], header[4]}, header[1]};
    if (header == header_of(id, header[2]) && id.run) return Head{id, {}, header[2]};
  } catch (const Error&) {  // None can be read.
  }
  return std::nullopt;
}

bool PageStore::is_made(const std::filesystem::path& first_folder) {
  return is_there(first_folder / kManifestName);
}

std::unique_ptr<PageStore> PageStore::open(std::span<const std::filesystem::path> folders,
                                           const PageStoreOptions& options, Log& log) {
  require(!folders.empty(), ErrorKind::internal, "a page store needs a folder");
  std::vector<std::filesystem::path> paths(folders.begin(), folders.end());
  const bool on_files = !options.engine_factory && !options.beside_live_run;
  if (on_files) wait_for_silence(paths[0] / kManifestName);
  {
    // How many files there are is known only when the manifest is read.
    PageStore probe({paths[0]}, options, log);
    const Manifest manifest(*probe.engine_, paths[0] / kManifestName);
    const auto& known = manifest.description().folders;
    if (paths.size() == 1) paths.insert(paths.end(), known.begin() + 1, known.end());
    require(paths.size() == known.size(), ErrorKind::usage,
            "the page store in {} lies in {}, but {} were named", paths[0].string(),
            counted(known.size(), "folder"), paths.size());
  }
  std::unique_ptr<PageStore> store(new PageStore(std::move(paths), options, log));
  if (on_files) {
    for (const auto& folder : store->folders_) {
      wait_for_silence(folder / kDataName);
      remove_scratch(folder);
    }
  }
  store->open_data_files(*store->engine_);
  store->manifest_ =
      std::make_unique<Manifest>(*store->engine_, store->folders_[0] / kManifestName);
  store->phases_ = options.phases.value_or(store->manifest_->description().phases);
  store->table_ = store->manifest_->take_table();
  const auto& bytes = store->table_->file_bytes();  // in proportion to the weights it was made with
  store->weights_.assign(bytes.begin(), bytes.end());
  store->check_data_files();
  store->manifest_->restore(*store->table_, log);
  return store;
}

std::uint64_t PageStore::bytes_needed(std::span<const PageSpec> pages,
                                      const PageStoreOptions& options) {
  const double weight = 1;
  const PageTable table(std::vector<PageSpec>(pages.begin(), pages.end()), {&weight, 1},
                        options.extents_per_page);
  const Manifest::Description description{{}, options.run_state_bytes_max, Phases::mixed, {"/"}};
  return table.file_bytes()[0] + Manifest::file_bytes(table, description);
}

std::uint64_t PageStore::scratch_bytes_needed(std::span<const PageSpec> pages) {
  const double weight = 1;
  return pages.empty() ? 0 : data_file_bytes(pages, {&weight, 1}, 1)[0];
}

void PageStore::add_scratch(std::span<const PageSpec> pages) {
  require(!scratch_, ErrorKind::internal, "a page store is given scratch pages twice");
  require(channels_.load() == 0, ErrorKind::internal,
          "a page store is given scratch pages while a channel is open, which would not find them");
  if (pages.empty()) return;
  const bool on_files = !options_.engine_factory;
  std::vector<double> weights = weights_;
  if (on_files) {
    weights = within_free_space(std::move(weights), shares_of_free_bytes(folders_),
                                scratch_bytes_needed(pages));
  }
  auto scratch = std::make_unique<PageTable>(std::vector<PageSpec>(pages.begin(), pages.end()),
                                             weights, 1, static_cast<int>(folders_.size()));
  for (const PageSpec& page : pages) {
    require(!table_->find(page.id), ErrorKind::internal,
            "scratch page {} ({}) has the id of one that is kept", page.id.value, page.description);
  }
  if (on_files) require_space(folders_, scratch->file_bytes(), 0);
  scratch_ = std::move(scratch);  // now, so that a file goes too when the next one fails
  for (std::size_t file = 0; file < folders_.size(); ++file) {
    engine_->open(
        folders_[file] / kScratchName,
        {.create = true, .bytes = scratch_->file_bytes()[file], .progress = options_.progress});
  }
}

void PageStore::create_data_files(const StoreId& id) {
  const AlignedMemory block(kAlignment);
  for (std::size_t file = 0; file < folders_.size(); ++file) {
    const OpenedFile opened = engine_->open(
        folders_[file] / kDataName,
        {.create = true, .bytes = table_->file_bytes()[file], .progress = options_.progress});
    const DataHeader header = header_of(id, file);
    std::memset(block.data(), 0, block.size());
    std::memcpy(block.data(), header.data(), sizeof(header));
    transfer(*engine_, {Operation::write, opened.id, 0, block.data(), block.size(), 0});
    transfer(*engine_, {.kind = Operation::flush, .file = opened.id});
  }
}

std::filesystem::path PageStore::data_path(std::size_t file) const {
  const std::size_t folders = folders_.size();
  return folders_[file % folders] / (file < folders ? kDataName : kScratchName);
}

void PageStore::open_data_files(Engine& engine) const {
  const std::size_t files = (scratch_ ? 2 : 1) * folders_.size();
  for (std::size_t file = 0; file < files; ++file) engine.open(data_path(file), {});
}

PageTable& PageStore::table_of(PageId id) const {
  const bool is_scratch = scratch_ && scratch_->find(id).has_value();
  return is_scratch ? *scratch_ : *table_;
}

void PageStore::check_data_files() {
  const AlignedMemory block(kAlignment);
  for (std::size_t file = 0; file < folders_.size(); ++file) {
    transfer(*engine_,
             {Operation::read, FileId(static_cast<int>(file)), 0, block.data(), block.size(), 0});
    DataHeader header;
    std::memcpy(header.data(), block.data(), sizeof(header));
    require(header == header_of(manifest_->description().id, file), ErrorKind::corrupt,
            "{} is not file {} of the page store whose manifest is {}; name the folders that the "
            "store was made with, in that order",
            data_path(file).string(), file, (folders_[0] / kManifestName).string());
  }
}

std::span<const PageSpec> PageStore::pages() const { return table_->specs(); }
bool PageStore::contains(PageId id) const { return table_->find(id).has_value(); }
int PageStore::extents_per_page() const { return table_->extents(); }

std::optional<Version> PageStore::committed_version() const {
  const std::scoped_lock lock(commit_mutex_);
  return manifest_->version();
}

std::optional<Version> PageStore::committed_version(PageId id) const {
  const PageTable::Committed committed = table_->committed(table_->index_of(id));
  return committed.extent < 0 ? std::nullopt : std::optional(committed.version);
}

bool PageStore::was_torn() const {
  const std::scoped_lock lock(commit_mutex_);
  return manifest_->torn() && !table_->has_uncommitted();
}

std::vector<std::byte> PageStore::run_state() const {
  const std::scoped_lock lock(commit_mutex_);
  return {manifest_->run_state().begin(), manifest_->run_state().end()};
}

std::unique_ptr<PageChannel> PageStore::open_channel(const ChannelOptions& options) {
  return std::make_unique<PageChannel>(*this, options);
}

void PageStore::mark_torn() {
  const std::scoped_lock lock(commit_mutex_);
  if (!manifest_->torn()) manifest_->write_torn(*table_);
}

void PageStore::commit(Version version, std::span<const std::byte> run_state) {
  const std::scoped_lock lock(commit_mutex_);
  const auto last = manifest_->version();
  require(!last || version > *last, ErrorKind::internal,
          "version {} is to be committed after version {}", version.value, last ? last->value : 0);
  table_->begin_commit();
  try {
    const std::int64_t start_us = now_us();
    std::array<Completion, 16> done;
    for (std::size_t file = 0; file < folders_.size(); ++file) {
      const Request flush{.kind = Operation::flush, .file = FileId(static_cast<int>(file))};
      require(engine_->submit({&flush, 1}) == 1, ErrorKind::internal, "too many folders");
    }
    while (engine_->in_flight() > 0) {
      const std::size_t count = engine_->wait(done, 1);
      for (std::size_t i = 0; i < count; ++i) {
        require(done[i].error == 0, ErrorKind::io, "{}", done[i].message);
      }
    }
    last_commit_.flush_seconds = seconds_since(start_us);
    const std::int64_t flushed_us = now_us();
    manifest_->write(*table_, version, run_state);
    last_commit_.manifest_seconds = seconds_since(flushed_us);
  } catch (...) {
    table_->end_commit(std::nullopt);
    throw;
  }
  table_->end_commit(version);
}

void PageStore::discard() {
  require(table_->extents() == 2, ErrorKind::internal,
          "a store with one extent a page cannot drop what was written over it");
  table_->discard();
}

PageStore::CommitTimes PageStore::last_commit() const {
  const std::scoped_lock lock(commit_mutex_);
  return last_commit_;
}

Capabilities PageStore::capabilities() const {
  const std::scoped_lock lock(commit_mutex_);
  return engine_->capabilities();
}

}  // namespace terrace::io
