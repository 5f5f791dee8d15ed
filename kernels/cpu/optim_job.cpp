#include <cstring>

#include "cpu/optim_step.h"

namespace terrace::kernels {
namespace {

StepArrays arrays_of(const ChunkViews& chunk, bool split) {
  StepArrays arrays;
  const auto address = [](const auto& span) { return span.empty() ? nullptr : span.data().raw(); };
  arrays.gradient = address(chunk.source.gradient);
  arrays.master_in = address(chunk.source.master);
  arrays.parameter_in = split ? address(chunk.source.parameter) : nullptr;
  arrays.exp_avg_in = address(chunk.source.exp_avg);
  arrays.exp_avg_sq_in = address(chunk.source.exp_avg_sq);
  arrays.master_out = address(chunk.target.master);
  arrays.parameter_out = address(chunk.target.parameter);
  arrays.exp_avg_out = address(chunk.target.exp_avg);
  arrays.exp_avg_sq_out = address(chunk.target.exp_avg_sq);
  return arrays;
}

}  // namespace

PaddedBlock::PaddedBlock(const StepJob& job, std::int64_t begin, std::int64_t count) : job_(job) {
  std::size_t next = 0;
  const auto copy_in = [&](const void*& source, void*& target, std::size_t size) {
    Array& array = arrays_[next++];
    const std::size_t skipped = static_cast<std::size_t>(begin) * size;
    array.bytes = static_cast<std::size_t>(count) * size;
    if (source != nullptr) {
      std::memcpy(array.copy, static_cast<const std::byte*>(source) + skipped, array.bytes);
      source = array.copy;
    }
    if (target != nullptr) {
      array.target = static_cast<std::byte*>(target) + skipped;
      target = array.copy;
    }
  };
  StepArrays& arrays = job_.arrays;
  const std::size_t moment = size_of(job.layout.moments);
  void* nowhere = nullptr;
  copy_in(arrays.gradient, nowhere, size_of(job.layout.gradient));
  copy_in(arrays.master_in, arrays.master_out, size_of(job.layout.master));
  copy_in(arrays.parameter_in, arrays.parameter_out, size_of(job.layout.parameter));
  copy_in(arrays.exp_avg_in, arrays.exp_avg_out, moment);
  copy_in(arrays.exp_avg_sq_in, arrays.exp_avg_sq_out, moment);
}

void PaddedBlock::write_back() const {
  for (const Array& array : arrays_) {
    if (array.target != nullptr) std::memcpy(array.target, array.copy, array.bytes);
  }
}

StepJob make_step_job(StateLayout layout, const ChunkViews& chunk) {
  StepJob job;
  job.layout = layout;
  job.arrays = arrays_of(chunk, layout.master == MasterFormat::split);
  job.first_index = chunk.first_index;
  // With bf16 moments vectors start at multiples of the random numbers' tile, 64 parameters.
  const bool aligned = reinterpret_cast<std::uintptr_t>(job.arrays.parameter_out) % 64 == 0 &&
                       (layout.moments == DType::f32 || chunk.first_index % 64 == 0);
  job.stream_parameter =
      layout.master == MasterFormat::fp32 && aligned && chunk.count >= kStreamCount;
  return job;
}

}  // namespace terrace::kernels
