#include "terrace/io/drive_rates.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "terrace/core/clock.h"
#include "terrace/core/error.h"
#include "terrace/core/log.h"
#include "terrace/core/random.h"
#include "terrace/core/units.h"
#include "terrace/io/aligned_memory.h"
#include "terrace/io/file.h"

namespace terrace::io {
namespace {

/// What mixing must lose before turns are taken: as much as turns may, each of which is four queues
/// long and ends with one that runs empty.
constexpr double kGainMin = 1.25;
/// A slow drive is measured with less than the whole file.
constexpr double kPassSecondsMax = 0.25;
/// Pieces of memory that all transfers share: nobody looks at what was read.
constexpr std::uint64_t kMemoryPieces = 4;
/// What stays free for the manifest and the rounding to blocks.
constexpr double kUsableShare = 0.98;

/// A file that is moved piece by piece.
class Probe {
 public:
  Probe(const std::filesystem::path& file, std::uint64_t bytes, const EngineOptions& options,
        Log& log)
      : piece_bytes_(options.piece_bytes),
        pieces_(bytes / options.piece_bytes),
        depth_(static_cast<std::uint64_t>(options.depth)),
        memory_(kMemoryPieces * options.piece_bytes),
        engine_(make_engine(options, log)),
        file_(engine_->open(file, {.create = true, .bytes = bytes}).id) {
    const RandomStream random(1, 3);
    for (std::size_t word = 0; word < memory_.size() / 8; ++word) {
      const std::uint64_t bits = random.bits(word);
      std::memcpy(memory_.data() + word * 8, &bits, 8);
    }
    const std::span<std::byte> all[] = {memory_.span()};
    engine_->register_buffers(all);
  }

  /// Moves pieces from the front, `kind_of(piece)` each, until the file or the time is over; what
  /// is written is made durable. Returns bytes a second. Later passes move no more than the first.
  template <class KindOf>
  double run(KindOf kind_of) {
    const std::int64_t start_us = now_us();
    std::vector<Completion> done(depth_);
    std::uint64_t next = 0;
    do {
      while (next < pieces_ && engine_->room() > 0 && seconds_since(start_us) < kPassSecondsMax) {
        start(kind_of(next), next);
        ++next;
      }
      const std::size_t count = engine_->wait(done, 1);
      for (std::size_t i = 0; i < count; ++i) {
        require(done[i].error == 0, ErrorKind::io, "{}", done[i].message);
      }
    } while (engine_->in_flight() > 0);
    transfer(*engine_, {.kind = Operation::flush, .file = file_});
    pieces_ = next;
    return static_cast<double>(next * piece_bytes_) / seconds_since(start_us);
  }

 private:
  void start(Operation kind, std::uint64_t piece) {
    const Request request{.kind = kind,
                          .file = file_,
                          .offset = piece * piece_bytes_,
                          .data = memory_.data() + piece % kMemoryPieces * piece_bytes_,
                          .size = piece_bytes_};
    require(engine_->submit({&request, 1}) == 1, ErrorKind::internal, "the engine has no room");
  }

  std::uint64_t piece_bytes_;
  std::uint64_t pieces_;
  std::uint64_t depth_;
  AlignedMemory memory_;
  std::unique_ptr<Engine> engine_;
  FileId file_;
};

}  // namespace

DriveRates measure_drive(const std::filesystem::path& folder, std::uint64_t bytes,
                         const EngineOptions& options) {
  EngineOptions wanted = options;
  wanted.files_max = 1;
  wanted.requests_max = static_cast<std::size_t>(options.depth);
  const std::filesystem::path file = folder / "probe";
  struct Removal {
    const std::filesystem::path& file;
    ~Removal() { (void)remove_with_space(file); }
  } const removal{file};
  Log silent([](LogLevel, std::string_view) {});
  Probe probe(file, std::max(bytes, wanted.piece_bytes), wanted, silent);
  const auto writes = [](std::uint64_t) { return Operation::write; };
  (void)probe.run(writes);  // Space that is new costs more to write.
  DriveRates rates;
  rates.write = probe.run(writes);
  rates.read = probe.run([](std::uint64_t) { return Operation::read; });
  rates.mixed =
      probe.run([](std::uint64_t piece) { return piece % 2 ? Operation::write : Operation::read; });
  return rates;
}

bool better_apart(std::span<const DriveRates> drives) {
  double apart = 0, mixed = 0;
  for (const DriveRates& drive : drives) {
    apart += drive.apart();
    mixed += drive.mixed;
  }
  return apart > kGainMin * mixed;
}

std::vector<double> weights_of(std::span<const DriveRates> drives, bool apart) {
  std::vector<double> weights;
  for (const DriveRates& drive : drives) {
    weights.push_back(apart ? drive.apart() : drive.mixed);
  }
  return weights;
}

std::vector<double> within_free_space(std::vector<double> weights,
                                      std::span<const std::uint64_t> free, std::uint64_t bytes) {
  std::vector<double> limits;
  for (const std::uint64_t drive : free) {
    // Above nothing, so that a drive that is full is refused by name and not as one of no weight.
    limits.push_back(
        std::max(1e-6, kUsableShare * static_cast<double>(drive) / static_cast<double>(bytes)));
  }
  const double room = std::accumulate(limits.begin(), limits.end(), 0.0);
  if (room <= 1) return limits;
  std::vector<double> shares(weights.size());
  double left = 1;
  // Each round gives all that is left and takes back what is above a limit; a drive that is full
  // takes part no more, so that there are no more rounds than drives.
  while (left > 1e-9) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double given = left;
    for (std::size_t drive = 0; drive < shares.size(); ++drive) {
      const double share = std::min(limits[drive], shares[drive] + given * weights[drive] / sum);
      left -= share - shares[drive];
      shares[drive] = share;
      if (share >= limits[drive]) weights[drive] = 0;
    }
  }
  return shares;
}

}  // namespace terrace::io
