#include "terrace/train/model_source.h"

#include "terrace/checkpoint/checkpoint_folder.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/core/error.h"
#include "terrace/io/file.h"

namespace terrace::train {
namespace {

namespace fs = std::filesystem;

void log_remarks(std::span<const checkpoint::Remark> remarks, Log& log) {
  for (const checkpoint::Remark& remark : remarks) log.write(remark.level, remark.text);
}

}  // namespace

bool names_folder(const std::string& name) {
  return name.find('/') != std::string::npos || io::is_there(name, ErrorKind::data);
}

ModelSource find_model(const std::string& name, Log& log) {
  ModelSource source;
  source.name = name;
  if (!names_folder(name)) {
    const model::Preset& preset = model::preset(name);
    source.config = preset.config;
    source.learning_rate = preset.learning_rate;
    source.eos_token_ids = {data::Tokenizer::kSeparator};
    return source;
  }
  const checkpoint::ResolvedModel resolved = checkpoint::resolve_model_folder(name);
  if (!resolved.reason.empty()) log.info("{}", resolved.reason);
  const checkpoint::FolderConfig config = checkpoint::read_config(resolved.folder);
  log_remarks(config.remarks, log);
  source.config = config.config;
  source.folder = resolved.folder;
  source.tokenizer = data::identify_tokenizer(resolved.folder);
  source.base_json = config.json;
  source.bos_token_id = config.bos_token_id;
  source.eos_token_ids = config.eos_token_ids;
  return source;
}

checkpoint::ModelDescription ModelSource::description(DType dtype) const {
  checkpoint::ModelDescription description;
  description.config = config;
  description.dtype = dtype;
  description.base_json = base_json;
  description.bos_token_id = bos_token_id;
  description.eos_token_ids = eos_token_ids;
  if (is_preset()) {
    for (auto& [file, contents] : data::Tokenizer().files()) {
      description.files.push_back({file, std::move(contents)});
    }
    return description;
  }
  for (const fs::path& file : data::tokenizer_files(folder)) {
    description.files.push_back({file.filename().string(), io::read_file(file)});
  }
  return description;
}

std::vector<checkpoint::TensorShape> tensor_shapes(const model::Model& model) {
  std::vector<checkpoint::TensorShape> shapes;
  for (const model::ParameterSpec& parameter : model.parameters()) {
    shapes.push_back({parameter.name, parameter.shape});
  }
  return shapes;
}

std::unique_ptr<checkpoint::ModelWeights> open_weights(const ModelSource& source,
                                                       const model::Model& model, Log& log,
                                                       const ProgressFunction& progress) {
  checkpoint::verify_weights(source.folder, progress);
  const auto shapes = tensor_shapes(model);
  auto weights = std::make_unique<checkpoint::ModelWeights>(source.folder, source.config, shapes);
  log_remarks(weights->remarks(), log);
  return weights;
}

}  // namespace terrace::train
