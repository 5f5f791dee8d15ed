#include "tensor_match.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>
#include <unordered_set>

#include "terrace/core/units.h"

namespace terrace::checkpoint {
namespace {

constexpr std::size_t kShown = 5;

/// What names begin with, unless the folder was saved from the model without its head.
std::string_view prefix(const model::Config& config) {
  return config.architecture == model::Architecture::llama ? "model." : "transformer.";
}

std::optional<ShardReader::Located> find(const ShardReader& shards, std::string_view name,
                                         std::string_view optional_prefix) {
  if (const auto found = shards.find(name)) return found;
  if (name.starts_with(optional_prefix)) return shards.find(name.substr(optional_prefix.size()));
  return std::nullopt;
}

/// Tensors that older files hold and that are no weights: causal masks of GPT-2 and the frequencies
/// of rotary positions, both known from the configuration.
bool is_buffer(std::string_view name, const model::Config& config) {
  if (config.architecture == model::Architecture::llama) {
    return name.ends_with(".rotary_emb.inv_freq");
  }
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

bool is_ignored(const std::string& name, const WeightsOptions& options) {
  return std::any_of(
      options.ignore_unused.begin(), options.ignore_unused.end(),
      [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

std::string describe(const TensorShape& tensor) {
  return fmt::format("{} {}", tensor.name, format_shape(tensor.shape));
}

/// Two columns of at most `kShown` rows.
std::string side_by_side(const std::vector<std::string>& left,
                         const std::vector<std::string>& right) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < std::min(left.size(), kShown); ++i) {
    width = std::max(width, left[i].size());
  }
  const std::string missing = fmt::format("missing ({})", left.size());
  width = std::max(width, missing.size());
  std::string text = fmt::format("\n  {:<{}} | unexpected ({})", missing, width, right.size());
  for (std::size_t i = 0; i < std::min(kShown, std::max(left.size(), right.size())); ++i) {
    text += fmt::format("\n  {:<{}} | {}", i < left.size() ? left[i] : "", width,
                        i < right.size() ? right[i] : "");
  }
  return text;
}

}  // namespace

std::string_view embedding_name(const model::Config& config) {
  return config.architecture == model::Architecture::llama ? "model.embed_tokens.weight"
                                                           : "transformer.wte.weight";
}

TensorMatch match_tensors(const ShardReader& shards, std::span<const TensorShape> expected,
                          const model::Config& config, const WeightsOptions& options) {
  TensorMatch match;
  std::unordered_set<const TensorEntry*> taken;
  for (const TensorShape& tensor : expected) {
    const auto found = find(shards, tensor.name, prefix(config));
    if (!found) {
      match.missing.push_back(describe(tensor));
      continue;
    }
    taken.insert(found->entry);
    if (found->entry->shape != tensor.shape) {
      match.misshapen.push_back(fmt::format("{} is {}, not {}", tensor.name,
                                            format_shape(found->entry->shape),
                                            format_shape(tensor.shape)));
    }
    match.found.emplace(tensor.name, *found);
  }
  for (const ShardReader::Located& stored : shards.tensors()) {
    const std::string& name = stored.entry->name;
    const bool is_tied_head = config.tie_word_embeddings && name == kHeadName;
    if (taken.contains(stored.entry) || is_tied_head || is_buffer(name, config)) continue;
    if (is_ignored(name, options)) {
      match.ignored.push_back(name);
    } else {
      match.unexpected.push_back(describe(*stored.entry));
    }
  }
  return match;
}

void require_match(const TensorMatch& match, const std::string& where, ErrorKind kind) {
  if (!match.missing.empty() || !match.unexpected.empty()) {
    fail(kind,
         "{} does not hold the tensors that its config.json describes; check that both belong to "
         "one model, and that every bias it has is supported:{}",
         where, side_by_side(match.missing, match.unexpected));
  }
  if (match.misshapen.empty()) return;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, match.misshapen.size()); ++i) {
    text += "\n  " + match.misshapen[i];
  }
  fail(kind,
       "{} holds {} of another shape than its config.json describes; check that both "
       "belong to one model:{}",
       where, counted(match.misshapen.size(), "tensor"), text);
}

}  // namespace terrace::checkpoint
