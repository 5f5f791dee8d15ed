#include "terrace/checkpoint/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/small_model.h"
#include "core/error_of.h"
#include "core/parsed_json.h"
#include "io/temporary_folder.h"
#include "terrace/checkpoint/training_checkpoint.h"
#include "terrace/io/file.h"
#include "terrace/io/page_store.h"

namespace terrace::checkpoint {
namespace {

using nlohmann::json;
using terrace::testing::error_of;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using testing::FunctionSource;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::small_contents;
using testing::small_trainer;

class Inspect : public ::testing::Test {
 protected:
  std::filesystem::path save(std::int64_t step) {
    FunctionSource source(1);
    return save_checkpoint(output_.path(), small_contents(step), source);
  }
  TemporaryFolder output_;
};

TEST_F(Inspect, a_checkpoint_tells_model_training_and_files) {
  const Inspection found = inspect(save(12));
  const json facts = terrace::testing::parse_json(found.json);
  EXPECT_EQ(facts["kind"], "checkpoint");
  EXPECT_EQ(facts["training"]["step"], 12);
  EXPECT_EQ(facts["training"]["updates"], 11);
  EXPECT_EQ(facts["training"]["data"][1]["name"], "data/b.txt");
  EXPECT_EQ(facts["model"]["layers"], 2);
  EXPECT_EQ(facts["parameters"], 1512);
  EXPECT_EQ(facts["tensors"].size(), 21U);
  EXPECT_THAT(found.text, AllOf(HasSubstr("updates"), HasSubstr("optimizer/exp_avg.safetensors"),
                                HasSubstr("KiB"), Not(HasSubstr("q_proj"))));
}

TEST_F(Inspect, verification_finds_an_altered_byte) {
  const auto folder = save(3);
  const auto file = folder / "optimizer/exp_avg.safetensors";
  std::string bytes = io::read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  io::write_file(file, bytes);
  save(4);
  for (const auto& path : {folder, output_.path()}) {
    (void)inspect(path);
    const Error error = error_of([&] { (void)inspect(path, {.verify = true}); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt);
    EXPECT_THAT(error.what(), HasSubstr("checkpoint-3/optimizer/exp_avg.safetensors"));
  }
  EXPECT_NO_THROW(verify_weights(folder)) << "the moments are not of the weights";
}

TEST_F(Inspect, verification_of_weights_finds_an_altered_byte_of_a_checkpoint) {
  const auto folder = save(3);
  EXPECT_NO_THROW(verify_weights(folder));
  std::string bytes = io::read_file(folder / "model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  io::write_file(folder / "model.safetensors", bytes);
  EXPECT_EQ(error_of([&] { verify_weights(folder); }).kind(), ErrorKind::corrupt);
  std::filesystem::remove(folder / kMarkerName);
  EXPECT_NO_THROW(verify_weights(folder)) << "a model folder has no checksums";
  EXPECT_EQ(error_of([&] { (void)inspect(folder, {.verify = true}); }).kind(), ErrorKind::usage);
}

TEST_F(Inspect, an_output_folder_lists_its_checkpoints_and_faults) {
  save(3);
  std::filesystem::remove(save(9) / "config.json");
  const json facts = terrace::testing::parse_json(inspect(output_.path()).json);
  EXPECT_EQ(facts["kind"], "output folder");
  EXPECT_EQ(facts["final_model"], false);
  EXPECT_EQ(facts["checkpoints"][0]["step"], 3);
  EXPECT_THAT(facts["broken_checkpoints"][0]["fault"], HasSubstr("config.json"));
}

TEST_F(Inspect, a_file_lists_its_tensors_and_a_model_folder_its_files) {
  const auto folder = save(3);
  const Inspection file = inspect(folder / "model.safetensors");
  EXPECT_EQ(terrace::testing::parse_json(file.json)["metadata"]["format"], "pt");
  EXPECT_THAT(file.text, AllOf(HasSubstr("model.layers.1.mlp.down_proj.weight"),
                               HasSubstr("[8, 12]"), HasSubstr("BF16")));
  std::filesystem::remove(folder / kMarkerName);
  const json facts = terrace::testing::parse_json(inspect(folder).json);
  EXPECT_EQ(facts["kind"], "model folder");
  EXPECT_EQ(facts["files"][0]["name"], "model.safetensors");
  std::filesystem::remove(folder / "model.safetensors");
  EXPECT_TRUE(terrace::testing::parse_json(inspect(folder).json)["weights"].is_null());
}

TEST_F(Inspect, a_page_store_tells_its_pages_and_its_last_commit) {
  const io::StoreFolder folder{output_.path()};
  const io::PageSpec page{io::PageId(5), 8192, "exp_avg of embedding [0, 2048)"};
  Log log([](LogLevel, std::string_view) {});
  {
    const auto store = io::PageStore::create(std::span(&folder, 1), std::span(&page, 1), {}, log);
    EXPECT_TRUE(
        terrace::testing::parse_json(inspect(output_.path()).json)["committed_step"].is_null());
    const std::string state = to_json(small_trainer(7));
    store->commit(Version(7), std::as_bytes(std::span(state)));
    // The store is still open: a live run may be looked at.
    const Inspection found = inspect(output_.path());
    const json facts = terrace::testing::parse_json(found.json);
    EXPECT_EQ(facts["kind"], "page store");
    EXPECT_EQ(facts["committed_step"], 7);
    EXPECT_EQ(facts["training"]["tokens_seen"], 7 * 512);
    EXPECT_EQ(facts["pages"][0]["description"], page.description);
    EXPECT_THAT(found.text, HasSubstr(page.description));
  }
}

TEST_F(Inspect, anything_else_is_refused) {
  EXPECT_THAT(error_of([&] { (void)inspect(output_ / "none"); }).what(),
              HasSubstr("does not exist"));
  io::write_file(output_ / "a.txt", "x");
  EXPECT_THAT(error_of([&] { (void)inspect(output_ / "a.txt"); }).what(),
              HasSubstr("not a .safetensors file"));
  EXPECT_THAT(error_of([&] { (void)inspect(output_.path()); }).what(), HasSubstr("a.txt"));
}

}  // namespace
}  // namespace terrace::checkpoint
