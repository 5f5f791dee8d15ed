#include <algorithm>

#include "builder.h"

// What is kept between a unit's forward and the next one's backward: see "Note on boundaries" in
// plan.h.
//
// On disk boundaries are written by the lane that writes the state, in serial order: those of a
// forward come behind the chunks and the commit of the step before. So where both are on disk a
// forward gets no further ahead of those than the slots reach. Where updates come after the
// decision that is all chunks of the step; where they come under backward most are written by then,
// and what is left is the chunks of the gradients that were final last, and the step's settling.

namespace terrace::plan {

using memory::RegionId;
using memory::Tier;

namespace {

constexpr const char* kPurpose = "block inputs";

}  // namespace

void Builder::add_boundaries(int copies) {
  const auto units = static_cast<std::size_t>(unit_count());
  const auto each = static_cast<std::size_t>(copies);
  boundary_.assign(units, std::vector<RegionId>(each, memory::kNoRegion));
  boundary_home_ = boundary_;
  // In the order in which backward reads them.
  const int may_leave = units_whose_output_may_leave();
  constexpr double kRounding = 1e-6;  // what was made of a whole number stays one
  auto staying = static_cast<std::int64_t>(
      request_.placement.boundaries_resident * may_leave * copies + kRounding);
  for (int unit = may_leave - 1; unit >= 0 && !boundaries_on(Tier::device); --unit) {
    for (RegionId& home : boundary_home_[static_cast<std::size_t>(unit)]) {
      if (staying-- > 0 || request_.purpose != Purpose::train) continue;
      const Tier tier = request_.placement.boundaries;
      const std::uint64_t bytes = boundary_bytes(unit);
      // On disk it is scratch, and in use from a step's store to its fetch only.
      home = tier == Tier::disk ? add_transient(kPurpose, tier, bytes)
                                : plan_.memory.add(kPurpose, tier, bytes);
      plan_.boundary_home.push_back(home);
    }
  }
  for (int unit = 0; unit < unit_count(); ++unit) {
    const std::uint64_t bytes = boundary_bytes(unit);
    for (std::size_t copy = 0; copy < each; ++copy) {
      if (passes(unit, copy)) continue;
      boundary_[static_cast<std::size_t>(unit)][copy] =
          plan_.memory.add(kPurpose, Tier::device, bytes);
    }
  }
}

int Builder::units_whose_output_may_leave() const {
  return std::max(0, unit_count() - (request_.prefetch_units > 0 ? 3 : 2));
}

bool Builder::passes(int unit, std::size_t copy) const {
  if (boundaries_on(Tier::device)) return false;
  const bool never_leaves = unit >= units_whose_output_may_leave() && unit + 1 < unit_count();
  return never_leaves || boundary_home_[static_cast<std::size_t>(unit)][copy] != memory::kNoRegion;
}

RegionId Builder::add_boundary_slot(int unit) {
  return add_transient(kPurpose, Tier::device, boundary_bytes(unit));
}

void Builder::emit_boundary_fetches(const std::vector<Visit>& visits, std::size_t index,
                                    int micro_batch) {
  const Visit& visit = visits[index];
  const bool head = visit.pass == Visit::Pass::head;
  if (!head && visit.pass != Visit::Pass::backward) return;
  // Under the head those of the first units, then one more for each that is used up.
  const std::size_t last = index + static_cast<std::size_t>(request_.prefetch_units);
  for (std::size_t next = head ? index + 1 : last; next <= last && next < visits.size(); ++next) {
    const Visit& other = visits[next];
    const bool same_pass = other.first_micro_batch == visit.first_micro_batch;
    if (other.pass != Visit::Pass::backward || !same_pass) break;
    emit_fetch_boundary(other.unit, micro_batch);
  }
}

Access Builder::host_boundary(int unit, std::size_t copy, bool write) {
  const RegionId home = boundary_home_[static_cast<std::size_t>(unit)][copy];
  const std::uint64_t bytes = plan_.memory.region(home).bytes;
  if (!boundaries_on(Tier::disk)) return {home, 0, bytes, write};
  const RegionId slot = add_transient("block input slots", Tier::host, whole_blocks(bytes));
  passing_.push_back(slot);
  const auto slots_max = static_cast<std::size_t>(request_.prefetch_units) + 2;
  if (passing_.size() > slots_max) passing_.erase(passing_.begin());
  // The ones before are kept until here, so that this one is not given their memory.
  const std::int64_t position = base_ + static_cast<std::int64_t>(schedule_->tasks.size());
  for (const RegionId passing : passing_) plan_.memory.use(passing, position);
  return {slot, 0, bytes, write};
}

void Builder::emit_store_boundary(int unit, int micro_batch) {
  const std::size_t copy = copy_of(micro_batch);
  const auto before = static_cast<std::size_t>(unit) - 1;
  const RegionId home = boundary_home_[before][copy];
  if (home == memory::kNoRegion || schedule_ != &plan_.training) return;
  const Access host = host_boundary(unit - 1, copy, true);
  auto label = [&](Task& task) {
    task.unit = unit;
    task.micro_batch = micro_batch;
    task.bytes = host.bytes;
  };
  label(emit(TaskKind::store_boundary, Lane::d2h, {host, whole(boundary_[before][copy], false)}));
  if (host.region == home) return;
  label(emit(TaskKind::write_boundary, Lane::disk_write,
             {whole(home, true), whole(host.region, false)}));
}

void Builder::emit_fetch_boundary(int unit, int micro_batch) {
  if (unit == 0) return;
  const std::size_t copy = copy_of(micro_batch);
  const auto before = static_cast<std::size_t>(unit) - 1;
  const RegionId home = boundary_home_[before][copy];
  if (home == memory::kNoRegion) return;
  const Access host = host_boundary(unit - 1, copy, false);
  auto label = [&](Task& task) {
    task.unit = unit;
    task.micro_batch = micro_batch;
    task.bytes = host.bytes;
  };
  if (host.region != home) {
    label(emit(TaskKind::read_boundary, Lane::disk_read,
               {whole(host.region, true), whole(home, false)}));
  }
  boundary_[before][copy] = add_boundary_slot(unit - 1);
  label(emit(TaskKind::fetch_boundary, Lane::h2d, {host, whole(boundary_[before][copy], true)}));
}

}  // namespace terrace::plan
