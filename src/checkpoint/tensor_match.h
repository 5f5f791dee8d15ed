#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "terrace/checkpoint/model_folder.h"
#include "terrace/checkpoint/shards.h"

namespace terrace::checkpoint {

inline constexpr std::string_view kHeadName = "lm_head.weight";
[[nodiscard]] std::string_view embedding_name(const model::Config& config);

/// Stored tensors against those that a model has.
struct TensorMatch {
  std::unordered_map<std::string, ShardReader::Located> found;  ///< by the model's names
  std::vector<std::string> missing;     ///< "NAME SHAPE", in the model's order
  std::vector<std::string> unexpected;  ///< "NAME SHAPE", in the files' order
  std::vector<std::string> misshapen;   ///< "NAME is SHAPE, not SHAPE"
  std::vector<std::string> ignored;     ///< by the patterns of the options
};

[[nodiscard]] TensorMatch match_tensors(const ShardReader& shards,
                                        std::span<const TensorShape> expected,
                                        const model::Config& config, const WeightsOptions& options);

/// Refuses a match that is not exact: the first five of what is missing and unexpected, side by
/// side, and of what has another shape. Errors: kind `kind`.
void require_match(const TensorMatch& match, const std::string& where, ErrorKind kind);

}  // namespace terrace::checkpoint
