#include "terrace/checkpoint/held_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "progress.h"
#include "terrace/core/error.h"
#include "terrace/core/units.h"

namespace terrace::checkpoint {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;

/// Bits of the smallest FP32 magnitude that the type does not hold. All that is larger, NaN
/// included, has larger bits.
std::uint32_t first_unheld(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x7f800000U;
    case DType::bf16:
      return 0x7f7f8000U;  // (bits + 0x8000) >> 16 is infinity's
    case DType::f16:
      return 0x477ff000U;  // 65520, half-way to 2^16; the tie goes to the even one
    case DType::i32:
      break;
  }
  fail(ErrorKind::internal, "{} holds no weights", name_of(dtype));
}

bool is_held(float value, std::uint32_t limit) {
  return (std::bit_cast<std::uint32_t>(value) & kMagnitude) < limit;
}

}  // namespace

float largest_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return std::bit_cast<float>(0x7f7fffffU);
    case DType::bf16:
      return std::bit_cast<float>(0x7f7f0000U);
    case DType::f16:
      return 65504.0F;
    case DType::i32:
      break;
  }
  fail(ErrorKind::internal, "{} holds no weights", name_of(dtype));
}

std::int64_t count_unheld(std::span<const float> values, DType dtype) {
  const std::uint32_t limit = first_unheld(dtype);
  std::int64_t count = 0;
  for (const float value : values) count += is_held(value, limit) ? 0 : 1;
  return count;
}

void HeldValues::read(StateKind kind, const std::string& tensor, std::int64_t first,
                      std::span<float> values) {
  source_.read(kind, tensor, first, values);
  const bool is_weight = kind == StateKind::master || kind == StateKind::parameter;
  const DType dtype = is_weight ? dtype_ : DType::f32;
  if (count_unheld(values, dtype) == 0) return;
  if (too_large_ == TooLarge::replaced) {
    for (float& value : values) {
      if (!std::isfinite(value) || is_held(value, first_unheld(dtype))) continue;
      value = std::copysign(largest_of(dtype), value);
      ++replaced_;
    }
  }
  note(kind, tensor, first, values, dtype);
}

void HeldValues::note(StateKind kind, const std::string& tensor, std::int64_t first,
                      std::span<const float> values, DType dtype) {
  const std::uint32_t limit = first_unheld(dtype);
  const auto unheld = std::ranges::find_if(values, [&](float v) { return !is_held(v, limit); });
  if (unheld == values.end()) return;
  auto fault = std::ranges::find_if(
      faults_, [&](const Fault& other) { return other.kind == kind && other.tensor == tensor; });
  if (fault == faults_.end()) {
    faults_.push_back({kind, tensor, 0, first + (unheld - values.begin()), *unheld});
    fault = faults_.end() - 1;
  }
  fault->count += count_unheld(values, dtype);
}

void HeldValues::read_all(StateKind kind, std::span<const TensorShape> tensors) {
  std::vector<float> buffer;
  for (const TensorShape& tensor : tensors) {
    for_each_piece(tensor.elements(), buffer, [&](std::int64_t first, std::span<float> values) {
      read(kind, tensor.name, first, values);
    });
  }
}

std::string HeldValues::fault() const {
  const Fault& shown = faults_.front();
  const bool is_weight = shown.kind == StateKind::master || shown.kind == StateKind::parameter;
  const bool too_large = std::isfinite(shown.value);
  std::string text = fmt::format(
      "{} of {}\"{}\" {} {}", counted(shown.count, "value"),
      is_weight ? "the tensor " : fmt::format("the {} of ", terrace::name_of(shown.kind)),
      shown.tensor, shown.count == 1 ? "is" : "are",
      too_large ? fmt::format("too large for {}", terrace::name_of(dtype_)) : "not finite");
  std::int64_t others = 0;
  for (const Fault& fault : faults_) others += fault.count;
  others -= shown.count;
  if (others > 0) {
    text += fmt::format(", and {} of {}", others, counted(faults_.size() - 1, "other tensor"));
  }
  const std::string value = too_large                 ? fmt::format("{}", shown.value)
                            : std::isinf(shown.value) ? "infinite"
                                                      : "not a number";
  text += fmt::format("; the first is {} (element {})", value, shown.element);
  if (too_large) {
    text += fmt::format(", and the largest that {} holds is {}", terrace::name_of(dtype_),
                        largest_of(dtype_));
  }
  return text;
}

void HeldValues::require_all_held(std::string_view consequence) const {
  if (!all_held()) fail(ErrorKind::numerics, "{}: {}", fault(), consequence);
}

}  // namespace terrace::checkpoint
