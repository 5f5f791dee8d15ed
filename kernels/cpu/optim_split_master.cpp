#include "terrace/core/error.h"
#include "terrace/kernels/split_master.h"

namespace terrace::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 16;

void check_equal(std::size_t found, std::size_t expected, std::string_view what) {
  require(found == expected, ErrorKind::internal, "{} has {} elements, {} expected.", what, found,
          expected);
}

/// Calls `body(i)` for every element, in parallel.
template <class Body>
void for_each(Workers& workers, std::size_t count, const Body& body) {
  workers.parallel_for(
      static_cast<std::int64_t>(count), kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
          body(i);
        }
      });
}

}  // namespace

void split_master(Workers& workers, std::span<const float> master, std::span<Bf16> parameter,
                  std::span<std::uint16_t> remainder) {
  check_equal(parameter.size(), master.size(), "parameter");
  check_equal(remainder.size(), master.size(), "remainder");
  for_each(workers, master.size(), [&](std::size_t i) {
    const SplitFloat split = split_float(master[i]);
    parameter[i] = split.parameter;
    remainder[i] = split.remainder;
  });
}

void join_master(Workers& workers, std::span<const Bf16> parameter,
                 std::span<const std::uint16_t> remainder, std::span<float> master) {
  check_equal(remainder.size(), parameter.size(), "remainder");
  check_equal(master.size(), parameter.size(), "master");
  for_each(workers, master.size(), [&](std::size_t i) {
    master[i] = join_float({parameter[i], remainder[i]});
  });
}

void narrow_master(Workers& workers, std::span<const float> master, DType dtype,
                   std::span<std::byte> parameter) {
  check_equal(parameter.size(), master.size() * size_of(dtype), "parameter (in bytes)");
  void* data = parameter.data();
  switch (dtype) {
    case DType::bf16:
      return for_each(workers, master.size(), [&, to = static_cast<Bf16*>(data)](std::size_t i) {
        to[i] = to_parameter_bf16(master[i]);
      });
    case DType::f16:
      return for_each(workers, master.size(), [&, to = static_cast<F16*>(data)](std::size_t i) {
        to[i] = to_f16(master[i]);
      });
    case DType::f32:
      return for_each(workers, master.size(),
                      [&, to = static_cast<float*>(data)](std::size_t i) { to[i] = master[i]; });
    case DType::i32:
      fail(ErrorKind::internal, "a parameter of int32 cannot be made from a master.");
  }
}

}  // namespace terrace::kernels
