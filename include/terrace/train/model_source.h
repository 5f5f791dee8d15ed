#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "terrace/checkpoint/model_folder.h"
#include "terrace/core/log.h"
#include "terrace/data/tokenizer.h"
#include "terrace/model/model.h"

namespace terrace::train {

/// What "--model" means: a preset's shape, or a folder with a configuration (and perhaps weights).
struct ModelSource {
  std::string name;  ///< as the user gave it
  model::Config config;
  /// The folder with the weights; empty for a preset.
  std::filesystem::path folder;
  /// Presets train from nothing and have a learning rate of their own.
  std::optional<double> learning_rate;
  data::TokenizerKind tokenizer = data::TokenizerKind::bytes;
  std::string base_json;
  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;

  [[nodiscard]] bool is_preset() const { return folder.empty(); }
  /// The description of a folder that holds this model, its tokenizer's files included.
  [[nodiscard]] checkpoint::ModelDescription description(DType dtype) const;
};

/// Whether the name is that of a folder, there or not, and not a preset's.
[[nodiscard]] bool names_folder(const std::string& name);

/// Finds the model. A name without a slash that is no folder is a preset's.
/// Errors: usage for an unknown preset (naming the known ones), data for a folder that is no model.
[[nodiscard]] ModelSource find_model(const std::string& name, Log& log);

/// Names and shapes of all parameters, in the model's order: what checkpoints are checked against.
[[nodiscard]] std::vector<checkpoint::TensorShape> tensor_shapes(const model::Model& model);

/// The stored weights of a folder, checked against the model; those of a checkpoint are read once
/// to verify their checksums. Errors: corrupt, naming the file; io; as `checkpoint::ModelWeights`.
[[nodiscard]] std::unique_ptr<checkpoint::ModelWeights> open_weights(
    const ModelSource& source, const model::Model& model, Log& log,
    const ProgressFunction& progress = {});

}  // namespace terrace::train
