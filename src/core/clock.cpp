#include "terrace/core/clock.h"

#include <array>
#include <ctime>
#include <thread>

namespace terrace {

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void sleep_us(std::int64_t duration_us) {
  std::this_thread::sleep_for(std::chrono::microseconds(duration_us));
}

std::string utc_now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text.data(), length};
}

}  // namespace terrace
