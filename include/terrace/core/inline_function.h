#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace terrace {

/// A move-only `void()` callable kept in place: what a queue on the step path holds, because it
/// never allocates. A callable larger than `Capacity` does not compile.
template <std::size_t Capacity = 256>
class InlineFunction {  // NOLINTBEGIN(*-member-init): `storage_` holds nothing without a table
 public:
  InlineFunction() = default;

  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, InlineFunction>)
      // NOLINTNEXTLINE(google-explicit-constructor, *-forwarding-*): stands in for the lambda.
      InlineFunction(F&& function) {
    using Callable = std::remove_cvref_t<F>;
    static_assert(sizeof(Callable) <= Capacity, "the callable is too large to keep in place");
    static_assert(alignof(Callable) <= alignof(std::max_align_t));
    static_assert(std::is_nothrow_move_constructible_v<Callable>);
    new (storage_) Callable(std::forward<F>(function));
    table_ = &kTable<Callable>;
  }

  InlineFunction(InlineFunction&& other) noexcept { take(other); }
  InlineFunction& operator=(InlineFunction&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  InlineFunction(const InlineFunction&) = delete;
  InlineFunction& operator=(const InlineFunction&) = delete;
  ~InlineFunction() { reset(); }

  explicit operator bool() const { return table_ != nullptr; }
  void operator()() { table_->call(storage_); }

 private:
  struct Table {
    void (*call)(void*);
    void (*move)(void* from, void* to) noexcept;
    void (*destroy)(void*) noexcept;
  };

  template <class F>
  static constexpr Table kTable = {
      [](void* object) { (*static_cast<F*>(object))(); },
      [](void* from, void* to) noexcept {
        new (to) F(std::move(*static_cast<F*>(from)));
        static_cast<F*>(from)->~F();
      },
      [](void* object) noexcept { static_cast<F*>(object)->~F(); },
  };

  void take(InlineFunction& other) noexcept {
    table_ = std::exchange(other.table_, nullptr);
    if (table_ != nullptr) table_->move(other.storage_, storage_);
  }
  void reset() noexcept {
    if (table_ != nullptr) std::exchange(table_, nullptr)->destroy(storage_);
  }

  alignas(std::max_align_t) std::byte storage_[Capacity];
  const Table* table_ = nullptr;
};  // NOLINTEND(*-member-init)

}  // namespace terrace
