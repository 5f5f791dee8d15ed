#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/device/device.h"
#include "terrace/kernels/ops.h"

// What `Ops` refuses, whichever table is behind it.

namespace terrace::kernels {
namespace {

/// One example of each operation, complete and valid.
class Examples {
 public:
  Examples() {
    const device::Pointer at(&anywhere_);
    const View x{at, DType::f32};
    ops_ = {MatmulArgs{.m = 4, .n = 4, .k = 4, .a = x, .b = x, .target = x, .scratch = at},
            BiasGradientArgs{.rows = 4, .columns = 4, .d_y = x, .d_bias = x, .scratch = at},
            EmbeddingArgs{1, 4, 4, 4, at, x, {}, x},
            EmbeddingBackwardArgs{1, 4, 4, 4, 0, at, x, x, {}, false, false, at},
            NormArgs{.rows = 4, .columns = 4, .input = x, .weight = x, .output = x},
            NormBackwardArgs{.rows = 4,
                             .columns = 4,
                             .input = x,
                             .weight = x,
                             .statistics = at,
                             .d_output = x,
                             .d_input = x,
                             .d_weight = x,
                             .scratch = at},
            RotaryArgs{.rows = 1, .sequence = 4, .heads = 1, .head_size = 4, .values = x},
            attention(x),
            AttentionBackwardArgs{attention(x), x, x, x, x, at},
            SwigluArgs{4, 4, x, x, 0, x},
            SwigluBackwardArgs{4, 4, x, x, x, x, x, 0, {}},
            GeluArgs{4, x, x},
            GeluBackwardArgs{4, x, x, x, {}},
            AddArgs{4, x, x, x},
            CrossEntropyArgs{.rows = 4, .vocabulary = 4, .logits = x, .targets = at, .losses = at},
            GatherRowsArgs{4, 4, 4, at, x, x},
            ConvertArgs{4, x, x},
            SumArgs{4, at, at},
            ClearArgs{at, 16}};
  }

  [[nodiscard]] const std::vector<Op>& ops() const { return ops_; }
  template <class Args>
  [[nodiscard]] Args of() const {
    for (const Op& op : ops_) {
      if (const auto* args = std::get_if<Args>(&op)) return *args;
    }
    return {};
  }

 private:
  static AttentionArgs attention(const View& x) {
    AttentionArgs args{1, 4, 1, 1, 4, 0, 1};
    args.q = args.k = args.v = args.output = x;
    args.log_sum_exp = args.scratch = x.data;
    return args;
  }

  int anywhere_ = 0;  ///< nobody looks
  std::vector<Op> ops_;
};

/// A table that only counts.
class Gate final : public Ops {
 public:
  [[nodiscard]] std::string description() const override { return "gate"; }
  [[nodiscard]] std::string instead_of_native(DType /*dtype*/) const override { return ""; }
  int passed = 0;

 protected:
  void enqueue(device::Stream& /*stream*/, const Op& /*op*/) override { ++passed; }
  [[nodiscard]] std::uint64_t size_scratch(const Op& /*op*/) override { return 1; }
};

class Refusals : public ::testing::Test {
 protected:
  /// What is said of the example of `Args` once `spoil` has changed it; empty: nothing.
  template <class Args>
  std::string after(const std::function<void(Args&)>& spoil) {
    Args args = examples_.of<Args>();
    spoil(args);
    return refusal(args);
  }
  std::string refusal(const Op& op) {
    try {
      gate_.run(*stream_, op);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "";
  }

  std::unique_ptr<device::Device> device_ = device::make_host_device();
  std::unique_ptr<device::Stream> stream_ = device_->make_stream("test");
  Examples examples_;
  Gate gate_;
};

TEST_F(Refusals, complete_operations_pass_and_are_one_of_each_kind) {
  ASSERT_EQ(examples_.ops().size(), std::variant_size_v<Op>);
  for (std::size_t kind = 0; kind < examples_.ops().size(); ++kind) {
    EXPECT_EQ(examples_.ops()[kind].index(), kind);
    EXPECT_EQ(refusal(examples_.ops()[kind]), "");
  }
  EXPECT_EQ(gate_.passed, static_cast<int>(std::variant_size_v<Op>));
}

TEST_F(Refusals, an_operation_without_operands_is_refused_by_name) {
  for (const Op& op : examples_.ops()) {
    std::visit(
        [&]<class Args>(const Args&) {
          EXPECT_THAT(refusal(Args{}), ::testing::StartsWith(std::string(Args::kName) + ": "));
        },
        op);
  }
  EXPECT_EQ(gate_.passed, 0);
}

TEST_F(Refusals, a_missing_operand_is_named_where_it_is_run_and_not_where_it_is_sized) {
  const auto drop = [](AddArgs& args) { args.b.data = {}; };
  EXPECT_EQ(after<AddArgs>(drop), "add: b is missing.");
  EXPECT_EQ(after<CrossEntropyArgs>([](auto& args) { args.losses = {}; }),
            "cross entropy: losses is missing.");
  AddArgs args = examples_.of<AddArgs>();
  drop(args);
  EXPECT_EQ(gate_.scratch_bytes(args), 1U);
}

TEST_F(Refusals, a_dtype_that_does_not_fit_is_named) {
  EXPECT_EQ(after<GeluArgs>([](auto& args) { args.input.dtype = DType::i32; }),
            "gelu: input is int32, expected fp32 or bf16.");
  EXPECT_EQ(after<NormBackwardArgs>([](auto& args) { args.d_weight.dtype = DType::bf16; }),
            "norm backward: d_weight is bf16, expected fp32.");
  EXPECT_EQ(after<MatmulArgs>([](auto& args) { args.b.dtype = DType::bf16; }),
            "matmul: b is bf16, expected fp32.");
}

TEST_F(Refusals, rows_that_would_overlap_are_refused) {
  EXPECT_EQ(after<SwigluArgs>([](auto& args) { args.stride = 3; }),
            "swiglu: stride is 3, but a row has 4 elements.");
  EXPECT_EQ(after<AttentionArgs>([](auto& args) { args.k_stride = 1; }),
            "attention: k_stride is 1, but a row has 4 elements.");
}

TEST_F(Refusals, what_cannot_be_run_cannot_be_sized) {
  AttentionArgs args = examples_.of<AttentionArgs>();
  args.head_size = 0;
  EXPECT_THROW((void)gate_.scratch_bytes(args), Error);
}

TEST_F(Refusals, operands_that_contradict_each_other_are_refused) {
  EXPECT_EQ(after<NormArgs>([](auto& args) { args.kind = NormKind::layer; }),
            "norm: layer norm has a bias, rms norm has none.");
  EXPECT_EQ(after<AttentionArgs>([](auto& args) { args.heads = 3, args.kv_heads = 2; }),
            "attention: heads is not a multiple of kv_heads.");
  EXPECT_EQ(after<MatmulArgs>([](auto& args) { args.accumulate = true, args.residual = args.a; }),
            "matmul: accumulate is for fp32 targets without a residual.");
}

TEST_F(Refusals, a_size_that_is_none_is_refused) {
  EXPECT_EQ(after<MatmulArgs>([](auto& args) { args.k = 0; }),
            "matmul: k is 0, expected at least 1.");
  EXPECT_EQ(after<ConvertArgs>([](auto& args) { args.count = -1; }),
            "convert: count is -1, expected at least 0.");
  EXPECT_EQ(after<RotaryArgs>([](auto& args) { args.head_size = 3; }),
            "rotary: head_size is odd; rotary positions turn pairs.");
}

}  // namespace
}  // namespace terrace::kernels
