#include "terrace/device/opaque.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/sanitized.h"
#include "runtime/rig.h"

// Whole steps on a device whose memory the host cannot read. A host access to it outside of a
// stream's task ends the program.

namespace terrace::runtime::testing {
namespace {

using memory::Tier;

model::Config small_gpt2(bool tied) {
  model::Config config = small_llama(tied);
  config.architecture = model::Architecture::gpt2;
  config.num_key_value_heads = config.num_attention_heads = 3;
  return config;
}

/// A family, tied or untied, with one of the forms that state may have.
struct Trained {
  std::string name;
  RigModel model;
};

std::vector<Trained> all_trained() {
  const optim::StateFormat split{optim::MasterFormat::split, DType::f32};
  const optim::StateFormat narrow{optim::MasterFormat::fp32, DType::bf16};
  std::vector<Trained> all = {{"llama", {.config = small_llama(true)}},
                              {"untied llama", {.config = small_llama(false)}},
                              {"gpt2", {.config = small_gpt2(true)}},
                              {"untied gpt2", {.config = small_gpt2(false)}}};
  all[1].model.dtype = all[2].model.dtype = all[3].model.dtype = DType::bf16;
  all[1].model.format = split;
  all[3].model.format = narrow;
  all[2].model.max_grad_norm = 0.5;
  // Two nodes to which nothing is bound, so that the memory is touched first.
  all[0].model.threads = {2, "a test", {{{0, {}}, 1}, {{1, {}}, 1}}};
  return all;
}

plan::PlanRequest of(plan::PlanRequest request, const RigModel& trained) {
  request.gradient = trained.dtype;
  request.update_reads_parameter = trained.format.master == optim::MasterFormat::split;
  request.state.clear();
  for (const optim::StateEntry& entry :
       optim::state_entries(optim::OptimizerType::adamw, trained.format)) {
    request.state.push_back({entry.kind, static_cast<int>(entry.bytes_per_parameter)});
  }
  if (trained.max_grad_norm > 0) request.may_update_before_decision = false;
  return request;
}

/// Losses and norms of some steps, and all state after them.
struct Outcome {
  std::vector<StepResult> steps;
  std::vector<float> state;
};

Outcome run_on(Rig& rig, std::unique_ptr<device::Device> device, std::uint64_t seed = 0) {
  Outcome outcome;
  rig.finished_ = [&](StateTransfer& state, const model::Model& model) {
    for (const StateKind kind : {StateKind::master, StateKind::exp_avg, StateKind::exp_avg_sq}) {
      for (const model::ParameterSpec& parameter : model.parameters()) {
        std::vector<float> values(static_cast<std::size_t>(parameter.elements()));
        state.read(kind, parameter.name, 0, values);
        outcome.state.insert(outcome.state.end(), values.begin(), values.end());
      }
    }
  };
  io::MemoryDiskOptions disk;
  disk.seed = seed;
  outcome.steps = rig.run(std::move(device), std::make_shared<io::MemoryDisk>(disk), 3);
  return outcome;
}

void expect_equal(const Outcome& outcome, const Outcome& reference) {
  EXPECT_EQ(outcome.steps, reference.steps);
  ASSERT_EQ(outcome.state.size(), reference.state.size());
  EXPECT_EQ(std::memcmp(outcome.state.data(), reference.state.data(),
                        reference.state.size() * sizeof(float)),
            0);
}

class OpaqueSteps : public ::testing::TestWithParam<Trained> {};

TEST_P(OpaqueSteps, are_those_of_the_host_device_to_the_bit_wherever_things_lie) {
  const RigModel& trained = GetParam().model;
  Rig resident(of(small_request(), trained), 0, trained);
  const Outcome reference = run_on(resident, device::make_host_device());
  ASSERT_EQ(reference.steps.size(), 4U);
  EXPECT_NE(reference.steps[0].loss, reference.steps[1].loss);
  std::uint64_t seed = 1;
  int number = 0;
  for (const plan::PlanRequest& request : requests()) {
    if (kSanitized && number++ % 3 > 0) continue;
    SCOPED_TRACE(fmt::format("parameters on {}, state on {}, seed {}",
                             name_of(request.placement.parameters),
                             name_of(request.placement.state), seed));
    Rig rig(of(request, trained), 0, trained);
    expect_equal(run_on(rig, device::make_opaque_device(device::make_host_device())), reference);
    for (int round = 0; round < 2; ++round, ++seed) {
      expect_equal(run_on(rig, device::make_opaque_device(device::make_seeded_device(seed)), seed),
                   reference);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OpaqueSteps, ::testing::ValuesIn(all_trained()),
                         [](const auto& trained) {
                           std::string name = trained.param.name;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

TEST(OpaqueStep, that_is_skipped_is_that_of_the_host_device) {
  const Outcome reference = [] {
    Rig rig(small_request(), 2);
    return run_on(rig, device::make_host_device());
  }();
  for (const Tier state : {Tier::device, Tier::host, Tier::disk}) {
    plan::PlanRequest request = small_request();
    request.placement.state = state;
    Rig rig(request, 2);
    expect_equal(run_on(rig, device::make_opaque_device(device::make_host_device())), reference);
  }
}

}  // namespace
}  // namespace terrace::runtime::testing
