#include "terrace/core/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/excerpt.h"

namespace terrace {
namespace {

struct Suffix {
  std::string_view text;
  double factor;
};

constexpr std::array kSuffixes = {
    Suffix{"", 1},         Suffix{"b", 1},        Suffix{"k", 0x1p10},   Suffix{"kib", 0x1p10},
    Suffix{"kb", 1e3},     Suffix{"m", 0x1p20},   Suffix{"mib", 0x1p20}, Suffix{"mb", 1e6},
    Suffix{"g", 0x1p30},   Suffix{"gib", 0x1p30}, Suffix{"gb", 1e9},     Suffix{"t", 0x1p40},
    Suffix{"tib", 0x1p40}, Suffix{"tb", 1e12},
};

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<std::pair<std::string_view, double>, 4> units = {
      {{"TiB", 0x1p40}, {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}}};
  const auto value = static_cast<double>(bytes);
  for (const auto& [name, factor] : units) {
    if (value >= factor) return fmt::format("{:.2f} {}", value / factor, name);
  }
  return fmt::format("{} B", bytes);
}

std::string format_rate(double bytes_per_second) {
  if (bytes_per_second >= 1e9) return fmt::format("{:.2f} GB/s", bytes_per_second / 1e9);
  return fmt::format("{:.1f} MB/s", bytes_per_second / 1e6);
}

std::string format_count(std::uint64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 1e12) return fmt::format("{:.2f}T", value / 1e12);
  if (value >= 1e9) return fmt::format("{:.2f}B", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{}", count);
}

std::string counted(std::uint64_t count, std::string_view one, std::string_view many) {
  if (count == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", count, one) : fmt::format("{} {}", count, many);
}

std::string format_duration(double seconds) {
  if (seconds > 0 && seconds < 0.01) return fmt::format("{:.2f} ms", seconds * 1e3);
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} d {} h", whole / 86400, whole % 86400 / 3600);
}

std::uint64_t parse_size(std::string_view text, std::string_view what, std::uint64_t whole) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, number);
  std::string suffix;
  for (const char* c = rest; c != end; ++c) {
    if (*c != ' ') suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  const bool readable = code == std::errc() && std::isfinite(number) && number >= 0;
  if (readable && suffix == "%" && whole > 0 && number <= 100) {
    return static_cast<std::uint64_t>(static_cast<double>(whole) * number / 100);
  }
  for (const Suffix& known : kSuffixes) {
    const double bytes = number * known.factor;
    if (readable && suffix == known.text && bytes < 0x1p63)
      return static_cast<std::uint64_t>(bytes);
  }
  fail(ErrorKind::usage,
       "{} is \"{}\", which is not a size: write bytes, or 512M, 64G, 64GiB (powers of two), 64GB "
       "(10^9){}",
       what, excerpt(text), whole > 0 ? ", or a share such as 80%" : "");
}

}  // namespace terrace
