#include "bench_disk.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/random.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/checksum.h"
#include "terrace/io/page_channel.h"
#include "terrace/io/run_folder.h"

namespace terrace::tools {
namespace {

namespace fs = std::filesystem;

enum class Pass { read, write, mixed };

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Times and CPU seconds of one kind of pass.
struct Samples {
  std::vector<double> gb_per_s;
  std::vector<double> cpu_seconds_per_gib;
};

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - static_cast<double>(below));
}

Spread spread(const std::vector<double>& values) {
  return {quantile(values, 0.5), quantile(values, 0.05), quantile(values, 0.95)};
}

/// The store, its memory and the way through it.
class Bench {
 public:
  Bench(const DiskBenchOptions& options, Log& log)
      : options_(options),
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
    try {
      folder_.remove();
    } catch (const Error&) {  // What is left is listed by `terrace swap ls`.
    }
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  [[nodiscard]] io::Capabilities capabilities() const { return channel_->capabilities(); }
  [[nodiscard]] io::PageStore::CommitTimes last_commit() const { return store_->last_commit(); }

  /// Moves every page once and, where the pass writes, commits.
  void run(Pass pass, Samples* samples) {
    const double cpu_start = cpu_seconds();
    const std::int64_t start_us = now_us();
    move_pages(pass);
    if (pass != Pass::read) store_->commit(Version(++version_), {});
    const double seconds = seconds_since(start_us);
    const auto bytes = static_cast<double>(pages_ * page_bytes_);
    if (samples == nullptr) return;
    samples->gb_per_s.push_back(bytes / seconds * 1e-9);
    samples->cpu_seconds_per_gib.push_back((cpu_seconds() - cpu_start) / bytes *
                                           static_cast<double>(kGiB));
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
    memory_ = io::AlignedMemory(slots * page_bytes_);
    const RandomStream random(1, 2);
    for (std::size_t word = 0; word < memory_.size() / 8; ++word) {
      const std::uint64_t bits = random.bits(word);
      std::memcpy(memory_.data() + word * 8, &bits, 8);
    }
    for (std::uint64_t slot = 0; slot < slots; ++slot) free_.push_back(slot);
    const std::span<std::byte> all[] = {memory_.span()};
    channel_->register_buffers(all);
  }

  void move_pages(Pass pass) {
    std::uint64_t tags[64];
    for (std::uint64_t next = 0; next < pages_ || channel_->in_flight() > 0;) {
      while (next < pages_ && !free_.empty()) {
        start(pass, next++);
      }
      const std::size_t count = channel_->wait(tags);
      free_.insert(free_.end(), tags, tags + count);
    }
  }

  void start(Pass pass, std::uint64_t page) {
    const std::uint64_t slot = free_.back();
    free_.pop_back();
    const auto target = memory_.span().subspan(slot * page_bytes_, page_bytes_);
    if (pass == Pass::read || (pass == Pass::mixed && page % 2 == 0)) {
      channel_->read(io::PageId(page), target, slot);
      return;
    }
    // A drive that finds equal blocks would not write them: each gets a number of its own.
    for (std::size_t place = 0; place < target.size(); place += 4096) {
      ++stamp_;
      std::memcpy(target.data() + place, &stamp_, sizeof(stamp_));
    }
    channel_->write(io::PageId(page), target, slot);
  }

  DiskBenchOptions options_;
  std::uint64_t page_bytes_;
  std::uint64_t pages_;
  io::RunFolder folder_;
  std::unique_ptr<io::PageStore> store_;
  std::unique_ptr<io::PageChannel> channel_;
  io::AlignedMemory memory_;
  std::vector<std::uint64_t> free_;
  std::uint64_t stamp_ = 0;
  std::int64_t version_ = 0;
};

