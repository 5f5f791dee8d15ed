#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace terrace {

/// An integer that is not interchangeable with integers of another meaning. `Tag` names the
/// meaning; arithmetic goes through `value`.
template <class Tag, class Rep = std::int64_t>
struct Id {
  Rep value{};

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}

  friend constexpr auto operator<=>(Id, Id) = default;  // NOLINT(modernize-use-nullptr): its own 0
};

/// Sequence number of an optimizer step; the first step of a run is 1.
using Step = Id<struct StepTag>;
/// Version of stored state: the number of the step that wrote it; 0 is the initial state.
using Version = Id<struct VersionTag>;
/// Position of a process in its data-parallel group.
using Rank = Id<struct RankTag, int>;

}  // namespace terrace

template <class Tag, class Rep>
struct std::hash<terrace::Id<Tag, Rep>> {
  std::size_t operator()(terrace::Id<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
