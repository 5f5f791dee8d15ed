#pragma once

#include <cstddef>
#include <vector>

namespace terrace::io {

/// A first-in, first-out queue of fixed capacity, which its user's bounds keep from overflowing:
/// nothing is allocated while running.
template <class T>
class Ring {
 public:
  explicit Ring(std::size_t capacity) : items_(capacity) {}
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] const T& front() const { return items_[head_]; }
  void push(const T& item) { items_[(head_ + count_++) % items_.size()] = item; }
  T pop() {
    const T item = items_[head_];
    head_ = (head_ + 1) % items_.size();
    --count_;
    return item;
  }

 private:
  std::vector<T> items_;
  std::size_t head_ = 0;
  std::size_t count_ = 0;
};

}  // namespace terrace::io
