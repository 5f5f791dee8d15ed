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

}  // namespace

std::string_view TimedOps::name_of_kind(Kind kind) {
  constexpr std::array<std::string_view, static_cast<std::size_t>(Kind::count)> kNames = {
      "matmul",
      "matmul weight gradient",
      "bias gradient",
      "embedding",
      "embedding backward",
      "norm",
      "norm backward",
      "rotary",
      "attention",
      "attention backward",
      "swiglu",
      "swiglu backward",
      "gelu",
      "gelu backward",
      "add",
      "cross entropy",
      "other"};
  return kNames[static_cast<std::size_t>(kind)];
}

void TimedOps::restart() {
  times_ = {};
  for (ProductTime& product : products_) product.seconds = 0, product.calls = 0;
  for (std::size_t kind = 0; kind < times_.size(); ++kind) {
    times_[kind].name = name_of_kind(static_cast<Kind>(kind));
  }
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

std::size_t TimedOps::index_of(const kernels::MatmulArgs& args) {
  const auto found = std::ranges::find_if(
      products_, [&](const ProductTime& product) { return same_product(product.args, args); });
  if (found != products_.end()) return static_cast<std::size_t>(found - products_.begin());
  products_.push_back({.args = args});
  return products_.size() - 1;
}

void TimedOps::finish(Kind kind, double seconds, double flops) {
  OperationTime& time = times_[static_cast<std::size_t>(kind)];
  time.seconds += seconds;
  time.flops += flops;
  ++time.calls;
}

template <class Enqueue>
void TimedOps::timed(device::Stream& stream, Kind kind, double flops, const Enqueue& enqueue) {
  stream.enqueue([this] { began_us_ = now_us(); });
  enqueue();
  stream.enqueue([this, kind, flops] { finish(kind, seconds_since(began_us_), flops); });
}

void TimedOps::matmul(device::Stream& stream, const kernels::MatmulArgs& args) {
  // Products of a transposed left side are weight gradients, wherever models use them.
  const Kind kind = args.a_transposed ? Kind::matmul_weight_gradient : Kind::matmul;
  const double flops = 2.0 * static_cast<double>(args.m) * static_cast<double>(args.n * args.k);
  stream.enqueue([this] { began_us_ = now_us(); });
  inner_.matmul(stream, args);
  stream.enqueue([this, kind, flops, args] {
    const double seconds = seconds_since(began_us_);
    finish(kind, seconds, flops);
    ProductTime& product = products_[index_of(args)];
    product.seconds += seconds;
    ++product.calls;
  });
}

void TimedOps::bias_gradient(device::Stream& stream, const kernels::BiasGradientArgs& args) {
  timed(stream, Kind::bias_gradient, 0, [&] { inner_.bias_gradient(stream, args); });
}
void TimedOps::embedding_forward(device::Stream& stream, const kernels::EmbeddingArgs& args) {
  timed(stream, Kind::embedding, 0, [&] { inner_.embedding_forward(stream, args); });
}
void TimedOps::embedding_backward(device::Stream& stream,
                                  const kernels::EmbeddingBackwardArgs& args) {
  timed(stream, Kind::embedding_backward, 0, [&] { inner_.embedding_backward(stream, args); });
}
void TimedOps::norm_forward(device::Stream& stream, const kernels::NormArgs& args) {
  timed(stream, Kind::norm, 0, [&] { inner_.norm_forward(stream, args); });
}
void TimedOps::norm_backward(device::Stream& stream, const kernels::NormBackwardArgs& args) {
  timed(stream, Kind::norm_backward, 0, [&] { inner_.norm_backward(stream, args); });
}
void TimedOps::rotary(device::Stream& stream, const kernels::RotaryArgs& args) {
  timed(stream, Kind::rotary, 0, [&] { inner_.rotary(stream, args); });
}
void TimedOps::attention_forward(device::Stream& stream, const kernels::AttentionArgs& args) {
  timed(stream, Kind::attention, attention_flops(args),
        [&] { inner_.attention_forward(stream, args); });
}
void TimedOps::attention_backward(device::Stream& stream,
                                  const kernels::AttentionBackwardArgs& args) {
  timed(stream, Kind::attention_backward, 2.5 * attention_flops(args.forward),
        [&] { inner_.attention_backward(stream, args); });
}
void TimedOps::swiglu_forward(device::Stream& stream, const kernels::SwigluArgs& args) {
  timed(stream, Kind::swiglu, 0, [&] { inner_.swiglu_forward(stream, args); });
}
void TimedOps::swiglu_backward(device::Stream& stream, const kernels::SwigluBackwardArgs& args) {
  timed(stream, Kind::swiglu_backward, 0, [&] { inner_.swiglu_backward(stream, args); });
}
void TimedOps::gelu_forward(device::Stream& stream, const kernels::GeluArgs& args) {
  timed(stream, Kind::gelu, 0, [&] { inner_.gelu_forward(stream, args); });
}
void TimedOps::gelu_backward(device::Stream& stream, const kernels::GeluBackwardArgs& args) {
  timed(stream, Kind::gelu_backward, 0, [&] { inner_.gelu_backward(stream, args); });
}
void TimedOps::add(device::Stream& stream, const kernels::AddArgs& args) {
  timed(stream, Kind::add, 0, [&] { inner_.add(stream, args); });
}
void TimedOps::cross_entropy(device::Stream& stream, const kernels::CrossEntropyArgs& args) {
  timed(stream, Kind::cross_entropy, 0, [&] { inner_.cross_entropy(stream, args); });
}
void TimedOps::sum_f64(device::Stream& stream, device::Pointer values, std::int64_t count,
                       device::Pointer sum) {
  timed(stream, Kind::other, 0, [&] { inner_.sum_f64(stream, values, count, sum); });
}
void TimedOps::gather_rows(device::Stream& stream, const kernels::GatherRowsArgs& args) {
  timed(stream, Kind::other, 0, [&] { inner_.gather_rows(stream, args); });
}
void TimedOps::convert(device::Stream& stream, kernels::View target, kernels::View source,
                       std::int64_t count) {
  timed(stream, Kind::other, 0, [&] { inner_.convert(stream, target, source, count); });
}
void TimedOps::clear(device::Stream& stream, device::Pointer target, std::uint64_t bytes) {
  timed(stream, Kind::other, 0, [&] { inner_.clear(stream, target, bytes); });
}

}  // namespace terrace::tools
