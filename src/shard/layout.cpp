#include "terrace/shard/layout.h"

#include <algorithm>

#include "terrace/core/units.h"

namespace terrace::shard {
namespace {

std::int64_t align(std::int64_t elements, std::int64_t unit) {
  return static_cast<std::int64_t>(
      round_up(static_cast<std::uint64_t>(elements), static_cast<std::uint64_t>(unit)));
}

}  // namespace

Layout::Layout(const ModelShape& model, int world_size, bool decay_all)
    : world_size_(world_size),
      flats_of_unit_(model.units.size()),
      places_(model.parameters.size()) {
  Indexed<int> uses(model.parameters.size(), 0);
  for (const std::vector<int>& unit : model.units) {
    for (const int parameter : unit) ++uses[parameter];
  }
  Indexed<bool> placed(model.parameters.size(), false);

  auto add_flat = [&](int unit, bool decayed, bool tied, std::span<const int> parameters) {
    if (parameters.empty()) return;
    Flat flat;
    flat.id = flats_.count();
    flat.unit = unit;
    flat.decayed = decayed;
    flat.tied = tied;
    std::int64_t next = 0;
    for (const int parameter : parameters) {
      const Range range{next, model.parameters[parameter].elements};
      flat.tensors.push_back({parameter, range});
      places_[parameter] = {flat.id, range};
      placed[parameter] = true;
      next = align(range.end(), kAlignmentElements);
    }
    flat.elements = align(next, kAlignmentElements * world_size_);
    flats_.push_back(std::move(flat));
  };

  for (int unit = 0; unit < model.units.count(); ++unit) {
    std::vector<int> groups[2];  // not decayed, decayed
    for (const int parameter : model.units[unit]) {
      if (placed[parameter]) continue;
      const bool decayed = decay_all || model.parameters[parameter].is_matrix;
      if (uses[parameter] > 1) {
        add_flat(unit, decayed, true, std::span(&parameter, 1));
      } else {
        groups[decayed ? 1 : 0].push_back(parameter);
      }
    }
    add_flat(unit, true, false, groups[1]);
    add_flat(unit, false, false, groups[0]);
  }
  for (int unit = 0; unit < model.units.count(); ++unit) {
    std::vector<int>& flats = flats_of_unit_[unit];
    for (const int parameter : model.units[unit]) flats.push_back(place(parameter).flat);
    std::ranges::sort(flats);
    flats.erase(std::ranges::unique(flats).begin(), flats.end());
  }
}

Range Layout::shard(int flat_id, int rank) const {
  const std::int64_t count = flat(flat_id).elements / world_size_;
  return {count * rank, count};
}

std::int64_t Layout::elements() const {
  std::int64_t sum = 0;
  for (const Flat& flat : flats_) sum += flat.elements;
  return sum;
}

}  // namespace terrace::shard
