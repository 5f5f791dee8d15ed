#include "terrace/config/budgets.h"

#include <fmt/core.h>

#include "terrace/core/container.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::config {

Budgets budgets_of(const PlacementSettings& settings, double share) {
  Budgets budgets;
  if (const auto& budget = settings.host_memory) {
    budgets.process_bytes = budget->of(static_cast<std::uint64_t>(total_memory().value));
    budgets.source = "--host_memory";
  } else {
    const Limit free = available_memory();
    budgets.process_bytes = static_cast<std::uint64_t>(free.value * share);
    budgets.source = fmt::format("{:.0f} % of {}", share * 100, free.source);
  }
  if (const auto& limit = settings.device_memory) {
    budgets.device_bytes = limit->of(static_cast<std::uint64_t>(total_memory().value));
  }
  return budgets;
}

void require_free_ram(const plan::Need& need, const Budgets& budgets) {
  const Limit free = available_memory();
  require(static_cast<double>(need.process_bytes) <= free.value, ErrorKind::does_not_fit,
          "{} of RAM are needed and {} allows them, but {} are free ({}): lower it, so that state "
          "goes to a slower tier, or end what holds the rest",
          format_bytes(need.process_bytes), budgets.source,
          format_bytes(static_cast<std::uint64_t>(free.value)), free.source);
}

}  // namespace terrace::config
