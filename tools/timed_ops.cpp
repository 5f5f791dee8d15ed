#include "timed_ops.h"

#include <algorithm>
#include <tuple>

#include "terrace/core/clock.h"

namespace terrace::tools {
namespace {

/// 2 per score and 2 per value for each of the D elements, over the pairs that causality leaves.
double attention_flops(const kernels::AttentionArgs& args) {
  const auto t = static_cast<double>(args.sequence);
  const double before = args.window > 0 ? std::min(t, static_cast<double>(args.window)) : t;
  const double pairs = before * t - before * (before - 1) / 2;
  return 4 * pairs * static_cast<double>(args.rows * args.heads * args.head_size);
}

/// What tells the products of a step apart.
auto product_key(const kernels::MatmulArgs& args) {
  return std::tuple(args.m, args.n, args.k, args.a.dtype, args.target.dtype, args.a_transposed,
                    args.b_transposed, args.accumulate, static_cast<bool>(args.bias),
                    static_cast<bool>(args.residual));
}

double flops_of(const kernels::Op& op) {
  if (const auto* product = std::get_if<kernels::MatmulArgs>(&op)) {
    return 2.0 * static_cast<double>(product->m) * static_cast<double>(product->n * product->k);
  }
  if (const auto* forward = std::get_if<kernels::AttentionArgs>(&op)) {
    return attention_flops(*forward);
  }
  if (const auto* backward = std::get_if<kernels::AttentionBackwardArgs>(&op)) {
    return 2.5 * attention_flops(backward->forward);
  }
  return 0;
}

std::string_view name_of(const kernels::Op& op) {
  // Products of a transposed left side are weight gradients, wherever models use them.
  const auto* product = std::get_if<kernels::MatmulArgs>(&op);
  if (product != nullptr && product->a_transposed) return "matmul weight gradient";
  return std::visit([]<class Args>(const Args&) { return Args::kName; }, op);
}

/// The one of `list` that `is_it`, made from `made` if there is none.
template <class T, class Predicate>
T& find_or_add(std::vector<T>& list, const Predicate& is_it, const T& made) {
  const auto found = std::ranges::find_if(list, is_it);
  return found != list.end() ? *found : list.emplace_back(made);
}

}  // namespace

void TimedOps::restart() {
  for (OperationTime& time : times_) time = {.name = time.name};
  for (ProductTime& product : products_) product.seconds = 0, product.calls = 0;
}

std::vector<OperationTime> TimedOps::times() const {
  std::vector<OperationTime> called;
  std::ranges::copy_if(times_, std::back_inserter(called),
                       [](const OperationTime& time) { return time.calls > 0; });
  std::ranges::sort(called, std::greater(), &OperationTime::seconds);
  return called;
}

bool TimedOps::same_product(const kernels::MatmulArgs& a, const kernels::MatmulArgs& b) {
  return product_key(a) == product_key(b);
}

std::vector<ProductTime> TimedOps::products() const {
  std::vector<ProductTime> called;
  std::ranges::copy_if(products_, std::back_inserter(called),
                       [](const ProductTime& product) { return product.calls > 0; });
  std::ranges::sort(called, std::greater(), &ProductTime::seconds);
  return called;
}

void TimedOps::finish(const kernels::Op& op, double seconds) {
  const std::string_view name = name_of(op);
  OperationTime& time = find_or_add(
      times_, [&](const OperationTime& known) { return known.name == name; }, {.name = name});
  time.seconds += seconds;
  time.flops += flops_of(op);
  ++time.calls;
  const auto* args = std::get_if<kernels::MatmulArgs>(&op);
  if (args == nullptr) return;
  ProductTime& product = find_or_add(
      products_, [&](const ProductTime& known) { return same_product(known.args, *args); },
      {.args = *args});
  product.seconds += seconds;
  ++product.calls;
}

void TimedOps::enqueue(device::Stream& stream, const kernels::Op& op) {
  stream.enqueue([this] { began_us_ = now_us(); });
  OpsDecorator::enqueue(stream, op);
  stream.enqueue([this, op] { finish(op, seconds_since(began_us_)); });
}

}  // namespace terrace::tools
