#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace terrace {

/// Writes all of `text`, from its first byte to its last; waits for whoever reads the other end.
/// Returns 0, or the errno of what could not be written.
[[nodiscard]] int write_text(int descriptor, std::string_view text);

/// Text for people on a descriptor that may have nobody behind it: a pipe whose reader has died or
/// sleeps, a terminal that was held or went away, a full disk. Writing never fails and hardly ever
/// waits; what could not be written is counted. A thread of its own writes, since a write to a
/// descriptor that other processes share can block whatever was found out before it. Thread-safe.
class LineWriter {
 public:
  /// The descriptor outlives the writer.
  explicit LineWriter(int descriptor);
  /// Waits until all is written, as long as there is somebody who takes it.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  /// Usually the text is written on return. Where it cannot be written at once it waits its turn,
  /// and the caller does not; where too much waits already it is lost.
  void write(std::string text);

  /// What was written in vain.
  struct Losses {
    std::int64_t lines = 0;
    int error = 0;           ///< the first one's errno; EAGAIN: nobody has read them
    std::string since = {};  ///< UTC
  };
  /// Lines for which nobody has made room yet are among them.
  [[nodiscard]] Losses losses() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< with the thread, which a write may hold for ever
};

}  // namespace terrace
