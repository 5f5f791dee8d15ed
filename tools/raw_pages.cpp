#include "raw_pages.h"

#include <numeric>

#include "terrace/core/error.h"

namespace terrace::tools {

RawPages::RawPages(std::span<const std::filesystem::path> folders, const io::EngineOptions& engine,
                   std::uint64_t pages, std::uint64_t page_bytes, Log& log)
    : page_bytes_(page_bytes), in_second_half_(pages) {
  io::EngineOptions wanted = engine;
  wanted.files_max = static_cast<int>(folders.size());
  engine_ = io::make_engine(wanted, log);
  reading_.resize(wanted.requests_max);
  completions_.resize(wanted.requests_max);
  half_bytes_ = (pages + folders.size() - 1) / folders.size() * page_bytes;
  for (const std::filesystem::path& folder : folders) {
    const io::OpenedFile file =
        engine_->open(folder / "raw", {.create = true, .bytes = 2 * half_bytes_});
    files_.push_back(file.id);
  }
}

void RawPages::register_buffers(std::span<const std::span<std::byte>> buffers) {
  engine_->register_buffers(buffers);
}

void RawPages::start(io::Operation kind, io::PageId page, std::span<std::byte> memory,
                     std::uint64_t tag) {
  reading_[tag] = kind == io::Operation::read ? memory : std::span<std::byte>();
  const io::Request request{.kind = kind,
                            .file = files_[page.value % files_.size()],
                            .offset = page.value / files_.size() * page_bytes_ +
                                      (in_second_half_[page.value] ? half_bytes_ : 0),
                            .data = memory.data(),
                            .size = page_bytes_,
                            .token = tag};
  require(engine_->submit({&request, 1}) == 1, ErrorKind::internal, "the engine has no room");
}

void RawPages::read(io::PageId page, std::span<std::byte> target, std::uint64_t tag) {
  start(io::Operation::read, page, target, tag);
}

void RawPages::write(io::PageId page, std::span<std::byte> source, std::uint64_t tag) {
  if (looks_) add_up(source);
  in_second_half_[page.value].flip();
  start(io::Operation::write, page, source, tag);
}

std::size_t RawPages::wait(std::span<std::uint64_t> done_tags) {
  const std::size_t room = std::min(done_tags.size(), completions_.size());
  const std::size_t count = engine_->wait(std::span(completions_).first(room), 1);
  for (std::size_t i = 0; i < count; ++i) {
    const io::Completion& done = completions_[i];
    require(done.error == 0, ErrorKind::io, "{}", done.message);
    if (looks_) add_up(reading_[done.token]);
    done_tags[i] = done.token;
  }
  return count;
}

void RawPages::flush() {
  for (const io::FileId file : files_) {
    io::transfer(*engine_, {.kind = io::Operation::flush, .file = file});
  }
}

void RawPages::add_up(std::span<const std::byte> memory) {
  const std::span words(reinterpret_cast<const std::uint64_t*>(memory.data()), memory.size() / 8);
  sum_ = std::accumulate(words.begin(), words.end(), sum_);
}

}  // namespace terrace::tools
