#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/core/dtype.h"
#include "terrace/core/trace.h"
#include "terrace/io/phases.h"
#include "terrace/optim/loss_scaler.h"
#include "terrace/optim/optimizer.h"
#include "terrace/optim/schedule.h"
#include "terrace/optim/step_counter.h"

/// The effective configuration of `terrace train` and `terrace plan`: plain values, each with its
/// default here and with its name, unit, range and help in the one table (`settings_options`).
/// An empty optional means "not given": the trainer or the plan chooses, as the comment says.
namespace terrace::config {

class OptionTable;

enum class DeviceChoice { automatic, cpu, cuda };
/// Where a state kind lives. `none` pins it to the device, as DeepSpeed has it.
enum class Placement { automatic, none, cpu, nvme };
enum class MicroBatchOrder { automatic, batch_major, unit_major };

/// A size: bytes, or per cent of a whole that is known only on the machine.
struct Budget {
  std::uint64_t bytes = 0;
  double percent = 0;  ///< used when `bytes` is 0

  [[nodiscard]] std::uint64_t of(std::uint64_t whole) const;
  friend bool operator==(const Budget&, const Budget&) = default;
};

struct DataSettings {
  std::vector<std::string> files;       ///< files and folders
  std::vector<std::string> eval_files;  ///< empty: `validation_fraction` decides
  double validation_fraction = 0;       ///< of the documents, kept from training
  /// Tokens a sequence; empty: the smaller of 1024 and what the model was made for.
  std::optional<std::int64_t> max_length;
};

/// train = micro x accumulation x world size. What is empty follows from the others (see
/// `resolve_batch`), and a batch that nothing says is 8 sequences a rank and micro-batch.
struct BatchSettings {
  std::optional<std::int64_t> train = {};
  std::optional<std::int64_t> micro = {};
  std::optional<std::int64_t> accumulation = {};
  MicroBatchOrder order = MicroBatchOrder::automatic;
};

struct OptimizerSettings {
  optim::OptimizerType type = optim::OptimizerType::adamw;
  std::optional<double> learning_rate;  ///< empty: 5e-5; a preset trained from scratch has its own
  std::optional<std::array<double, 2>> betas;  ///< empty: the type's
  std::optional<double> epsilon;               ///< empty: the type's
  double weight_decay = 0;
  bool decay_all = false;  ///< decay norms and biases too, not only matrices
  bool bias_correction = true;
  /// DeepSpeed's word for decoupled decay under the name Adam; `finalize` folds it into `type`.
  std::optional<bool> adam_w_mode;
  double max_grad_norm = 1;  ///< 0: no clipping
  optim::StateFormat state;
  std::int64_t max_skipped_steps = optim::StepCounter::kSkipsMax;  ///< in a row; 0: never stops
};

struct ScheduleSettings {
  optim::ScheduleType type = optim::ScheduleType::linear;
  std::int64_t warmup_steps = 0;  ///< when 0, `warmup_ratio` of all steps
  double warmup_ratio = 0;
  optim::WarmupShape warmup_shape = optim::WarmupShape::linear;
  double warmup_min_lr = 0;                 ///< the rate before the first update
  double warmup_min_ratio = 0;              ///< WarmupCosineLR's word for it, a share of the rate
  double min_lr_ratio = 0;                  ///< the decay ends at this share of the rate
  std::optional<std::int64_t> total_steps;  ///< length of the decay; empty: of the run
};

struct NumericsSettings {
  std::optional<DType> dtype;           ///< empty: bf16 where the hardware has it
  std::optional<DType> gradient_dtype;  ///< bf16, fp16 or fp32; empty: as `dtype`
  optim::LossScaleOptions loss_scale;   ///< used in fp16 only
  bool gradient_checkpointing = true;   ///< recompute each unit from its input
  std::int64_t seed = 42;
};

struct LengthSettings {
  std::int64_t max_steps = -1;  ///< above 0 it wins over `epochs`
  double epochs = 3;
};

/// How often, in optimizer steps; 0: never while training (evaluation still comes last, and the
/// model is saved; a checkpoint is not).
struct CadenceSettings {
  std::int64_t logging_steps = 1;
  std::int64_t eval_steps = 0;
  std::int64_t save_steps = 500;
  std::int64_t save_total_limit = 2;  ///< checkpoints kept; 0: all
};

struct OutputSettings {
  std::string folder;
  std::string resume;  ///< "": start anew, "auto": the newest state in `folder`, else a checkpoint
  bool overwrite = false;
  bool dry_run = false;
  bool no_lock = false;  ///< go on where locks do not work
  std::string trace;     ///< Chrome trace file; empty: none
  StepRange trace_steps{1, 5};
};

/// Rates to which lanes are held, so that a small machine shows what a large one would overlap:
/// what a lane's tasks move a second (optimizer: read and written in RAM), compute in FLOP a
/// second. 0: as fast as it goes.
struct PacingSettings {
  std::uint64_t h2d = 0;
  std::uint64_t d2h = 0;
  std::uint64_t disk_read = 0;
  std::uint64_t disk_write = 0;
  std::uint64_t optimizer = 0;
  double compute = 0;
};

struct OffloadSettings {
  Placement device = Placement::automatic;
  double ratio = 1;  ///< share that is offloaded
  std::vector<std::string> nvme_path;
  std::int64_t buffer_count = 0;  ///< chunks in flight (optimizer only); 0: by the plan
};

struct PlacementSettings {
  DeviceChoice device = DeviceChoice::automatic;
  OffloadSettings optimizer;
  OffloadSettings parameters;
  OffloadSettings activations;            ///< the inputs of blocks
  std::vector<std::string> swap;          ///< folders of the page store, striped; see `finalize`
  std::string profile;                    ///< of `find_profile`; empty: assumed figures
  std::optional<Budget> device_memory;    ///< empty: what is free
  std::optional<Budget> host_memory;      ///< empty: what the container allows
  std::optional<Budget> disk;             ///< empty: what is free there
  std::int64_t chunk_elements = 0;        ///< optimizer's `sub_group_size`; 0: by the plan
  std::int64_t prefetch_units = 0;        ///< units fetched ahead of use; 0: by the plan
  std::int64_t disk_extents = 2;          ///< 2: every step is committed, 1: half the space
  std::optional<io::Phases> disk_phases;  ///< empty: as measured
  std::uint64_t block_bytes = 1 << 20;    ///< of one disk request
  std::int64_t queue_depth = 32;          ///< disk requests in flight
};

struct RankSettings {
  std::int64_t ranks = 1;                  ///< local ranks to start, or for a plan all
  std::int64_t threads = 0;                ///< compute threads a rank; 0: what the machine gives
  std::optional<std::int64_t> zero_stage;  ///< 0 to 3; empty: by the plan
  double peer_timeout_s = 300;             ///< silence after which a peer is lost
};

struct Settings {
  std::string model;  ///< model folder, checkpoint, output folder or the name of a preset
  DataSettings data;
  BatchSettings batch;
  LengthSettings length;
  OptimizerSettings optimizer;
  ScheduleSettings schedule;
  NumericsSettings numerics;
  CadenceSettings cadence;
  OutputSettings output;
  PlacementSettings placement;
  RankSettings ranks;
  PacingSettings pacing;
};

/// The one table: every option of `train` and `plan`, bound to `settings` (which must outlive it).
[[nodiscard]] OptionTable settings_options(Settings& settings);

/// Checks what no single option can check and moves `nvme_path`s into `swap`. Idempotent.
/// Errors: usage, naming the options that disagree.
void finalize(Settings& settings);

/// `finalize`, and what a training run cannot do without: model, data, output.
void finalize_for_training(Settings& settings);

/// Fills the three batch sizes for `world_size` ranks so that train = micro x accumulation x
/// world size. Errors: usage, with the arithmetic, when they disagree or do not divide.
void resolve_batch(BatchSettings& batch, std::int64_t world_size);

/// What the optimizer is built from: the type's own numbers where none are given.
[[nodiscard]] optim::OptimizerOptions optimizer_options(const OptimizerSettings& settings);

/// The rate over a run of `total_updates`, with `standard_rate` where none is given.
[[nodiscard]] optim::LearningRateSchedule learning_rate_schedule(const Settings& settings,
                                                                 std::int64_t total_updates,
                                                                 double standard_rate = 5e-5);

/// The settings as JSON text (nested, every option with a key), which `--config` reads back.
[[nodiscard]] std::string effective_json(const Settings& settings);

}  // namespace terrace::config
