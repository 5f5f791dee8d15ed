#include "unit.h"

// Rows of a table by token, in GPT-2 plus rows of a second table by position. Nothing is saved: the
// tokens are all that backward needs.

namespace terrace::model {
namespace {

enum Weight : std::size_t { kTable, kPositions };

class Embedding final : public Unit {
 public:
  Embedding(const Config& config, DType compute)
      : config_(config),
        compute_(compute),
        has_positions_(config.architecture == Architecture::gpt2) {}

  [[nodiscard]] std::uint64_t saved_bytes(BatchShape /*shape*/) const override { return 0; }

  void forward(Work& work, const Pass& pass) const override {
    kernels::EmbeddingArgs args;
    args.rows = pass.shape.rows;
    args.sequence = pass.shape.sequence;
    args.columns = config_.hidden_size;
    args.vocabulary = config_.vocab_size;
    args.tokens = pass.tokens;
    args.table = pass.weights[kTable];
    if (has_positions_) args.positions = pass.weights[kPositions];
    args.output = {pass.activations.output, compute_};
    work.embedding_forward(args);
  }

  void backward(Work& work, const Pass& pass) const override {
    kernels::EmbeddingBackwardArgs args;
    args.rows = pass.shape.rows;
    args.sequence = pass.shape.sequence;
    args.columns = config_.hidden_size;
    args.vocabulary = config_.vocab_size;
    args.tokens = pass.tokens;
    args.d_output = {pass.d_boundary, compute_};
    args.d_table = pass.gradients[kTable].values;
    args.accumulate = pass.gradients[kTable].accumulate;
    if (has_positions_) {
      args.position_rows = config_.max_position_embeddings;
      args.d_positions = pass.gradients[kPositions].values;
      args.accumulate_positions = pass.gradients[kPositions].accumulate;
    }
    work.embedding_backward(args);
  }

 private:
  Config config_;
  DType compute_;
  bool has_positions_;
};

}  // namespace

std::unique_ptr<Unit> make_embedding(const Config& config, DType compute) {
  return std::make_unique<Embedding>(config, compute);
}

}  // namespace terrace::model
