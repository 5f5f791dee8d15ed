#include "kernels/cpu_ops.h"

#include <gmock/gmock.h>

#include <iostream>

#include "terrace/device/opaque.h"

namespace terrace::kernels {
namespace {

Implementation cpu_on(const std::string& name,
                      const std::function<std::unique_ptr<device::Device>()>& device) {
  Implementation cpu{name, device, {}, {cpu_table("one thread", {.threads = 1})}};
  for (const CpuTarget target : CpuTarget::all()) {
    const CpuOptions options{.threads = 2, .bf16_products = true, .target = target};
    cpu.tables.push_back(cpu_table(std::string(target.name()), options));
  }
  cpu.tables.push_back(
      cpu_table("without bf16 products", {.threads = 2, .bf16_products = false, .target = {}}));
  cpu.tables.back().has_other_products = true;
  return cpu;
}

INSTANTIATE_TEST_SUITE_P(Cpu, OpsConformance,
                         ::testing::Values(cpu_on("host", device::make_host_device),
                                           cpu_on("opaque",
                                                  [] {
                                                    return device::make_opaque_device(
                                                        device::make_host_device());
                                                  })),
                         [](const auto& implementation) { return implementation.param.name; });

TEST(CpuOps, without_bf16_products_says_so) {
  const Machine machine(device::make_host_device(),
                        cpu_table("widened", {.threads = 2, .bf16_products = false, .target = {}}));
  EXPECT_FALSE(machine.ops().native(DType::bf16));
  EXPECT_THAT(machine.ops().instead_of_native(DType::bf16),
              ::testing::HasSubstr("widened to fp32 first"));
  EXPECT_TRUE(machine.ops().native(DType::f32));
}

TEST(CpuOps, description_names_the_library_and_the_instruction_set) {
  const Machine machine = cpu_machine();
  const std::string description = machine.ops().description();
  EXPECT_NE(description.find("oneDNN"), std::string::npos);
  EXPECT_NE(description.find("2 threads"), std::string::npos);
  std::cout << description << "\n";
}

}  // namespace
}  // namespace terrace::kernels
