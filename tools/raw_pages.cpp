#include "raw_pages.h"

#include <algorithm>
#include <numeric>

#include "terrace/core/error.h"
#include "terrace/io/page_channel.h"

namespace terrace::tools {

RawPages::RawPages(std::span<const std::filesystem::path> folders, const io::EngineOptions& engine,
                   std::uint64_t pages, std::uint64_t page_bytes, Log& log)
    : page_bytes_(page_bytes),
      block_bytes_(engine.piece_bytes),
      in_second_half_(pages),
      transfers_(io::ChannelOptions{}.pages_max) {
  io::EngineOptions wanted = engine;
  wanted.files_max = static_cast<int>(folders.size());
  wanted.requests_max = transfers_.size() * ((page_bytes + block_bytes_ - 1) / block_bytes_);
  engine_ = io::make_engine(wanted, log);
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
  Transfer& transfer = transfers_[tag];
  transfer = {kind, memory.first(page_bytes_), 0};
  const std::uint64_t offset =
      page.value / files_.size() * page_bytes_ + (in_second_half_[page.value] ? half_bytes_ : 0);
  for (std::uint64_t begin = 0; begin < page_bytes_; begin += block_bytes_) {
    const io::Request request{.kind = kind,
                              .file = files_[page.value % files_.size()],
                              .offset = offset + begin,
                              .data = memory.data() + begin,
                              .size = std::min(block_bytes_, page_bytes_ - begin),
                              .token = tag};
    require(engine_->submit({&request, 1}) == 1, ErrorKind::internal, "the engine has no room");
    ++transfer.blocks_left;
  }
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
  std::size_t count = 0;
  while (count == 0 && in_flight() > 0) {
    const std::size_t found = engine_->wait(std::span(completions_).first(room), 1);
    for (const io::Completion& done : std::span(completions_).first(found)) {
      require(done.error == 0, ErrorKind::io, "{}", done.message);
      Transfer& transfer = transfers_[done.token];
      if (--transfer.blocks_left > 0) continue;
      if (looks_ && transfer.kind == io::Operation::read) add_up(transfer.memory);
      done_tags[count++] = done.token;
    }
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
