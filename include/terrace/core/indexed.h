#pragma once

#include <array>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace terrace {

/// Where an index points in its container: an id's value, an enumerator's number, or an integer.
template <class Index>
[[nodiscard]] constexpr std::size_t offset_of(Index index) {
  if constexpr (std::is_enum_v<Index> || std::is_integral_v<Index>) {
    return static_cast<std::size_t>(index);
  } else {
    return static_cast<std::size_t>(index.value);
  }
}

/// `I` may index what is indexed by `Index`: the same type or, where both are integers, any.
template <class I, class Index>
concept IndexFor = std::same_as<I, Index> ||(std::integral<I>&& std::integral<Index>);

/// A vector that is indexed by one type of id: `Indexed<Region, RegionId>`. With `int`, the
/// default, any integer is an index, so that signed numbers need no conversion.
template <class T, class Index = int>
class Indexed : public std::vector<T> {
  using Base = std::vector<T>;

 public:
  using Base::Base;

  template <IndexFor<Index> I>
  [[nodiscard]] typename Base::reference operator[](I index) {
    assert(offset_of(index) < Base::size());
    return Base::operator[](offset_of(index));
  }
  template <IndexFor<Index> I>
  [[nodiscard]] typename Base::const_reference operator[](I index) const {
    assert(offset_of(index) < Base::size());
    return Base::operator[](offset_of(index));
  }

  /// The size, signed as the indices are.
  [[nodiscard]] int count() const { return static_cast<int>(Base::size()); }
};

/// An array with an element for each of an enumeration's `count` enumerators.
template <class Enum, class T, int count>
struct EnumArray {
  using Values = std::array<T, static_cast<std::size_t>(count)>;
  using value_type = T;
  using const_iterator = typename Values::const_iterator;

  Values values{};

  [[nodiscard]] constexpr T& operator[](Enum index) { return values[offset_of(index)]; }
  [[nodiscard]] constexpr const T& operator[](Enum index) const { return values[offset_of(index)]; }
  [[nodiscard]] constexpr auto begin() { return values.begin(); }
  [[nodiscard]] constexpr auto end() { return values.end(); }
  [[nodiscard]] constexpr auto begin() const { return values.begin(); }
  [[nodiscard]] constexpr auto end() const { return values.end(); }
  [[nodiscard]] constexpr std::size_t size() const { return values.size(); }
  friend bool operator==(const EnumArray&, const EnumArray&) = default;
};

}  // namespace terrace
