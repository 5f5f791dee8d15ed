#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "terrace/checkpoint/state.h"

namespace terrace::runtime::testing {

/// The last token of the vocabulary has infinite weights; no batch has it but that of a step that
/// is to be skipped.
class WithInfiniteToken final : public checkpoint::StateSource {
 public:
  static constexpr std::int32_t kToken = 255;

  WithInfiniteToken(checkpoint::StateSource& source, std::int64_t hidden)
      : source_(source), first_(kToken * hidden) {}
  void read(StateKind kind, const std::string& tensor, std::int64_t first,
            std::span<float> values) override {
    source_.read(kind, tensor, first, values);
    if (kind != StateKind::master || tensor != "model.embed_tokens.weight") return;
    const auto count = static_cast<std::int64_t>(values.size());
    std::ranges::fill(
        values.subspan(static_cast<std::size_t>(std::clamp(first_ - first, {}, count))),
        std::numeric_limits<float>::infinity());
  }

 private:
  checkpoint::StateSource& source_;
  std::int64_t first_;
};

}  // namespace terrace::runtime::testing
