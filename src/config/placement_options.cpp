#include <fmt/core.h>

#include "foreign.h"
#include "terrace/config/options.h"
#include "terrace/config/profile.h"
#include "terrace/config/settings.h"

namespace terrace::config {
namespace {

Field placement_field(Placement& member) {
  return choice<Placement>(member, {{"auto", Placement::automatic},
                                    {"none", Placement::none},
                                    {"cpu", Placement::cpu},
                                    {"nvme", Placement::nvme}});
}

/// Whether `member` is the host, as DeepSpeed's `cpu_checkpointing` says it; null where the plan
/// chooses, and for the disk, of which it knows nothing.
Field on_host_switch(Placement& member) {
  Field result;
  result.type = OptionType::boolean;
  result.nullable = true;
  result.set = [&member](const OptionValue& value, const std::string&) {
    if (const bool* on = std::get_if<bool>(&value)) member = *on ? Placement::cpu : Placement::none;
  };
  result.get = [&member]() -> OptionValue {
    if (member == Placement::automatic || member == Placement::nvme) return std::monostate{};
    return member == Placement::cpu;
  };
  return result;
}

void add_tiers(OptionTable& table, PlacementSettings& p) {
  table.group("Device and tiers");
  table.add({.keys = {"device"},
             .flags = {"device"},
             .field = choice<DeviceChoice>(p.device, {{"auto", DeviceChoice::automatic},
                                                      {"cuda", DeviceChoice::cuda},
                                                      {"cpu", DeviceChoice::cpu}}),
             .effect = Effect::losses,
             .help = "where the model is computed"});
  table.add(
      {.keys = {"zero_optimization.offload_optimizer.device"},
       .flags = {"offload_optimizer"},
       .field = placement_field(p.optimizer.device),
       .effect = Effect::layout,
       .help = "tier of master weights and moments; auto fills device, then host, then disk"});
  table.add({.keys = {"zero_optimization.offload_param.device"},
             .flags = {"offload_param"},
             .field = placement_field(p.parameters.device),
             .effect = Effect::layout,
             .help = "tier of the parameters; auto fills device, then host, then disk"});
  table.add({.keys = {"activation_checkpointing.device"},
             .flags = {"offload_activations"},
             .field = placement_field(p.activations.device),
             .effect = Effect::layout,
             .help = "tier of the inputs of blocks, kept from forward to backward; auto moves to "
                     "the host what device_memory does not hold, and to disk only where drives are "
                     "needed anyway"});
  table.add({.keys = {"activation_checkpointing.cpu_checkpointing"},
             .field = on_host_switch(p.activations.device),
             .effect = Effect::as_another,
             .help = "true: as offload_activations cpu, false: as none",
             .default_note = "as offload_activations"});
  table.add({.keys = {"swap"},
             .flags = {"swap"},
             .field = field(p.swap),
             .effect = Effect::nothing,
             .help = "folders of the page store, one or several drives: DIR[,DIR]",
             .default_note = "the nvme_paths"});
  table.add({.keys = {"profile"},
             .flags = {"profile"},
             .field = field(p.profile),
             .effect = Effect::layout,
             .help = "a file of terrace bench all, or assumed figures by name (" +
                     known_profiles() +
                     "): auto takes the placement that these make fastest, and plan predicts the "
                     "step's time",
             .default_note = "auto goes by those of h200"});
  table.add({.keys = {"device_memory"},
             .flags = {"device_memory"},
             .field = field(p.device_memory),
             .effect = Effect::layout,
             .help = "budget of device memory of one rank, as 20G, 20GB or 80%",
             .unit = "bytes or %",
             .default_note = "what is free; 90 % of what the profile of a plan says"});
  table.add({.keys = {"host_memory"},
             .flags = {"host_memory"},
             .field = field(p.host_memory),
             .effect = Effect::layout,
             .help = "budget of host memory of one rank; without a GPU, of the whole process",
             .unit = "bytes or %",
             .default_note = "what the container allows"});
  table.add({.keys = {"disk"},
             .flags = {"disk"},
             .field = field(p.disk),
             .effect = Effect::layout,
             .help = "budget of disk space in the swap folders",
             .unit = "bytes or %",
             .default_note = "what is free"});
}

void add_offload_details(OptionTable& table, PlacementSettings& p) {
  table.add({.keys = {"zero_optimization.offload_optimizer.nvme_path"},
             .field = field(p.optimizer.nvme_path),
             .effect = Effect::nothing,
             .help = "folders of the page store, as swap"});
  table.add({.keys = {"zero_optimization.offload_param.nvme_path"},
             .field = field(p.parameters.nvme_path),
             .effect = Effect::nothing,
             .help = "folders of the page store, as swap"});
  table.add({.keys = {"zero_optimization.offload_optimizer.ratio"},
             .field = field(p.optimizer.ratio),
             .effect = Effect::layout,
             .help = "share of the optimizer's state that is offloaded",
             .minimum = 0,
             .maximum = 1});
  table.add({.keys = {"zero_optimization.offload_param.ratio"},
             .field = field(p.parameters.ratio),
             .effect = Effect::layout,
             .help = "share of the parameters that is offloaded; what is read most often stays, on "
                     "the device, or in host RAM beside a disk where device_memory is bounded",
             .minimum = 0,
             .maximum = 1});
  table.add({.keys = {"activation_checkpointing.ratio"},
             .field = field(p.activations.ratio),
             .effect = Effect::layout,
             .help = "share of the inputs of blocks that is offloaded",
             .minimum = 0,
             .maximum = 1});
  table.add({.keys = {"zero_optimization.offload_optimizer.buffer_count"},
             .field = field(p.optimizer.buffer_count),
             .effect = Effect::layout,
             .help = "optimizer chunks in flight; 0: by the plan",
             .unit = "buffers",
             .minimum = 0,
             .maximum = 4096});
  table.add({.keys = {"zero_optimization.sub_group_size"},
             .flags = {"sub_group_size"},
             .field = field(p.chunk_elements),
             .effect = Effect::layout,
             .help = "largest chunk that the optimizer updates at once; 0: by the plan",
             .unit = "elements",
             .minimum = 0});
  table.add({.keys = {"prefetch_units"},
             .flags = {"prefetch_units"},
             .field = field(p.prefetch_units),
             .effect = Effect::layout,
             .help = "units whose parameters and inputs are fetched ahead of their use; 0: by the "
                     "plan",
             .unit = "units",
             .minimum = 0,
             .maximum = 1 << 20});
}

void add_disk(OptionTable& table, PlacementSettings& p) {
  table.group("Disk");
  table.add({.keys = {"disk_extents"},
             .flags = {"disk_extents"},
             .field = field(p.disk_extents),
             .effect = Effect::layout,
             .help =
                 "copies of each page when all state is on disk (else one is enough): 2 commits "
                 "every step, 1 needs half the space and falls back to the last checkpoint "
                 "after a kill",
             .unit = "copies",
             .minimum = 1,
             .maximum = 2});
  table.add(
      {.keys = {"disk_phases"},
       .flags = {"disk_phases"},
       .field = choice<std::optional<io::Phases>>(
           p.disk_phases,
           {{"auto", std::nullopt}, {"mixed", io::Phases::mixed}, {"apart", io::Phases::apart}}),
       .effect = Effect::nothing,
       .help = "whether reads and writes go on at once or take turns; auto measures the "
               "drives when a large store is made"});
  table.add({.keys = {"aio.block_size"},
             .field = size_field(p.block_bytes),
             .effect = Effect::nothing,
             .help = "size of one disk request, a multiple of 256 KiB",
             .unit = "bytes"});
  table.add({.keys = {"aio.queue_depth"},
             .field = field(p.queue_depth),
             .effect = Effect::nothing,
             .help = "disk requests in flight",
             .unit = "requests",
             .minimum = 1,
             .maximum = 4096});
}

void add_pacing(OptionTable& table, PacingSettings& p) {
  table.group("Pacing");
  const auto add = [&](const char* key, std::uint64_t& member, const char* what) {
    table.add({.keys = {std::string("pacing.") + key},
               .field = size_field(member),
               .effect = Effect::nothing,
               .help = fmt::format("hold {} to a rate, as if the machine were slower; the result "
                                   "does not change; 0: not held",
                                   what),
               .unit = "bytes/s"});
  };
  add("h2d", p.h2d, "copies to the device");
  add("d2h", p.d2h, "copies from the device");
  add("disk_read", p.disk_read, "reads from disk");
  add("disk_write", p.disk_write, "writes to disk");
  add("optimizer", p.optimizer, "the optimizer's traffic with RAM");
  table.add({.keys = {"pacing.compute"},
             .field = field(p.compute),
             .effect = Effect::nothing,
             .help = "hold forward and backward to a rate; 0: not held",
             .unit = "FLOP/s",
             .minimum = 0});
}

void add_ranks(OptionTable& table, RankSettings& r) {
  table.group("Ranks and threads");
  table.add({.keys = {"ranks"},
             .flags = {"ranks"},
             .field = field(r.ranks),
             .effect = Effect::losses_and_layout,
             .help = "ranks on this machine, or for a plan in all",
             .unit = "ranks",
             .minimum = 1,
             .maximum = 1 << 20});
  table.add({.keys = {"zero_optimization.stage"},
             .flags = {"zero_stage"},
             .field = field(r.zero_stage),
             .effect = Effect::layout,
             .help = "what is sharded over ranks: 1 optimizer, 2 and gradients, 3 and parameters",
             .default_note = "3 with several ranks",
             .minimum = 0,
             .maximum = 3});
  table.add({.keys = {"threads"},
             .flags = {"threads"},
             .field = field(r.threads),
             .effect = Effect::losses,
             .help = "compute threads of a rank; 0: what affinity and container give",
             .unit = "threads",
             .minimum = 0,
             .maximum = 1 << 16});
  table.add({.keys = {"peer_timeout"},
             .flags = {"peer_timeout"},
             .field = field(r.peer_timeout_s),
             .effect = Effect::nothing,
             .help = "silence after which a peer counts as lost",
             .unit = "seconds",
             .minimum = 1});
}

}  // namespace

void add_placement_options(OptionTable& table, Settings& settings) {
  add_tiers(table, settings.placement);
  add_offload_details(table, settings.placement);
  add_disk(table, settings.placement);
  add_ranks(table, settings.ranks);
  add_pacing(table, settings.pacing);
}

}  // namespace terrace::config
