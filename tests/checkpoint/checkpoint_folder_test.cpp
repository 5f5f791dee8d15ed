#include "terrace/checkpoint/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "checkpoint/small_model.h"
#include "core/error_of.h"
#include "io/temporary_folder.h"
#include "terrace/io/file.h"

namespace terrace::checkpoint {
namespace {

using terrace::testing::error_of;
using terrace::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FunctionSource;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::small_contents;

class OutputFolder : public ::testing::Test {
 protected:
  std::filesystem::path save(std::int64_t step) {
    FunctionSource source(1);
    return save_checkpoint(output_.path(), small_contents(step), source);
  }
  std::vector<std::int64_t> complete_steps() {
    std::vector<std::int64_t> steps;
    for (const auto& entry : list_checkpoints(output_.path()).complete) steps.push_back(entry.step);
    return steps;
  }
  void save_final_model() {
    FunctionSource source(1);
    const CheckpointContents contents = small_contents(1);
    (void)write_model_folder(output_.path(), contents.model, contents.tensors, source);
  }

  TemporaryFolder output_;
};

TEST_F(OutputFolder, lists_the_complete_newest_first_and_reports_the_broken) {
  for (const std::int64_t step : {5, 100, 20}) save(step);
  std::filesystem::remove(save(300) / "optimizer/exp_avg.safetensors");
  io::write_file(save(250) / kMarkerName, "{");
  std::filesystem::remove(save(260) / kMarkerName);
  std::filesystem::resize_file(save(255) / "trainer_state.json", 0);
  std::filesystem::create_directory(output_ / "checkpoint-270");
  std::filesystem::create_directory(output_ / "checkpoint-best");
  std::filesystem::create_directory(output_ / "checkpoint-9.tmp-1");
  const CheckpointList list = list_checkpoints(output_.path());
  EXPECT_EQ(complete_steps(), (std::vector<std::int64_t>{100, 20, 5}));
  ASSERT_EQ(list.broken.size(), 5U);
  EXPECT_EQ(list.broken[0].step, 300);
  EXPECT_THAT(list.broken[0].fault, HasSubstr("exp_avg.safetensors is missing"));
  EXPECT_THAT(list.broken[1].fault, HasSubstr("has no terrace_checkpoint.json"));
  EXPECT_THAT(list.broken[4].fault, HasSubstr("not JSON"));
  EXPECT_THAT(list.unfinished, ElementsAre(output_ / "checkpoint-9.tmp-1"));
  EXPECT_EQ(newest_checkpoint(output_.path())->step, 100);
}

TEST_F(OutputFolder, that_does_not_exist_has_no_checkpoints) {
  EXPECT_THAT(list_checkpoints(output_ / "none").complete, IsEmpty());
  EXPECT_FALSE(newest_checkpoint(output_ / "none").has_value());
}

TEST_F(OutputFolder, rotation_deletes_older_complete_ones_only) {
  for (const std::int64_t step : {1, 2, 3, 4}) save(step);
  std::filesystem::remove(save(9) / "config.json");             // broken, and newer than all
  std::filesystem::create_directory(output_ / "checkpoint-0");  // another program's
  std::filesystem::create_directory(output_ / "my-checkpoint-1");
  EXPECT_THAT(rotate_checkpoints(output_.path(), 0), IsEmpty());
  EXPECT_THAT(rotate_checkpoints(output_.path(), -1), IsEmpty());
  EXPECT_THAT(rotate_checkpoints(output_.path(), 7), IsEmpty());
  EXPECT_THAT(rotate_checkpoints(output_.path(), 2),
              ElementsAre(output_ / "checkpoint-2", output_ / "checkpoint-1"));
  EXPECT_EQ(complete_steps(), (std::vector<std::int64_t>{4, 3}));
  EXPECT_THAT(rotate_checkpoints(output_.path(), 1), ElementsAre(output_ / "checkpoint-3"));
  EXPECT_THAT(rotate_checkpoints(output_.path(), 1), IsEmpty());
  for (const char* kept : {"checkpoint-9", "checkpoint-0", "my-checkpoint-1", "checkpoint-4"}) {
    EXPECT_TRUE(std::filesystem::exists(output_ / kept)) << kept;
  }
  EXPECT_THAT(list_checkpoints(output_.path()).unfinished, IsEmpty());
}

TEST_F(OutputFolder, what_saves_left_is_removed_whatever_process_its_name_carries) {
  const std::string others[] = {"1", "999999999", std::to_string(::getpid()),
                                std::to_string(::getppid())};
  for (const std::string& process : others) {
    std::filesystem::create_directory(output_ / ("checkpoint-7.tmp-" + process));
    std::filesystem::create_directory(output_ / ("model.tmp-" + process + "-replaced"));
  }
  const char* const kept[] = {"other.tmp-1", "checkpoint-8.tmp-x", "checkpoint-08.tmp-1",
                              "checkpoint-8.tmp-1-copy"};
  for (const char* name : kept) std::filesystem::create_directory(output_ / name);
  EXPECT_EQ(remove_unfinished(output_.path()), 8U);
  for (const char* name : kept) EXPECT_TRUE(std::filesystem::exists(output_ / name)) << name;
}

TEST_F(OutputFolder, a_copy_under_another_name_is_its_users) {
  for (const std::int64_t step : {3, 4}) save(step);
  const char* const kept[] = {"checkpoint-0003", "checkpoint-4-copy", "checkpoint-+5",
                              "checkpoint-4.0", "checkpoint-40"};
  for (const char* name : kept) {
    std::filesystem::copy(output_ / "checkpoint-4", output_ / name,
                          std::filesystem::copy_options::recursive);
  }
  const CheckpointList list = list_checkpoints(output_.path());
  EXPECT_EQ(complete_steps(), (std::vector<std::int64_t>{4, 3}));
  ASSERT_EQ(list.broken.size(), 1U);
  EXPECT_THAT(list.broken[0].fault, AllOf(HasSubstr("checkpoint-40"), HasSubstr("holds step 4")));
  EXPECT_THAT(rotate_checkpoints(output_.path(), 1), ElementsAre(output_ / "checkpoint-3"));
  for (const char* name : kept) EXPECT_TRUE(std::filesystem::exists(output_ / name)) << name;
  EXPECT_EQ(resolve_checkpoint(output_ / "checkpoint-0003"), output_ / "checkpoint-0003");
}

TEST_F(OutputFolder, a_complete_one_under_a_temporary_name_takes_its_free_place) {
  const auto folder = save(7);
  std::filesystem::rename(folder, output_ / "checkpoint-7.tmp-999999999-replaced");
  EXPECT_EQ(remove_unfinished(output_.path()), 0U);
  EXPECT_EQ(complete_steps(), (std::vector<std::int64_t>{7}));
  std::filesystem::copy(folder, output_ / "checkpoint-7.tmp-999999999",
                        std::filesystem::copy_options::recursive);
  EXPECT_EQ(remove_unfinished(output_.path()), 1U);
  EXPECT_EQ(complete_steps(), (std::vector<std::int64_t>{7}));
}

TEST_F(OutputFolder, resolves_to_its_final_model_else_to_its_newest_complete_checkpoint) {
  const auto older = save(3);
  const auto newest = save(12);
  std::filesystem::remove(save(30) / "config.json");
  ResolvedModel found = resolve_model_folder(output_.path());
  EXPECT_EQ(found.folder, newest);
  EXPECT_EQ(found.kind, FolderKind::checkpoint);
  EXPECT_THAT(found.reason, HasSubstr("newest complete checkpoint"));
  EXPECT_EQ(resolve_checkpoint(output_.path()), newest);
  found = resolve_model_folder(older);
  EXPECT_EQ(found.folder, older);
  EXPECT_EQ(found.kind, FolderKind::checkpoint);
  EXPECT_EQ(resolve_checkpoint(older), older);
  save_final_model();
  found = resolve_model_folder(output_.path());
  EXPECT_EQ(found.folder, output_.path());
  EXPECT_EQ(found.kind, FolderKind::model);
  EXPECT_THAT(found.reason, IsEmpty());
  EXPECT_EQ(resolve_checkpoint(output_.path()), newest);
  const auto later = save(14);
  found = resolve_model_folder(output_.path());
  EXPECT_EQ(found.folder, output_.path());
  EXPECT_THAT(found.reason, AllOf(HasSubstr("older than"), HasSubstr(later.string())));
}

TEST_F(OutputFolder, says_what_was_looked_for_when_there_is_nothing) {
  const auto refusal = [](const std::filesystem::path& path) {
    const Error error = error_of([&] { (void)resolve_model_folder(path); });
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal(output_ / "none"), HasSubstr("does not exist"));
  EXPECT_THAT(refusal(output_.path()), AllOf(HasSubstr("config.json"), HasSubstr("nothing")));
  io::write_file(output_ / "notes.txt", "x");
  EXPECT_THAT(refusal(output_ / "notes.txt"), HasSubstr("is a file"));
  std::filesystem::remove(save(4) / kMarkerName);
  EXPECT_THAT(refusal(output_.path()),
              AllOf(HasSubstr("notes.txt"), HasSubstr("checkpoint-4 has no terrace_checkpoint")));
  EXPECT_THAT(error_of([&] { (void)resolve_checkpoint(output_.path()); }).what(),
              AllOf(HasSubstr("nothing to resume from"), HasSubstr("checkpoint-4")));
}

TEST_F(OutputFolder, a_folder_of_the_hubs_cache_is_followed_to_its_snapshot) {
  const auto cache = output_ / "models--org--name";
  std::filesystem::create_directories(cache / "snapshots/aaa");
  EXPECT_EQ(resolve_model_folder(cache).folder, cache / "snapshots/aaa");
  std::filesystem::create_directories(cache / "snapshots/bbb");
  EXPECT_THAT(error_of([&] { (void)resolve_model_folder(cache); }).what(),
              HasSubstr("2 snapshots"));
  std::filesystem::create_directories(cache / "refs");
  io::write_file(cache / "refs/main", "bbb\n");
  EXPECT_EQ(resolve_model_folder(cache).folder, cache / "snapshots/bbb");
}

}  // namespace
}  // namespace terrace::checkpoint
