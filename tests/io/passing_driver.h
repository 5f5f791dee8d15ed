#pragma once

#include <memory>
#include <utility>

#include "terrace/io/driver.h"

namespace terrace::testing {

/// A driver that passes everything on to another one: the base of those that change or watch some
/// of it.
class PassingDriver : public io::Driver {
 public:
  explicit PassingDriver(std::unique_ptr<io::Driver> driver) : driver_(std::move(driver)) {}

  [[nodiscard]] std::string_view name() const override { return driver_->name(); }
  io::OpenedFile open(const std::filesystem::path& path, const io::OpenOptions& options) override {
    return driver_->open(path, options);
  }
  void use_page_cache(io::FileId file) override { driver_->use_page_cache(file); }
  [[nodiscard]] std::uint64_t size_of(io::FileId file) override { return driver_->size_of(file); }
  [[nodiscard]] int register_buffers(std::span<const std::span<std::byte>> buffers) override {
    return driver_->register_buffers(buffers);
  }
  void push(const io::Piece& piece) override { driver_->push(piece); }
  void start() override { driver_->start(); }
  [[nodiscard]] std::size_t reap(std::span<io::Outcome> outcomes, bool block) override {
    return driver_->reap(outcomes, block);
  }

 protected:
  std::unique_ptr<io::Driver> driver_;
};

}  // namespace terrace::testing
