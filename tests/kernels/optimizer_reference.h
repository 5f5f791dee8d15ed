#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "terrace/core/random.h"
#include "terrace/kernels/optimizer_step.h"
#include "terrace/kernels/split_master.h"

// The optimizer step written plainly, one element after the other, without vectors: what every
// instruction set has to equal to the bit. Compiled like everything with -ffp-contract=off.
namespace terrace::kernels::reference {

/// Values of one state kind, as bytes.
using Bytes = std::vector<std::byte>;

template <class T>
T get(std::span<const std::byte> bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put(std::span<std::byte> bytes, std::size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

inline float get_float(std::span<const std::byte> bytes, DType dtype, std::size_t index) {
  if (dtype == DType::bf16) return to_float(get<Bf16>(bytes, index));
  if (dtype == DType::f16) return to_float(get<F16>(bytes, index));
  return get<float>(bytes, index);
}

/// 32 random bits of a parameter: word (index % 64) / 16 of Philox's call 16 (index / 64) +
/// index % 16.
inline std::uint32_t rounding_word(std::uint64_t seed, std::uint64_t step, std::uint64_t index) {
  const std::uint64_t call = index / 64 * 16 + index % 16;
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const auto words =
      philox({low(call), high(call), low(step), high(step) ^ 0x53520000U}, {low(seed), high(seed)});
  return words[index % 64 / 16];
}

/// A finite value to bf16: 16 random bits added, the lower half cut; never to infinity.
inline Bf16 round_stochastically(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t rounded = magnitude;
  if (magnitude < 0x7f800000U) rounded = std::min(magnitude + random, 0x7f7fffffU);
  if (magnitude > 0x7f800000U) rounded = 0x7fc00000U;
  return Bf16{static_cast<std::uint16_t>(((bits & 0x80000000U) | rounded) >> 16)};
}

struct Element {
  float p, m, v;
};

inline void apply(UpdateRule rule, const Coefficients& c, float gradient, Element& x) {
  float g = c.gradient_scale * gradient;
  switch (rule) {
    case UpdateRule::adam:
      if (c.l2 != 0) g = g + c.l2 * x.p;
      [[fallthrough]];
    case UpdateRule::adamw: {
      x.m = x.m + c.one_minus_beta1 * (g - x.m);
      x.v = c.beta2 * x.v + (c.one_minus_beta2 * g) * g;
      const float denominator = std::sqrt(x.v) * c.inverse_root_bias2 + c.eps;
      x.p = x.p - (c.decay * x.p + c.step_size * x.m / denominator);
      return;
    }
    case UpdateRule::adagrad:
      if (c.l2 != 0) g = g + c.l2 * x.p;
      x.v = x.v + g * g;
      x.p = x.p - c.step_size * g / (std::sqrt(x.v) + c.eps);
      return;
    case UpdateRule::lion: {
      const float direction = x.m + c.one_minus_beta1 * (g - x.m);
      const float sign = direction > 0 ? 1.0F : direction < 0 ? -1.0F : 0.0F;
      x.p = x.p - (c.decay * x.p + c.step_size * sign);
      x.m = x.m + c.one_minus_beta2 * (g - x.m);
      return;
    }
  }
}

/// The step on the whole of `chunk`.
inline void step(UpdateRule rule, StateLayout layout, const ChunkViews& chunk,
                 const Coefficients& c) {
  const bool split = layout.master == MasterFormat::split;
  for (std::size_t i = 0; i < static_cast<std::size_t>(chunk.count); ++i) {
    const ChunkSource& from = chunk.source;
    const ChunkTarget& to = chunk.target;
    Element x{};
    x.p = split ? join_float({get<Bf16>(from.parameter, i), get<std::uint16_t>(from.master, i)})
                : get<float>(from.master, i);
    if (uses_exp_avg(rule)) x.m = get_float(from.exp_avg, layout.moments, i);
    if (uses_exp_avg_sq(rule)) x.v = get_float(from.exp_avg_sq, layout.moments, i);
    apply(rule, c, get_float(from.gradient, layout.gradient, i), x);
    if (split) put(to.master, i, split_float(x.p).remainder);
    if (!split) put(to.master, i, x.p);
    if (!to.parameter.empty()) {
      if (layout.parameter == DType::bf16) put(to.parameter, i, to_parameter_bf16(x.p));
      if (layout.parameter == DType::f16) put(to.parameter, i, to_f16(x.p));
      if (layout.parameter == DType::f32) put(to.parameter, i, x.p);
    }
    const bool narrow = layout.moments == DType::bf16;
    const std::uint32_t word =
        narrow ? rounding_word(c.seed, c.step, static_cast<std::uint64_t>(chunk.first_index) + i)
               : 0;
    if (uses_exp_avg(rule)) {
      narrow ? put(to.exp_avg, i, round_stochastically(x.m, word & 0xffffU))
             : put(to.exp_avg, i, x.m);
    }
    if (uses_exp_avg_sq(rule)) {
      narrow ? put(to.exp_avg_sq, i, round_stochastically(x.v, word >> 16))
             : put(to.exp_avg_sq, i, x.v);
    }
  }
}

/// A range of parameters with its own memory. Each array starts `misalignment` elements after an
/// allocation's start.
class State {
 public:
  State(UpdateRule rule, StateLayout layout, std::size_t count, std::size_t misalignment = 0)
      : count_(count),
        master_(layout.master == MasterFormat::split ? 2 : 4, count, misalignment),
        exp_avg_(uses_exp_avg(rule) ? size_of(layout.moments) : 0, count, misalignment),
        exp_avg_sq_(uses_exp_avg_sq(rule) ? size_of(layout.moments) : 0, count, misalignment),
        parameter_(size_of(layout.parameter), count, misalignment) {}

  [[nodiscard]] ChunkSource source(std::size_t begin, std::size_t size,
                                   std::span<const std::byte> gradient, bool split) const {
    return {master_.part(begin, size), exp_avg_.part(begin, size), exp_avg_sq_.part(begin, size),
            split ? parameter_.part(begin, size) : std::span<const std::byte>(), gradient};
  }
  [[nodiscard]] ChunkTarget target(std::size_t begin, std::size_t size, bool with_parameter) {
    return {master_.part(begin, size), exp_avg_.part(begin, size), exp_avg_sq_.part(begin, size),
            with_parameter ? parameter_.part(begin, size) : std::span<std::byte>()};
  }
  [[nodiscard]] ChunkTarget all() { return target(0, count_, true); }

  friend bool operator==(const State&, const State&) = default;

 private:
  struct Array {
    Array(std::size_t element_size, std::size_t count, std::size_t skipped)
        : size(element_size), offset(skipped * element_size), bytes((count + skipped) * size) {}
    [[nodiscard]] std::span<const std::byte> part(std::size_t begin, std::size_t n) const {
      return std::span(bytes).subspan(offset + begin * size, n * size);
    }
    [[nodiscard]] std::span<std::byte> part(std::size_t begin, std::size_t n) {
      return std::span(bytes).subspan(offset + begin * size, n * size);
    }
    /// By memcmp: std::equal takes bytes one by one, most of a sanitizer's time for a large state.
    friend bool operator==(const Array& a, const Array& b) {
      const std::size_t n = a.bytes.size() - a.offset;
      if (n != b.bytes.size() - b.offset) return false;
      return n == 0 ||  // and their pointers null
             std::memcmp(a.bytes.data() + a.offset, b.bytes.data() + b.offset, n) == 0;
    }
    std::size_t size;
    std::size_t offset;
    Bytes bytes;
  };

  std::size_t count_;
  Array master_, exp_avg_, exp_avg_sq_, parameter_;
};

/// A number of either sign whose magnitude is spread evenly over the powers of two from
/// 2^low_exponent to 2^high_exponent; now and then 0 or subnormal.
inline float random_float(std::mt19937& random, int low_exponent, int high_exponent) {
  const std::uint32_t kind = random() % 64;
  if (kind == 0) return 0;
  const float sign = random() % 2 == 0 ? 1.0F : -1.0F;
  const float mantissa = 1.0F + static_cast<float>(random() % 0x800000U) * 0x1p-23F;
  if (kind == 1) return sign * std::ldexp(mantissa, -135);
  const auto range = static_cast<std::uint32_t>(high_exponent - low_exponent);
  return sign * std::ldexp(mantissa, low_exponent + static_cast<int>(random() % range));
}

inline void put_float(std::span<std::byte> bytes, DType dtype, std::size_t index, float value) {
  if (dtype == DType::bf16) return put(bytes, index, to_bf16(value));
  if (dtype == DType::f16) return put(bytes, index, to_f16(value));
  put(bytes, index, value);
}

inline Bytes random_gradient(std::mt19937& random, DType dtype, std::size_t count) {
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    put_float(bytes, dtype, i, random_float(random, -24, 12));
  }
  return bytes;
}

inline void fill(State& state, std::mt19937& random, UpdateRule rule, StateLayout layout) {
  const ChunkTarget all = state.all();
  const std::size_t count = all.parameter.size() / size_of(layout.parameter);
  for (std::size_t i = 0; i < count; ++i) {
    const float p = random_float(random, -12, 4);
    if (layout.master == MasterFormat::split) {
      put(all.master, i, split_float(p).remainder);
      put(all.parameter, i, split_float(p).parameter);
    } else {
      put(all.master, i, p);
    }
    const float m = random_float(random, -24, 4);
    const float v = std::abs(random_float(random, -48, 8));
    if (uses_exp_avg(rule)) put_float(all.exp_avg, layout.moments, i, m);
    if (uses_exp_avg_sq(rule)) put_float(all.exp_avg_sq, layout.moments, i, v);
  }
}

}  // namespace terrace::kernels::reference
