#pragma once

#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

namespace terrace::model::reference {

class Tape;

/// A double that remembers on a tape what it was made from. Without a tape it is a constant.
struct Var {
  double value = 0;
  std::size_t node = std::numeric_limits<std::size_t>::max();
  Tape* tape = nullptr;

  Var() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): constants mix with variables in formulas.
  Var(double constant) : value(constant) {}
};

/// Reverse-mode differentiation in double precision, an operation at a time: a reference only has
/// to write a model's forward down, and its gradient holds no formula that the code under test
/// could share. Source: Griewank and Walther, "Evaluating Derivatives", chapter 3.
class Tape {
 public:
  Var variable(double value) { return add(value); }

  /// A new value and its partial derivative by each operand.
  Var record(double value, std::initializer_list<std::pair<const Var*, double>> operands) {
    for (const auto& [operand, slope] : operands) edge(*operand, slope);
    return add(value);
  }
  /// sum_i a[i * a_step] * b[i * b_step].
  Var dot(const Var* a, std::size_t a_step, const Var* b, std::size_t b_step, std::size_t count) {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const Var &x = a[i * a_step], &y = b[i * b_step];
      sum += x.value * y.value;
      edge(x, y.value);
      edge(y, x.value);
    }
    return add(sum);
  }

  /// d output / d v for every value v on the tape, by `Var::node`.
  [[nodiscard]] std::vector<double> adjoints(const Var& output) const {
    std::vector<double> adjoint(ends_.size(), 0.0);
    if (output.tape != nullptr) adjoint[output.node] = 1;
    for (std::size_t node = ends_.size(); node-- > 0;) {
      if (adjoint[node] == 0) continue;
      const std::size_t first = node == 0 ? 0 : ends_[node - 1];
      for (std::size_t e = first; e < ends_[node]; ++e) {
        adjoint[edges_[e].operand] += edges_[e].slope * adjoint[node];
      }
    }
    return adjoint;
  }

 private:
  struct Edge {
    std::size_t operand;
    double slope;
  };
  void edge(const Var& operand, double slope) {
    if (operand.tape != nullptr) edges_.push_back({operand.node, slope});
  }
  Var add(double value) {
    Var var(value);
    var.node = ends_.size();
    var.tape = this;
    ends_.push_back(edges_.size());
    return var;
  }

  std::vector<Edge> edges_;  // those of node i end at ends_[i]
  std::vector<std::size_t> ends_;
};

inline Tape* tape_of(const Var& a, const Var& b) { return a.tape != nullptr ? a.tape : b.tape; }

inline Var binary(const Var& a, const Var& b, double value, double by_a, double by_b) {
  Tape* tape = tape_of(a, b);
  return tape == nullptr ? Var(value) : tape->record(value, {{&a, by_a}, {&b, by_b}});
}
inline Var operator+(const Var& a, const Var& b) { return binary(a, b, a.value + b.value, 1, 1); }
inline Var operator-(const Var& a, const Var& b) { return binary(a, b, a.value - b.value, 1, -1); }
inline Var operator*(const Var& a, const Var& b) {
  return binary(a, b, a.value * b.value, b.value, a.value);
}
inline Var operator/(const Var& a, const Var& b) {
  return binary(a, b, a.value / b.value, 1 / b.value, -a.value / (b.value * b.value));
}
inline Var unary(const Var& a, double value, double slope) {
  return a.tape == nullptr ? Var(value) : a.tape->record(value, {{&a, slope}});
}
inline Var exp(const Var& a) { return unary(a, std::exp(a.value), std::exp(a.value)); }
inline Var log(const Var& a) { return unary(a, std::log(a.value), 1 / a.value); }
inline Var sqrt(const Var& a) { return unary(a, std::sqrt(a.value), 0.5 / std::sqrt(a.value)); }
inline Var tanh(const Var& a) {
  const double t = std::tanh(a.value);
  return unary(a, t, 1 - t * t);
}

inline Var dot(const Var* a, std::size_t a_step, const Var* b, std::size_t b_step,
               std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (Tape* tape = tape_of(a[i * a_step], b[i * b_step]); tape != nullptr) {
      return tape->dot(a, a_step, b, b_step, count);
    }
  }
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i * a_step].value * b[i * b_step].value;
  return sum;
}
inline double dot(const double* a, std::size_t a_step, const double* b, std::size_t b_step,
                  std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i * a_step] * b[i * b_step];
  return sum;
}

}  // namespace terrace::model::reference
