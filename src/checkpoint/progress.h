#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "terrace/checkpoint/state.h"

namespace terrace::checkpoint {

/// Counts bytes towards a total that is known first, and reports them.
class ProgressMeter {
 public:
  /// `report` outlives the meter.
  ProgressMeter(const ProgressFunction& report, std::uint64_t bytes_total)
      : report_(report), bytes_total_(bytes_total) {}
  ProgressMeter(ProgressFunction&& report, std::uint64_t bytes_total) = delete;

  void advance(std::string_view what, std::uint64_t bytes) {
    bytes_done_ += bytes;
    if (report_) report_({what, bytes_done_, bytes_total_});
  }

 private:
  const ProgressFunction& report_;
  std::uint64_t bytes_done_ = 0;
  std::uint64_t bytes_total_;
};

/// Calls `body(first, values)` for each piece of `elements`, with room for its values in `buffer`,
/// which is made large enough once.
template <class Body>
void for_each_piece(std::int64_t elements, std::vector<float>& buffer, Body&& body) {
  buffer.resize(static_cast<std::size_t>(kPieceElements));
  for (std::int64_t first = 0; first < elements; first += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, elements - first);
    body(first, std::span(buffer).first(static_cast<std::size_t>(count)));
  }
}

}  // namespace terrace::checkpoint