/// CPU seconds a GiB of the checksum alone, over as much memory as a drive's queue has, so that the
/// data comes from where it comes from in a run.
double checksum_cost(const DiskBenchOptions& options) {
  constexpr std::uint64_t kBlock = io::PageStore::kBlockBytes;
  const io::AlignedMemory memory(options.block * static_cast<std::uint64_t>(options.depth));
  std::memset(memory.data(), 1, memory.size());
  const double start = cpu_seconds();
  std::uint64_t sum = 0;
  std::uint64_t bytes = 0;
  while (bytes < kGiB / 4) {
    for (std::size_t place = 0; place < memory.size(); place += kBlock) {
      sum = io::crc64(memory.span().subspan(place, kBlock), sum);
    }
    bytes += memory.size();
  }
  const double seconds = cpu_seconds() - start + (sum == 0 ? 1e-12 : 0);  // The sum is used.
  return seconds / static_cast<double>(bytes) * static_cast<double>(kGiB);
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

DriveDescription describe_drive(const fs::path& path) {
  DriveDescription drive{.path = path.string(), .device = "", .model = ""};
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return drive;
  std::error_code code;
  fs::path device = fs::canonical(
      fmt::format("/sys/dev/block/{}:{}", major(status.st_dev), minor(status.st_dev)), code);
  if (code) return drive;
  if (fs::exists(device / "partition")) device = device.parent_path();
  drive.device = device.filename().string();
  drive.model = first_line(device / "device/model");
  drive.rotational = first_line(device / "queue/rotational") == "1";
  for (fs::path at = fs::canonical(device / "device", code); !code && at.has_relative_path();
       at = at.parent_path()) {
    const std::string node = first_line(at / "numa_node");
    if (node.empty()) continue;
    drive.numa_node = std::atoi(node.c_str());
    break;
  }
  return drive;
}

std::string fio_job(const DiskBenchOptions& options, bool direct) {
  std::string files;
  for (const fs::path& path : options.paths) {
    files += (files.empty() ? "" : ":") + (path / "fio.tmp").string();
  }
  std::string text = fmt::format(
      "[global]\nioengine=io_uring\ndirect={}\nbs={}\niodepth={}\nsize={}\nfilename={}\n"
      "refill_buffers=0\nend_fsync=1\n",
      direct ? 1 : 0, options.block, options.depth * static_cast<int>(options.paths.size()),
      options.size, files);
  for (const char* kind : {"write", "read", "rw"}) {
    text += fmt::format("[{}]\nrw={}\nstonewall\n", kind, kind);
  }
  return text;
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

DiskBenchResult bench_disk(const DiskBenchOptions& options, Log& log) {
  check(options);
  Bench bench(options, log);
  bench.run(Pass::write, nullptr);
  require(bench.capabilities().direct || options.buffered, ErrorKind::io,
          "{} refuses O_DIRECT, so that the page cache would be measured and not the drive; name a "
          "folder on a local file system, or add --buffered",
          options.paths[0].string());
  bench.run(Pass::write, nullptr);  // The other extents: space that is new costs more to write.
  Samples read, write, mixed;
  std::vector<double> flush, manifest;
  const std::int64_t start_us = now_us();
  int count = 0;
  while (count < options.repetitions || seconds_since(start_us) < options.runtime_seconds) {
    bench.run(Pass::read, &read);
    bench.run(Pass::write, &write);
    flush.push_back(bench.last_commit().flush_seconds);
    manifest.push_back(bench.last_commit().manifest_seconds);
    bench.run(Pass::mixed, &mixed);
    ++count;
  }
  const io::Capabilities capabilities = bench.capabilities();
  DiskBenchResult result{.options = options,
                         .read_gb_per_s = spread(read.gb_per_s),
                         .write_gb_per_s = spread(write.gb_per_s),
                         .mixed_gb_per_s = spread(mixed.gb_per_s),
                         .repetitions = count,
                         .engine = std::string(capabilities.driver),
                         .direct = capabilities.direct,
                         .registered = capabilities.registered,
                         .read_cpu_seconds_per_gib = quantile(read.cpu_seconds_per_gib, 0.5),
                         .write_cpu_seconds_per_gib = quantile(write.cpu_seconds_per_gib, 0.5),
                         .mixed_cpu_seconds_per_gib = quantile(mixed.cpu_seconds_per_gib, 0.5),
                         .checksum_cpu_seconds_per_gib = checksum_cost(options),
                         .flush_seconds = quantile(flush, 0.5),
                         .manifest_seconds = quantile(manifest, 0.5),
                         .drives = {},
                         .fallbacks = log.fallbacks(),
                         .fio_job = fio_job(options, capabilities.direct)};
  for (const fs::path& path : options.paths) result.drives.push_back(describe_drive(path));
  return result;
}

std::string to_json(const DiskBenchResult& result) {
  using Json = nlohmann::ordered_json;
  const auto of = [](const Spread& s) {
    return Json{{"median", s.median}, {"p5", s.p5}, {"p95", s.p95}};
  };
  Json drives = Json::array();
  for (const DriveDescription& drive : result.drives) {
    drives.push_back({{"path", drive.path},
                      {"device", drive.device},
                      {"model", drive.model},
                      {"rotational", drive.rotational},
                      {"numa_node", drive.numa_node}});
  }
  const Json json = {{"schema", "terrace.bench.disk/1"},
                     {"read_gb_per_s", of(result.read_gb_per_s)},
                     {"write_gb_per_s", of(result.write_gb_per_s)},
                     {"mixed_gb_per_s", of(result.mixed_gb_per_s)},
                     {"repetitions", result.repetitions},
                     {"size", result.options.size},
                     {"block", result.options.block},
                     {"depth", result.options.depth},
                     {"engine", result.engine},
                     {"direct", result.direct},
                     {"registered", result.registered},
                     {"read_cpu_seconds_per_gib", result.read_cpu_seconds_per_gib},
                     {"write_cpu_seconds_per_gib", result.write_cpu_seconds_per_gib},
                     {"mixed_cpu_seconds_per_gib", result.mixed_cpu_seconds_per_gib},
                     {"checksum_cpu_seconds_per_gib", result.checksum_cpu_seconds_per_gib},
                     {"flush_seconds", result.flush_seconds},
                     {"manifest_seconds", result.manifest_seconds},
                     {"drives", drives},
                     {"fallbacks", result.fallbacks},
                     {"fio_job", result.fio_job}};
  return json.dump(2) + "\n";
}

std::string to_table(const DiskBenchResult& result) {
  std::string text =
      fmt::format("{:8}{:>14}{:>10}{:>10}{:>16}\n", "", "GB/s, median", "p5", "p95", "CPU s / GiB");
  const auto add = [&](const char* name, const Spread& rate, double cpu) {
    text += fmt::format("{:8}{:>14.3f}{:>10.3f}{:>10.3f}{:>16.3f}\n", name, rate.median, rate.p5,
                        rate.p95, cpu);
  };
  add("read", result.read_gb_per_s, result.read_cpu_seconds_per_gib);
  add("write", result.write_gb_per_s, result.write_cpu_seconds_per_gib);
  add("mixed", result.mixed_gb_per_s, result.mixed_cpu_seconds_per_gib);
  text += fmt::format(
      "{} repetitions of {} in blocks of {}, depth {}; {}, {}, buffers {}\n"
      "of the CPU time {:.3f} s / GiB are the checksums'; a commit flushes for {}, writes the "
      "manifest for {}\n",
      result.repetitions, format_bytes(result.options.size), format_bytes(result.options.block),
      result.options.depth, result.engine,
      result.direct ? "O_DIRECT" : "through the page cache, which is what was measured",
      result.registered ? "registered" : "not registered", result.checksum_cpu_seconds_per_gib,
      format_duration(result.flush_seconds), format_duration(result.manifest_seconds));
  for (const DriveDescription& drive : result.drives) {
    text += fmt::format("{}: {} {}{}, NUMA node {}\n", drive.path,
                        drive.device.empty() ? "no local drive" : drive.device, drive.model,
                        drive.rotational ? " (rotational)" : "",
                        drive.numa_node < 0 ? "not known" : std::to_string(drive.numa_node));
  }
  return text + "\nThe same with fio, from a file of this:\n\n" + result.fio_job;
}

}  // namespace terrace::tools
