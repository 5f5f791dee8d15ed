#include "terrace/config/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <span>

#include "terrace/config/options.h"
#include "terrace/core/error.h"
#include "terrace/io/entry.h"

namespace terrace::config {
namespace {

constexpr const char* kSchema = "terrace.profile/1";

/// A profile that nobody measured here.
struct AssumedProfile {
  std::string_view name;
  plan::HardwareProfile profile;
};

/// Figures that such machines are known to reach, not promises:
/// - 500 TFLOP/s: 51 to 59 % of an H100's or H200's dense bf16 peak (989 TFLOP/s, NVIDIA's data
///   sheet), which the best training programs sustain.
/// - 50 TFLOP/s in FP32: 75 % of the data sheet's 67.
/// - 141 GB of device memory: an H200's (data sheet).
/// - 55 GB/s each way: PCIe Gen5 x16 (63 GB/s raw) as copies of pinned memory see it.
/// - 1.6 TB/s written on the device: 4.8 TB/s of HBM3e (data sheet), 4 bytes read for 2 written.
/// - 300 GB/s: a server's RAM under streams.
/// - 27 and 11 GB/s: four PCIe Gen5 drives reading and writing.
/// - 450 GB/s: NVLink 4 each way.
plan::HardwareProfile h200(double ranks_a_node) {
  plan::HardwareProfile profile;
  profile.name = fmt::format("assumed: one H100 or H200 class GPU{}, PCIe Gen5, four Gen5 drives",
                             ranks_a_node > 1 ? fmt::format(" of {} in a node", ranks_a_node) : "");
  profile.device_memory_bytes = 141e9;
  profile.h2d_bytes_per_second = 55e9;
  profile.d2h_bytes_per_second = 55e9;
  profile.device_bytes_per_second = 1.6e12;
  profile.collective_bytes_per_second = 450e9;
  // The GPUs of a node share its drives and its RAM.
  profile.disk_read_bytes_per_second = 27e9 / ranks_a_node;
  profile.disk_write_bytes_per_second = 11e9 / ranks_a_node;
  profile.optimizer_bytes_per_second = 300e9 / ranks_a_node;
  profile.bf16_flops_per_second = 500e12;
  profile.fp16_flops_per_second = 500e12;
  profile.fp32_flops_per_second = 50e12;
  return profile;
}

std::vector<AssumedProfile> assumed_profiles() {
  return {{"h200", h200(1)}, {"h200-of-8", h200(8)}};
}

/// The one table of a profile's keys.
OptionTable profile_table(plan::HardwareProfile& profile, std::string& schema) {
  OptionTable table;
  table.group("Profile");
  table.add({.keys = {"schema"},
             .field = choice<std::string>(schema, {{kSchema, kSchema}}),
             .help = "what this file is"});
  table.add({.keys = {"name"}, .field = field(profile.name), .help = "shown beside a prediction"});
  const auto rate = [&](const char* key, std::optional<double>& member, const char* help) {
    table.add({.keys = {key}, .field = field(member), .help = help, .minimum = 1});
  };
  const auto factor = [&](const char* key, double& member, const char* help) {
    table.add({.keys = {key}, .field = field(member), .help = help, .minimum = 0.01, .maximum = 1});
  };
  const auto seconds = [&](const char* key, double& member, const char* help) {
    table.add({.keys = {key}, .field = field(member), .help = help, .unit = "s", .minimum = 0});
  };
  table.add({.keys = {"device_memory_bytes"},
             .field = field(profile.device_memory_bytes),
             .help = "the device's own memory, as a GPU has",
             .minimum = 1});
  rate("h2d_bytes_per_second", profile.h2d_bytes_per_second, "copies to the device");
  rate("d2h_bytes_per_second", profile.d2h_bytes_per_second, "copies from the device");
  rate("device_bytes_per_second", profile.device_bytes_per_second, "written within the device");
  rate("collective_bytes_per_second", profile.collective_bytes_per_second, "between ranks");
  rate("disk_read_bytes_per_second", profile.disk_read_bytes_per_second, "reading alone");
  rate("disk_write_bytes_per_second", profile.disk_write_bytes_per_second, "writing alone");
  factor("disk_mixed_factor", profile.disk_mixed_factor, "share of its rate beside the other");
  rate("optimizer_bytes_per_second", profile.optimizer_bytes_per_second, "read and written in RAM");
  factor("shared_cores_factor", profile.shared_cores_factor, "speed of compute beside optimizer");
  rate("bf16_flops_per_second", profile.bf16_flops_per_second, "forward and backward in bf16");
  rate("fp16_flops_per_second", profile.fp16_flops_per_second, "forward and backward in fp16");
  rate("fp32_flops_per_second", profile.fp32_flops_per_second, "forward and backward in fp32");
  seconds("task_seconds", profile.task_seconds, "cost of a task beside its work");
  seconds("commit_seconds", profile.commit_seconds, "flush and manifest of a step");
  return table;
}

}  // namespace

std::string known_profiles() {
  std::vector<std::string_view> names;
  for (const AssumedProfile& assumed : assumed_profiles()) names.push_back(assumed.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

plan::HardwareProfile find_profile(const std::string& file_or_name) {
  for (const AssumedProfile& assumed : assumed_profiles()) {
    if (assumed.name == file_or_name) return assumed.profile;
  }
  require(io::is_file(file_or_name, ErrorKind::usage), ErrorKind::usage,
          "--profile is \"{}\", which is neither a file nor one of {}: terrace bench all --profile "
          "FILE writes one for this machine",
          file_or_name, known_profiles());
  plan::HardwareProfile profile;
  std::string schema;
  OptionTable table = profile_table(profile, schema);
  read_config(table, file_or_name);
  require(schema == kSchema, ErrorKind::usage,
          "{} is not a hardware profile: its \"schema\" is missing, and must be \"{}\"",
          file_or_name, kSchema);
  if (profile.name.empty()) profile.name = file_or_name;
  return profile;
}

plan::HardwareProfile with_assumed(plan::HardwareProfile profile) {
  using Rate = std::optional<double> plan::HardwareProfile::*;
  const plan::HardwareProfile assumed = h200(1);
  bool is_whole = true;
  for (const Rate rate :
       {&plan::HardwareProfile::h2d_bytes_per_second, &plan::HardwareProfile::d2h_bytes_per_second,
        &plan::HardwareProfile::device_bytes_per_second,
        &plan::HardwareProfile::collective_bytes_per_second,
        &plan::HardwareProfile::disk_read_bytes_per_second,
        &plan::HardwareProfile::disk_write_bytes_per_second,
        &plan::HardwareProfile::optimizer_bytes_per_second,
        &plan::HardwareProfile::bf16_flops_per_second,
        &plan::HardwareProfile::fp16_flops_per_second,
        &plan::HardwareProfile::fp32_flops_per_second}) {
    if (profile.*rate || !(assumed.*rate)) continue;
    profile.*rate = assumed.*rate;
    is_whole = false;
  }
  if (is_whole) return profile;
  profile.name =
      profile.name.empty() ? assumed.name : fmt::format("{}; {}", profile.name, assumed.name);
  return profile;
}

std::string profile_json(const plan::HardwareProfile& profile) {
  plan::HardwareProfile copy = profile;
  std::string schema = kSchema;
  return to_json(profile_table(copy, schema));
}

}  // namespace terrace::config
