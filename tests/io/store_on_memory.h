#pragma once

#include <memory>
#include <utility>

#include "terrace/io/memory_disk.h"
#include "terrace/io/page_store.h"

namespace terrace::testing {

/// Options of a page store on a disk in memory.
inline io::PageStoreOptions on_memory(std::shared_ptr<io::MemoryDisk> disk) {
  io::PageStoreOptions options;
  options.engine_factory = [disk = std::move(disk)](const io::EngineOptions& engine, Log& log) {
    return std::make_unique<io::Engine>(io::make_memory_driver(disk), engine, log);
  };
  return options;
}

}  // namespace terrace::testing
