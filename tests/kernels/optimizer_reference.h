#pragma once

#include <algorithm>
#include <array>
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

/// The step on the whole of `chunk`, which is in host memory.
inline void step(UpdateRule rule, StateLayout layout, const ChunkViews& chunk,
                 const Coefficients& c) {
  const bool split = layout.master == MasterFormat::split;
  for (std::size_t i = 0; i < static_cast<std::size_t>(chunk.count); ++i) {
    const ChunkSource& from = chunk.source;
    const ChunkTarget& to = chunk.target;
    Element x{};
    x.p = split ? join_float({get<Bf16>(from.parameter.on_host(), i),
                              get<std::uint16_t>(from.master.on_host(), i)})
                : get<float>(from.master.on_host(), i);
    if (uses_exp_avg(rule)) x.m = get_float(from.exp_avg.on_host(), layout.moments, i);
    if (uses_exp_avg_sq(rule)) x.v = get_float(from.exp_avg_sq.on_host(), layout.moments, i);
    apply(rule, c, get_float(from.gradient.on_host(), layout.gradient, i), x);
    if (split) put(to.master.on_host(), i, split_float(x.p).remainder);
    if (!split) put(to.master.on_host(), i, x.p);
    if (!to.parameter.empty()) {
      if (layout.parameter == DType::bf16) put(to.parameter.on_host(), i, to_parameter_bf16(x.p));
      if (layout.parameter == DType::f16) put(to.parameter.on_host(), i, to_f16(x.p));
      if (layout.parameter == DType::f32) put(to.parameter.on_host(), i, x.p);
    }
    const bool narrow = layout.moments == DType::bf16;
    const std::uint32_t word =
        narrow ? rounding_word(c.seed, c.step, static_cast<std::uint64_t>(chunk.first_index) + i)
               : 0;
    if (uses_exp_avg(rule)) {
      narrow ? put(to.exp_avg.on_host(), i, round_stochastically(x.m, word & 0xffffU))
             : put(to.exp_avg.on_host(), i, x.m);
    }
    if (uses_exp_avg_sq(rule)) {
      narrow ? put(to.exp_avg_sq.on_host(), i, round_stochastically(x.v, word >> 16))
             : put(to.exp_avg_sq.on_host(), i, x.v);
    }
  }
}

/// A range of parameters: the arrays of its state kinds, one behind the other in host memory. Each
/// array starts `misalignment` elements after a multiple of 64 bytes. `base` is where those bytes
/// are: in host memory or in a copy on a device.
class State {
 public:
  State(UpdateRule rule, StateLayout layout, std::size_t count, std::size_t misalignment = 0)
      : count_(count) {
    add(size_of(layout.master), misalignment);
    add(uses_exp_avg(rule) ? size_of(layout.moments) : 0, misalignment);
    add(uses_exp_avg_sq(rule) ? size_of(layout.moments) : 0, misalignment);
    add(size_of(layout.parameter), misalignment);
  }
  /// The same values in arrays that start elsewhere.
  [[nodiscard]] State moved(UpdateRule rule, StateLayout layout, std::size_t misalignment) const {
    State copy(rule, layout, count_, misalignment);
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      std::ranges::copy(array(i), copy.bytes_.begin() + copy.begin_of(i));
    }
    return copy;
  }

  [[nodiscard]] std::span<std::byte> bytes() { return bytes_; }
  [[nodiscard]] device::Pointer base() { return device::Pointer(bytes_.data()); }

  [[nodiscard]] ChunkSource source(device::Pointer base, std::size_t begin, std::size_t size,
                                   device::Span<const std::byte> gradient, bool split) const {
    const ChunkTarget at = target(base, begin, size);
    return {at.master, at.exp_avg, at.exp_avg_sq, split ? at.parameter : device::Span<std::byte>(),
            gradient};
  }
  [[nodiscard]] ChunkTarget target(device::Pointer base, std::size_t begin,
                                   std::size_t size) const {
    const auto part = [&](std::size_t i) {
      return device::Span<std::byte>(base + (arrays_[i].begin + begin * arrays_[i].element),
                                     size * arrays_[i].element);
    };
    return {part(0), part(1), part(2), part(3)};
  }
  /// All of it in host memory.
  [[nodiscard]] ChunkTarget all() { return target(base(), 0, count_); }

  friend bool operator==(const State& a, const State& b) {
    for (std::size_t i = 0; i < a.arrays_.size(); ++i) {
      const std::span<const std::byte> x = a.array(i), y = b.array(i);
      // By memcmp: std::equal takes bytes one by one, most of a sanitizer's time.
      if (x.size() != y.size() || std::memcmp(x.data(), y.data(), x.size()) != 0) return false;
    }
    return true;
  }

 private:
  struct Array {
    std::size_t element = 0;  // bytes
    std::size_t begin = 0;
  };

  void add(std::size_t element, std::size_t misalignment) {
    const std::size_t begin = (bytes_.size() + 63) / 64 * 64 + misalignment * element;
    arrays_[added_++] = {element, begin};
    bytes_.resize(begin + count_ * element);
  }
  [[nodiscard]] std::ptrdiff_t begin_of(std::size_t i) const {
    return static_cast<std::ptrdiff_t>(arrays_[i].begin);
  }
  [[nodiscard]] std::span<const std::byte> array(std::size_t i) const {
    return std::span(bytes_).subspan(arrays_[i].begin, count_ * arrays_[i].element);
  }

  std::size_t count_;
  std::array<Array, 4> arrays_;  // master, exp_avg, exp_avg_sq, parameter
  std::size_t added_ = 0;
  Bytes bytes_;
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
      put(all.master.on_host(), i, split_float(p).remainder);
      put(all.parameter.on_host(), i, split_float(p).parameter);
    } else {
      put(all.master.on_host(), i, p);
    }
    const float m = random_float(random, -24, 4);
    const float v = std::abs(random_float(random, -48, 8));
    if (uses_exp_avg(rule)) put_float(all.exp_avg.on_host(), layout.moments, i, m);
    if (uses_exp_avg_sq(rule)) put_float(all.exp_avg_sq.on_host(), layout.moments, i, v);
  }
}

}  // namespace terrace::kernels::reference
