#include "bench_disk.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "raw_pages.h"
#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/random.h"
#include "terrace/device/device.h"
#include "terrace/io/checksum.h"
#include "terrace/io/page_channel.h"
#include "terrace/io/run_folder.h"

namespace terrace::tools {
namespace {

namespace fs = std::filesystem;

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// The state on the drives, the memory it moves to and from, and the ways.
class Bench {
 public:
  Bench(const DiskBenchOptions& options, device::Device& device, train::Activity& measuring,
        Log& log)
      : options_(options),
        device_(device),
        measuring_(measuring),
        page_bytes_(std::max<std::uint64_t>(4 * kMiB, options.block)),
        pages_(std::max<std::uint64_t>(1, options.size / page_bytes_)),
        folder_(io::RunFolder::create(options.paths,
                                      {.owner = "terrace bench disk", .allow_memory = false})) {
    try {
      open(log);
    } catch (...) {
      folder_.remove();
      throw;
    }
  }
  ~Bench() {
    channel_.reset();
    store_.reset();
    raw_.reset();
    try {
      folder_.remove();
    } catch (const Error&) {  // What is left is listed by `terrace swap ls`.
    }
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  [[nodiscard]] io::Capabilities capabilities() const { return channel_->capabilities(); }
  [[nodiscard]] std::uint64_t bytes() const { return pages_ * page_bytes_; }

  /// Moves every page once and, where the pass writes, makes that durable.
  PassTimes run(Way way, Pass pass) {
    PassTimes times;
    const double cpu_start = cpu_seconds();
    const std::int64_t start_us = now_us();
    if (way == Way::store) {
      move_pages(*channel_, pass);
      if (pass != Pass::read) {
        store_->commit(Version(++version_), {});
        times.flush_seconds = store_->last_commit().flush_seconds;
        times.manifest_seconds = store_->last_commit().manifest_seconds;
      }
    } else {
      raw_->look(way == Way::looked);
      move_pages(*raw_, pass);
      const std::int64_t moved_us = now_us();
      if (pass != Pass::read) raw_->flush();
      times.flush_seconds = seconds_since(moved_us);
    }
    times.seconds = seconds_since(start_us);
    times.cpu_seconds = cpu_seconds() - cpu_start;
    return times;
  }

 private:
  void open(Log& log) {
    io::PageStoreOptions store;
    store.engine.driver = options_.driver;
    store.engine.depth = options_.depth;
    store.engine.piece_bytes = options_.block;
    store.engine.sqpoll = options_.sqpoll;
    store.flush_every_bytes = options_.flush_every_bytes;
    std::vector<io::StoreFolder> folders;
    for (const fs::path& path : folder_.paths()) folders.push_back({path, 1});
    std::vector<io::PageSpec> specs;
    for (std::uint64_t i = 0; i < pages_; ++i) {
      specs.push_back({io::PageId(i), page_bytes_, "bench"});
    }
    store_ = io::PageStore::create(folders, specs, store, log);
    channel_ = store_->open_channel();
    // As much memory as keeps every drive's queue full, and two pages for the turn-over.
    const std::uint64_t in_flight =
        static_cast<std::uint64_t>(options_.depth) * options_.block * folders.size();
    const std::uint64_t slots = std::min(pages_, in_flight / page_bytes_ + 2);
    require(slots <= io::ChannelOptions{}.pages_max, ErrorKind::usage,
            "--iodepth {} with --bs {} keeps more in flight than this measures", options_.depth,
            options_.block);
    if (options_.raw) {
      raw_ = std::make_unique<RawPages>(folder_.paths(), store.engine, pages_, page_bytes_, log);
    }
    fill_memory(slots);
  }

  /// The kind of memory that runs have, with other bits everywhere.
  void fill_memory(std::uint64_t slots) {
    memory_ = device_.allocate_pinned(slots * page_bytes_, "the pages in flight");
    const RandomStream random(1, 2);
    for (std::size_t word = 0; word < memory_.size() / 8; ++word) {
      const std::uint64_t bits = random.bits(word);
      std::memcpy(memory_.host().data() + word * 8, &bits, 8);
    }
    for (std::uint64_t slot = 0; slot < slots; ++slot) free_.push_back(slot);
    const std::span<std::byte> all[] = {memory_.host()};
    channel_->register_buffers(all);
    if (raw_) raw_->register_buffers(all);
  }

  /// `way` is the store's channel, or the engine alone.
  template <class Pages>
  void move_pages(Pages& way, Pass pass) {
    std::uint64_t tags[64];
    for (std::uint64_t next = 0; next < pages_ || way.in_flight() > 0;) {
      measuring_.check();
      while (next < pages_ && !free_.empty()) {
        start(way, pass, next++);
      }
      const std::size_t count = way.wait(tags);
      free_.insert(free_.end(), tags, tags + count);
    }
  }

  template <class Pages>
  void start(Pages& way, Pass pass, std::uint64_t page) {
    const std::uint64_t slot = free_.back();
    free_.pop_back();
    const auto target = memory_.host().subspan(slot * page_bytes_, page_bytes_);
    if (pass == Pass::read || (pass == Pass::mixed && page % 2 == 0)) {
      way.read(io::PageId(page), target, slot);
      return;
    }
    // A drive that finds equal blocks would not write them: each gets a number of its own.
    for (std::size_t place = 0; place < target.size(); place += 4096) {
      ++stamp_;
      std::memcpy(target.data() + place, &stamp_, sizeof(stamp_));
    }
    way.write(io::PageId(page), target, slot);
  }

  DiskBenchOptions options_;
  device::Device& device_;
  train::Activity& measuring_;
  std::uint64_t page_bytes_;
  std::uint64_t pages_;
  io::RunFolder folder_;
  std::unique_ptr<io::PageStore> store_;
  std::unique_ptr<io::PageChannel> channel_;
  std::unique_ptr<RawPages> raw_;
  device::Buffer memory_;
  std::vector<std::uint64_t> free_;
  std::uint64_t stamp_ = 0;
  std::int64_t version_ = 0;
};

/// CPU seconds a GiB of the checksum alone, over as much memory as a drive's queue has, so that the
/// data comes from where it comes from in a run.
double checksum_cost(const DiskBenchOptions& options, device::Device& device) {
  constexpr std::uint64_t kBlock = io::PageStore::kBlockBytes;
  const device::Buffer memory = device.allocate_pinned(
      options.block * static_cast<std::uint64_t>(options.depth), "what is checked");
  std::memset(memory.host().data(), 1, memory.size());
  const double start = cpu_seconds();
  std::uint64_t sum = 0;
  std::uint64_t bytes = 0;
  while (bytes < kGiB / 4) {
    for (std::size_t place = 0; place < memory.size(); place += kBlock) {
      sum = io::crc64(memory.host().subspan(place, kBlock), sum);
    }
    bytes += memory.size();
  }
  const double seconds = cpu_seconds() - start + (sum == 0 ? 1e-12 : 0);  // The sum is used.
  return seconds / static_cast<double>(bytes) * static_cast<double>(kGiB);
}

void check(const DiskBenchOptions& options) {
  require(!options.paths.empty(), ErrorKind::usage, "--path names no folder");
  require(options.block > 0 && options.block % io::PageStore::kBlockBytes == 0, ErrorKind::usage,
          "--bs is {} bytes, but a multiple of 256K is expected, because a checksum covers that "
          "much",
          options.block);
  require(options.depth > 0 && options.repetitions > 0, ErrorKind::usage,
          "--iodepth and --repetitions must be above 0");
  require(options.size >= options.block, ErrorKind::usage, "--size is below --bs");
}

}  // namespace

DiskBenchResult bench_disk(const DiskBenchOptions& options, device::Device& device,
                           train::Watch& watch, Log& log) {
  check(options);
  train::Activity measuring(watch, "measuring the drives");
  Bench bench(options, device, measuring, log);
  std::vector<Way> ways = {Way::store};
  if (options.raw) ways.insert(ways.end(), {Way::raw, Way::looked});
  (void)bench.run(Way::store, Pass::write);
  require(bench.capabilities().direct || options.buffered, ErrorKind::io,
          "{} refuses O_DIRECT, so that the page cache would be measured and not the drive; name a "
          "folder on a local file system, or add --buffered",
          options.paths[0].string());
  // The other extents, and the plain files: space that is new costs more to write.
  for (const Way way : ways) (void)bench.run(way, Pass::write);
  DiskBenchResult result;
  result.options = options;
  result.bytes = bench.bytes();
  const std::int64_t start_us = now_us();
  for (int count = 0;
       count < options.repetitions || seconds_since(start_us) < options.runtime_seconds; ++count) {
    for (const Pass pass : kPasses) {
      for (const Way way : ways) {
        result.times[way][static_cast<std::size_t>(pass)].push_back(bench.run(way, pass));
      }
    }
    std::ranges::reverse(ways);
  }
  const io::Capabilities capabilities = bench.capabilities();
  result.engine = std::string(capabilities.driver);
  result.direct = capabilities.direct;
  result.registered = capabilities.registered;
  result.checksum_cpu_seconds_per_gib = checksum_cost(options, device);
  result.fallbacks = log.fallbacks();
  for (const fs::path& path : options.paths) result.drives.push_back(describe_drive(path));
  return result;
}

}  // namespace terrace::tools
