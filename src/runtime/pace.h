#pragma once

#include <cstdint>

namespace terrace::runtime {

/// The clock of a lane that is held to a rate, as if its work went over a link of that speed: piece
/// after piece, each for as long as its amount takes. Who finishes a piece sooner sleeps until it
/// is due, and what the sleep is too long the next piece makes good, so that the rate holds over
/// many. Pure arithmetic. Single-owner.
class Pace {
 public:
  /// Work a second; 0: not held.
  explicit Pace(double rate = 0) : rate_(rate) {}
  [[nodiscard]] bool holds() const { return rate_ > 0; }

  /// Puts `work` on the link at `now_us`, behind what is on it; returns when it is through.
  [[nodiscard]] std::int64_t put(double work, std::int64_t now_us);
  /// Who slept until `due_us` woke at `now_us`.
  void woke(std::int64_t due_us, std::int64_t now_us);

 private:
  double rate_;
  double free_us_ = 0;  ///< when all that is on the link is through
  double late_us_ = 0;  ///< slept too long, not yet made good
};

}  // namespace terrace::runtime
