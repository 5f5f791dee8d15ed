#pragma once

#include <cstdlib>
#include <string>

namespace terrace::testing {

/// While it lives, hwloc sees this machine instead of the real one: its synthetic notation, such as
/// "node:2 core:2 pu:1".
class MadeUpMachine {
 public:
  explicit MadeUpMachine(const std::string& description) {
    setenv("HWLOC_SYNTHETIC", description.c_str(), 1);
  }
  ~MadeUpMachine() { unsetenv("HWLOC_SYNTHETIC"); }
  MadeUpMachine(const MadeUpMachine&) = delete;
  MadeUpMachine& operator=(const MadeUpMachine&) = delete;
};

}  // namespace terrace::testing
