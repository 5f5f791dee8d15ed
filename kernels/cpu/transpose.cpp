#include "cpu/repacked_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/transpose.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// A square of as many rows as a 128-bit vector has lanes. Interleaving row i with row i + n/2 for
/// all i is a perfect shuffle of the rows' elements; log2(n) of them transpose the square.
template <class D, std::size_t kLanes>
HWY_INLINE void transpose_square(D d, const hn::TFromD<D>* source, std::int64_t source_stride,
                                 hn::TFromD<D>* target, std::int64_t target_stride) {
  hn::Vec<D> rows[kLanes];
  hn::Vec<D> next[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) {
    rows[i] = hn::LoadU(d, source + static_cast<std::int64_t>(i) * source_stride);
  }
#if HWY_TARGET != HWY_SCALAR  // which has squares of one element and no interleaving
  for (std::size_t done = 1; done < kLanes; done *= 2) {
    for (std::size_t i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = hn::InterleaveLower(d, rows[i], rows[i + kLanes / 2]);
      next[2 * i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + kLanes / 2]);
    }
    for (std::size_t i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
#else
  (void)next;
#endif
  for (std::size_t i = 0; i < kLanes; ++i) {
    hn::StoreU(rows[i], d, target + static_cast<std::int64_t>(i) * target_stride);
  }
}

template <class T>
void transpose_columns(const Transposition& args, std::int64_t begin, std::int64_t end) {
#if HWY_TARGET == HWY_SCALAR
  constexpr std::int64_t kLanes = 1;
#else
  constexpr std::int64_t kLanes = 16 / sizeof(T);
#endif
  const hn::FixedTag<T, static_cast<std::size_t>(kLanes)> d;
  const T* source = static_cast<const T*>(args.source);
  T* target = static_cast<T*>(args.target);
  const std::int64_t whole_rows = args.rows / kLanes * kLanes;
  const std::int64_t whole_end = begin + (end - begin) / kLanes * kLanes;
  for (std::int64_t row = 0; row < whole_rows; row += kLanes) {
    for (std::int64_t column = begin; column < whole_end; column += kLanes) {
      transpose_square<decltype(d), static_cast<std::size_t>(kLanes)>(
          d, source + row * args.source_stride + column, args.source_stride,
          target + column * args.target_stride + row, args.target_stride);
    }
  }
  for (std::int64_t row = 0; row < args.rows; ++row) {
    for (std::int64_t column = row < whole_rows ? whole_end : begin; column < end; ++column) {
      target[column * args.target_stride + row] = source[row * args.source_stride + column];
    }
  }
}

}  // namespace

void transpose_some(const Transposition& args, std::int64_t begin, std::int64_t end) {
  if (size_of(args.dtype) == 2) {
    transpose_columns<std::uint16_t>(args, begin, end);
  } else {
    transpose_columns<std::uint32_t>(args, begin, end);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace terrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels {
namespace {
HWY_EXPORT(transpose_some);
}  // namespace

void transpose(CpuTarget cpu, const Transposition& args, std::int64_t begin, std::int64_t end) {
  HWY_DISPATCH_TABLE(transpose_some)[cpu.table_index()](args, begin, end);
}

}  // namespace terrace::kernels
#endif
