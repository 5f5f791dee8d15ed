// The optimizer step for optimizer_peers.py, which loads this as a shared library: plain C
// functions on the addresses of the script's tensors.
#include <cstdint>
#include <cstdio>
#include <exception>

#include "terrace/core/workers.h"
#include "terrace/device/inline_stream.h"
#include "terrace/kernels/cpu.h"
#include "terrace/optim/optimizer.h"

namespace {

using terrace::DType;
using terrace::optim::MasterFormat;

/// What the script's ctypes structure of the same name holds.
struct PeerStep {
  std::int64_t count;
  void* master;  // FP32, or 16-bit remainders in `split`
  void* exp_avg;
  void* exp_avg_sq;
  void* parameter;  // bf16
  void* gradient;   // bf16
  std::int64_t step;
  double learning_rate;
  double weight_decay;
  double gradient_scale;
  std::int32_t split;
};

terrace::device::Span<std::byte> bytes(void* data, std::int64_t count, std::int64_t size) {
  return {terrace::device::Pointer(data), static_cast<std::size_t>(count * size)};
}

}  // namespace

extern "C" {

void* peer_workers(int threads) { return new terrace::Workers(threads); }
void peer_workers_free(void* workers) { delete static_cast<terrace::Workers*>(workers); }

/// The AdamW step in place; 0, or 1 after printing why not.
int peer_step(void* workers, const PeerStep* s) try {
  const bool split = s->split != 0;
  const MasterFormat format = split ? MasterFormat::split : MasterFormat::fp32;
  const terrace::optim::Optimizer optimizer({}, {{format, DType::f32}});
  terrace::optim::ChunkViews chunk;
  chunk.count = s->count;
  chunk.target = {bytes(s->master, s->count, split ? 2 : 4), bytes(s->exp_avg, s->count, 4),
                  bytes(s->exp_avg_sq, s->count, 4), bytes(s->parameter, s->count, 2)};
  chunk.source = {chunk.target.master,
                  chunk.target.exp_avg,
                  chunk.target.exp_avg_sq,
                  {},
                  bytes(s->gradient, s->count, 2)};
  if (split) chunk.source.parameter = chunk.target.parameter;
  const auto ops =
      terrace::kernels::make_cpu_optimizer_ops(*static_cast<terrace::Workers*>(workers));
  ops->run(*terrace::device::make_inline_stream(),
           optimizer.step(chunk, {s->step, s->learning_rate, s->gradient_scale, s->weight_decay}));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

}  // extern "C"
