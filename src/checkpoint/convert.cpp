#include "convert.h"

#include <bit>
#include <cstring>

#include "terrace/core/error.h"

namespace terrace::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

/// Applies `to_float` to each number; memcpy, because stored data may lie at any address.
template <class Stored>
void widen(std::span<const std::byte> source, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, source.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = to_float(stored);
  }
}

template <class Stored, class Rounding>
void narrow(std::span<const float> values, std::span<std::byte> target, Rounding rounding) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Stored stored = rounding(values[i]);
    std::memcpy(target.data() + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

}  // namespace

void to_floats(DType dtype, std::span<const std::byte> source, std::span<float> values) {
  require(source.size() == values.size() * size_of(dtype), ErrorKind::internal,
          "{} bytes cannot be {} numbers of {}", source.size(), values.size(), name_of(dtype));
  if (values.empty()) return;
  switch (dtype) {
    case DType::f32:
      std::memcpy(values.data(), source.data(), source.size());
      return;
    case DType::bf16:
      widen<Bf16>(source, values);
      return;
    case DType::f16:
      widen<F16>(source, values);
      return;
    case DType::i32:
      break;
  }
  fail(ErrorKind::internal, "{} cannot be read as floating point", name_of(dtype));
}

void from_floats(DType dtype, std::span<const float> values, std::span<std::byte> target) {
  require(target.size() == values.size() * size_of(dtype), ErrorKind::internal,
          "{} numbers of {} do not fill {} bytes", values.size(), name_of(dtype), target.size());
  if (values.empty()) return;
  switch (dtype) {
    case DType::f32:
      std::memcpy(target.data(), values.data(), target.size());
      return;
    case DType::bf16:
      narrow<Bf16>(values, target, [](float value) { return to_parameter_bf16(value); });
      return;
    case DType::f16:
      narrow<F16>(values, target, [](float value) { return to_f16(value); });
      return;
    case DType::i32:
      break;
  }
  fail(ErrorKind::internal, "floating point cannot be written as {}", name_of(dtype));
}

}  // namespace terrace::checkpoint
