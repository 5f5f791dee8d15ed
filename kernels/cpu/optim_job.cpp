#include <cstring>

#include "cpu/optim_step.h"
#include "terrace/core/error.h"

namespace terrace::kernels {
namespace {

void check_size(std::size_t found, std::int64_t count, std::size_t size, std::string_view what) {
  require(found == static_cast<std::size_t>(count) * size, ErrorKind::internal,
          "the optimizer step was given {} bytes of {} for {} parameters, {} expected.", found,
          what, count, static_cast<std::size_t>(count) * size);
}

void check(UpdateRule rule, StateLayout layout, const ChunkViews& chunk) {
  const bool split = layout.master == MasterFormat::split;
  require(!split || layout.parameter == DType::bf16, ErrorKind::internal,
          "a split master goes with bf16 parameters, not with {}.", name_of(layout.parameter));
  require(layout.moments == DType::f32 || layout.moments == DType::bf16, ErrorKind::internal,
          "moments are fp32 or bf16, not {}.", name_of(layout.moments));
  require(layout.gradient != DType::i32 && layout.parameter != DType::i32, ErrorKind::internal,
          "a gradient or parameter of int32 has no optimizer step.");
  const std::size_t master = size_of(layout.master);
  check_size(chunk.source.master.size(), chunk.count, master, "master");
  check_size(chunk.target.master.size(), chunk.count, master, "new master");
  const std::size_t exp_avg = uses_exp_avg(rule) ? size_of(layout.moments) : 0;
  check_size(chunk.source.exp_avg.size(), chunk.count, exp_avg, "exp_avg");
  check_size(chunk.target.exp_avg.size(), chunk.count, exp_avg, "new exp_avg");
  const std::size_t exp_avg_sq = uses_exp_avg_sq(rule) ? size_of(layout.moments) : 0;
  check_size(chunk.source.exp_avg_sq.size(), chunk.count, exp_avg_sq, "exp_avg_sq");
  check_size(chunk.target.exp_avg_sq.size(), chunk.count, exp_avg_sq, "new exp_avg_sq");
  check_size(chunk.source.gradient.size(), chunk.count, size_of(layout.gradient), "gradient");
  if (split) check_size(chunk.source.parameter.size(), chunk.count, 2, "parameter");
  if (split || !chunk.target.parameter.empty()) {
    check_size(chunk.target.parameter.size(), chunk.count, size_of(layout.parameter),
               "new parameter");
  }
}

template <class T>
T* pointer_or_null(std::span<T> bytes) {
  return bytes.empty() ? nullptr : bytes.data();
}

StepArrays arrays_of(const ChunkViews& chunk, bool split) {
  StepArrays arrays;
  arrays.gradient = chunk.source.gradient.data();
  arrays.master_in = chunk.source.master.data();
  arrays.parameter_in = split ? chunk.source.parameter.data() : nullptr;
  arrays.exp_avg_in = pointer_or_null(chunk.source.exp_avg);
  arrays.exp_avg_sq_in = pointer_or_null(chunk.source.exp_avg_sq);
  arrays.master_out = chunk.target.master.data();
  arrays.parameter_out = pointer_or_null(chunk.target.parameter);
  arrays.exp_avg_out = pointer_or_null(chunk.target.exp_avg);
  arrays.exp_avg_sq_out = pointer_or_null(chunk.target.exp_avg_sq);
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

StepJob make_step_job(UpdateRule rule, StateLayout layout, const ChunkViews& chunk) {
  check(rule, layout, chunk);
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
