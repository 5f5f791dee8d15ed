#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr std::uint64_t kKiB = 1ULL << 10;
inline constexpr std::uint64_t kMiB = 1ULL << 20;
inline constexpr std::uint64_t kGiB = 1ULL << 30;

/// The smallest multiple of `unit` (any positive number) that is at least `value`.
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// "1.50 GiB", "312 B": powers of two, always with the unit.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);
/// "1.23 GB/s": powers of ten.
[[nodiscard]] std::string format_rate(double bytes_per_second);
/// "1.10e9" style counts for people: "124M", "1.10B", "4,096".
[[nodiscard]] std::string format_count(std::uint64_t count);
/// "1 file", "2 files"; `many` where the word for several has not just an s more.
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view one,
                                  std::string_view many = {});
/// "850 ms", "3.2 s", "4 min 10 s", "2 h 5 min".
[[nodiscard]] std::string format_duration(double seconds);

/// Parses a size. `64G` and `64GiB` are 2^30 (as fio, Docker and Slurm have it), `64GB` is 10^9,
/// a plain number is bytes, `80%` is that share of `whole`.
/// Errors: usage, naming `what` (the flag or key), the text and the accepted forms.
[[nodiscard]] std::uint64_t parse_size(std::string_view text, std::string_view what,
                                       std::uint64_t whole = 0);

}  // namespace terrace
