#include "train/training.h"

#include <gmock/gmock.h>

#include <fstream>
#include <ostream>

#include "core/parsed_json.h"
#include "terrace/checkpoint/model_folder.h"
#include "terrace/core/log.h"
#include "terrace/data/tokenizer.h"
#include "terrace/kernels/cpu.h"
#include "terrace/runtime/state_transfer.h"
#include "terrace/train/model_source.h"
#include "terrace/train/trainer.h"

namespace terrace::train::testing {

namespace fs = std::filesystem;

model::Config small_llama(bool tied) {
  model::Config config;
  config.architecture = model::Architecture::llama;
  config.vocab_size = 256;
  config.hidden_size = 18;
  config.intermediate_size = 37;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.head_dim = 6;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = tied;
  return config;
}

std::string text(std::size_t bytes, unsigned seed) {
  constexpr const char* kWords[] = {"memory", "moves", "down",  "the",   "tiers", "and",
                                    "a",      "step",  "waits", "until", "it",    "is"};
  std::string text;
  unsigned state = seed * 2654435761U + 1;
  while (text.size() < bytes) {
    state = state * 1664525U + 1013904223U;
    text += kWords[(state >> 16) % std::size(kWords)];
    text += (state >> 24) % 7 == 0 ? ".\n" : " ";
  }
  text.resize(bytes);
  return text;
}

void write(const fs::path& file, const std::string& contents) {
  std::ofstream(file, std::ios::binary) << contents;
}

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream.good()) << file;
  return {std::istreambuf_iterator<char>(stream), {}};
}

namespace {

class AlteredState final : public checkpoint::StateSource {
 public:
  AlteredState(const model::Model& model, const Alter& alter)
      : initial_(model, 7, workers_), alter_(alter) {}
  void read(StateKind kind, const std::string& tensor, std::int64_t first,
            std::span<float> values) override {
    initial_.read(kind, tensor, first, values);
    if (alter_) alter_(tensor, first, values);
  }

 private:
  Workers workers_{1};
  runtime::InitialState initial_;
  const Alter& alter_;
};

double number(const nlohmann::json& value) { return value.is_null() ? -1 : value.get<double>(); }

}  // namespace

void write_model(const fs::path& folder, const model::Config& config, const Alter& alter) {
  const auto ops = kernels::make_cpu_ops({});
  const model::Model model(config, DType::f32, *ops);
  AlteredState state(model, alter);
  checkpoint::ModelDescription description;
  description.config = config;
  description.dtype = DType::f32;
  for (auto& [name, contents] : data::Tokenizer().files()) {
    description.files.push_back({name, contents});
  }
  fs::create_directories(folder);
  (void)checkpoint::write_model_folder(folder, description, tensor_shapes(model), state);
}

std::ostream& operator<<(std::ostream& stream, const Row& row) {
  stream << "{step " << row.step << ", loss " << std::hexfloat << row.loss << ", norm "
         << row.grad_norm << ", lr " << row.lr << std::defaultfloat << ", skipped " << row.skipped;
  if (row.eval_loss >= 0) stream << ", eval_loss " << std::hexfloat << row.eval_loss;
  if (!row.nonfinite.empty()) stream << ", nonfinite " << row.nonfinite;
  return stream << std::defaultfloat << "}";
}

std::vector<Row> rows(const fs::path& output) {
  std::vector<Row> result;
  std::ifstream file(output / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = terrace::testing::parse_json(line);
    Row row;
    row.step = json.at("step");
    row.loss = number(json.at("loss"));
    row.grad_norm = number(json.at("grad_norm"));
    row.lr = json.at("lr");
    row.skipped = json.at("skipped");
    if (json.contains("eval_loss")) row.eval_loss = number(json["eval_loss"]);
    if (json.contains("nonfinite")) row.nonfinite = json["nonfinite"];
    result.push_back(row);
  }
  return result;
}

bool Result::says(const std::string& part) const {
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

Result train_run(config::Settings settings,
                 const std::function<void(const std::string&, std::atomic<int>&)>& on_line) {
  Result result;
  std::atomic<int> signal{0};
  std::mutex mutex;
  Log log([&](LogLevel, std::string_view line) {
    const std::scoped_lock lock(mutex);
    result.lines.emplace_back(line);
    if (on_line) on_line(result.lines.back(), signal);
  });
  const NullFile null;
  Terminal terminal(null.file, false);
  try {
    config::finalize_for_training(settings);
    result.code = train(std::move(settings), {terminal, log, signal, "a test"});
  } catch (const Error& error) {
    result.code = exit_code(error.kind());
    result.error = error.what();
  }
  return result;
}

TrainingTest::TrainingTest(bool tied) {
  write_model(folder_ / "model", small_llama(tied));
  // Two epochs are 12 steps of 4 sequences of 16 tokens.
  write(folder_ / "one.txt", text(210, 1));
  write(folder_ / "two.txt", text(120, 2));
  write(folder_ / "three.txt", text(60, 3));
  fs::create_directory(folder_ / "swap");
}

config::Settings TrainingTest::settings(const std::string& output) const {
  config::Settings settings;
  settings.model = folder_ / "model";
  settings.data.files = {folder_ / "one.txt", folder_ / "two.txt", folder_ / "three.txt"};
  settings.data.max_length = 16;
  settings.batch.micro = 2;
  settings.batch.accumulation = 2;
  settings.length.max_steps = 6;
  settings.optimizer.learning_rate = 1e-2;
  settings.optimizer.weight_decay = 0.1;
  settings.numerics.dtype = DType::f32;
  settings.cadence.save_steps = 0;
  settings.output.folder = folder_ / output;
  settings.placement.optimizer.device = config::Placement::none;
  settings.placement.parameters.device = config::Placement::none;
  settings.placement.swap = {folder_ / "swap"};
  settings.placement.chunk_elements = 2048;
  settings.ranks.threads = 1;
  return settings;
}

std::vector<Row> TrainingTest::run(const config::Settings& settings) const {
  const Result result = train_run(settings);
  EXPECT_EQ(result.code, 0) << result.error;
  return rows(settings.output.folder);
}

}  // namespace terrace::train::testing
