#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "run_start.h"
#include "run_store.h"
#include "terrace/core/error.h"
#include "terrace/runtime/run_context.h"
#include "terrace/runtime/state_transfer.h"

namespace terrace::train {

/// A run's state: where it comes from (a fresh model, a dead run's store, a checkpoint), what holds
/// it while steps are made, and where it is saved. Single-owner.
class StateKeeper {
 public:
  /// Holds nothing yet. All that is given outlives it.
  StateKeeper(RunStart& start, const TrainContext& context, Watch& watch);

  /// Makes what holds the state and fills it. Errors: numerics, data, for weights that the compute
  /// type does not hold; out_of_memory, io, corrupt.
  void load();
  /// Where the run cannot begin: leaves nothing of it on its drives, as nobody could go on with a
  /// part of the state.
  void abandon();
  /// Gives back what only a run that goes on needs, the store too.
  void release();

  /// For what runs the plan, once the state is loaded.
  [[nodiscard]] runtime::RunContext run_context() const;
  /// Null where the plan uses no disk.
  [[nodiscard]] RunStore* store() const { return store_.get(); }
  /// Whether each step is in the store when it is done.
  [[nodiscard]] bool commits_steps() const;
  /// Steps that are done, skipped ones included.
  [[nodiscard]] Step done() const { return done_; }
  void set_done(Step step) { done_ = step; }
  /// Whether a checkpoint has them all.
  [[nodiscard]] bool is_saved() const { return last_saved_ == done_.value; }
  /// The newest state that the run could go on with, for messages; empty: none.
  [[nodiscard]] std::string last_good() const;

  /// Errors: kind `kind`, naming the tensor, when the masters as they are have values that the
  /// compute type does not hold; `occasion` begins the sentence.
  void require_held_weights(ErrorKind kind, const std::string& occasion);
  /// Tells the watch what is kept by now, and what the run is about.
  void answer_signals(const std::string& doing, double seconds = 0);

  /// With `to_the_end` a signal lets it finish.
  void save_checkpoint(const checkpoint::CheckpointContents& contents, bool to_the_end);
  void save_model(const checkpoint::CheckpointContents& contents);

 private:
  void allocate();
  void make_store();
  void make_transfer();
  void load_from_store();
  void load_from_checkpoint();
  void load_from_model();
  /// Fills the state from `source`, with its `moments` or with none; `doing` is what is told of it.
  void fill_state(checkpoint::StateSource& source, bool moments, std::string doing);
  /// The most that a commit's run state may take.
  [[nodiscard]] std::uint64_t commit_state_bytes_max() const;
  /// What to do when the weights are of no use, as the end of a sentence.
  [[nodiscard]] std::string way_back() const;
  /// Runs a save; to an error of the numbers in it is added what to do.
  template <class Save>
  auto with_way_back(Save&& save) const {
    try {
      return save();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::numerics) throw;
      fail(ErrorKind::numerics, "{}; {}", error.what(), way_back());
    }
  }
  void remove_old_checkpoints();

  RunStart& start_;
  const TrainContext& context_;
  Watch& watch_;
  std::unique_ptr<runtime::RunMemory> memory_;
  std::unique_ptr<RunStore> store_;
  std::unique_ptr<runtime::StateTransfer> transfer_;
  Step done_;
  std::int64_t last_saved_;
  double save_seconds_ = 0;  ///< of the last checkpoint; 0: none was saved
};

}  // namespace terrace::train
