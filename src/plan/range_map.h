#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace terrace::plan {

/// A number for each byte of an address space, where one has been given, in parts of equal numbers:
/// what it takes and costs goes by the parts, and giving a range a number makes it one.
class RangeMap {
 public:
  static constexpr std::int64_t kNone = -1;

  /// Calls `function(part_begin, part_end, number)` for the parts of [begin, end) in ascending
  /// order; the number is `kNone` where none has been given. The map must not change meanwhile.
  template <class Function>
  void for_each(std::uint64_t begin, std::uint64_t end, Function&& function) const {
    auto part = parts_.upper_bound(begin);
    if (part != parts_.begin() && std::prev(part)->second.end > begin) --part;
    for (; begin < end && part != parts_.end() && part->first < end; ++part) {
      if (begin < part->first) function(begin, part->first, kNone);
      begin = std::max(begin, part->first);
      const std::uint64_t part_end = std::min(end, part->second.end);
      function(begin, part_end, part->second.number);
      begin = part_end;
    }
    if (begin < end) function(begin, end, kNone);
  }

  /// Gives the range a number other than `kNone`; an empty range is none.
  void assign(std::uint64_t begin, std::uint64_t end, std::int64_t number) {
    if (begin >= end) return;
    parts_.emplace_hint(clear(begin, end), begin, Part{end, number});
  }
  /// Takes the numbers of the range, which may be empty.
  void erase(std::uint64_t begin, std::uint64_t end) {
    if (begin < end && !parts_.empty()) clear(begin, end);
  }

 private:
  struct Part {
    std::uint64_t end = 0;
    std::int64_t number = kNone;
  };
  using Parts = std::map<std::uint64_t, Part>;  // by begin

  /// Takes the numbers from [begin, end); returns the first part behind it.
  Parts::iterator clear(std::uint64_t begin, std::uint64_t end) {
    auto part = parts_.upper_bound(begin);
    if (part != parts_.begin() && std::prev(part)->second.end > begin) --part;
    while (part != parts_.end() && part->first < end) {
      const Part whole = part->second;
      if (part->first < begin) {
        part->second.end = begin;
        ++part;
      } else {
        part = parts_.erase(part);
      }
      if (whole.end > end) return parts_.emplace_hint(part, end, whole);
    }
    return part;
  }

  Parts parts_;
};

}  // namespace terrace::plan
