#include "cpu/optim_loops.h"
#include "terrace/kernels/split_master.h"

namespace terrace::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 16;

/// Calls `body(i)` for every element, in parallel.
template <class Body>
void for_each(Workers& workers, std::int64_t count, const Body& body) {
  workers.parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace

void run(const Loops& loops, const SplitMasterArgs& args) {
  const float* master = args.master.raw<float>();
  Bf16* parameter = args.parameter.raw<Bf16>();
  auto* remainder = args.remainder.raw<std::uint16_t>();
  for_each(loops.workers, args.count, [=](std::int64_t i) {
    const SplitFloat split = split_float(master[i]);
    parameter[i] = split.parameter;
    remainder[i] = split.remainder;
  });
}

void run(const Loops& loops, const JoinMasterArgs& args) {
  const Bf16* parameter = args.parameter.raw<Bf16>();
  const auto* remainder = args.remainder.raw<std::uint16_t>();
  float* master = args.master.raw<float>();
  for_each(loops.workers, args.count, [=](std::int64_t i) {
    master[i] = join_float({parameter[i], remainder[i]});
  });
}

void run(const Loops& loops, const NarrowMasterArgs& args) {
  const float* master = args.master.raw<float>();
  const device::Pointer parameter = args.parameter.data;
  switch (args.parameter.dtype) {
    case DType::bf16:
      return for_each(loops.workers, args.count, [=, to = parameter.raw<Bf16>()](std::int64_t i) {
        to[i] = to_parameter_bf16(master[i]);
      });
    case DType::f16:
      return for_each(loops.workers, args.count, [=, to = parameter.raw<F16>()](std::int64_t i) {
        to[i] = to_f16(master[i]);
      });
    default:
      return for_each(loops.workers, args.count,
                      [=, to = parameter.raw<float>()](std::int64_t i) { to[i] = master[i]; });
  }
}

}  // namespace terrace::kernels
