#include "foreign.h"

namespace terrace::config {
namespace {

/// Keys of `zero_optimization`. Those about buckets and gathered parameters tune mechanisms that
/// the plan sizes here; those that change the numbers are refused unless they are off.
std::vector<Foreign> zero_keys() {
  const std::string planned = "the plan sizes its pools and transfers itself";
  const std::string always = "gradients are always reduced by reduce-scatter over whole units";
  const std::string overlapped = "transfers are always overlapped with computation";
  const std::string pinned =
      "a run's host memory is one slab, pinned where a device or io_uring gains by it";
  const std::string quantized = "communication is not quantized";
  const std::string old = "use offload_optimizer.device and offload_param.device";
  const std::string mics = "there is one sharding group, of all ranks";
  std::vector<Foreign> keys = {
      {"contiguous_gradients", always},
      {"reduce_scatter", always},
      {"reduce_bucket_size", planned},
      {"use_multi_rank_bucket_allreduce", always},
      {"allgather_partitions", planned},
      {"allgather_bucket_size", planned},
      {"overlap_comm", overlapped},
      {"round_robin_gradients", "shards are even by construction"},
      {"load_from_fp32_weights", "the FP32 master is always what is restored"},
      {"elastic_checkpoint", "a checkpoint resumes on any number of ranks"},
      {"stage3_prefetch_bucket_size", "prefetch is counted in units: use prefetch_units"},
      {"stage3_param_persistence_threshold", planned},
      {"stage3_model_persistence_threshold", planned},
      {"stage3_max_live_parameters", planned},
      {"stage3_max_reuse_distance", planned},
      {"stage3_gather_16bit_weights_on_model_save", "a saved model is always whole"},
      {"stage3_gather_fp16_weights_on_model_save", "a saved model is always whole"},
      {"stage3_module_granularity_threshold", "a unit is fetched whole"},
      {"stage3_use_all_reduce_for_fetch_params", planned},
      {"stage3_allgather_sequential", planned},
      {"ignore_unused_parameters", "every parameter of a supported model is used"},
      {"legacy_stage1", "there is one stage 1", {"false"}},
      {"zero_hpz_partition_size", mics, {"1"}},
      {"zero_quantized_weights", quantized, {"false"}},
      {"zero_quantized_nontrainable_weights", quantized, {"false"}},
      {"zero_quantized_gradients", quantized, {"false"}},
      {"zeropp_loco_param", quantized, {"null"}},
      {"mics_shard_size", mics, {"-1"}},
      {"mics_hierarchical_params_gather", mics, {"false"}},
      {"memory_efficient_linear", "gathered weights are never kept for the backward pass"},
      {"pipeline_loading_checkpoint", overlapped},
      {"override_module_apply", "there are no Python modules"},
      {"leaf_module", "a transformer block is always one unit"},
      {"log_trace_cache_warnings", "the order of accesses is planned, not traced"},
      {"enable_sanity_checks", "checks are always on"},
      {"save_muon_momentum_buffer_in_memory", "Muon is not offered", {"false"}},
      {"cpu_offload", old, {"false", "null"}},
      {"cpu_offload_params", old, {"false", "null"}},
      {"cpu_offload_param", old, {"false", "null"}},
      {"cpu_offload_use_pin_memory", "use offload_optimizer.pin_memory"},
      {"offload_param.buffer_size", planned},
      {"offload_param.buffer_count", "use prefetch_units"},
      {"offload_param.pin_memory", pinned},
      {"offload_optimizer.pin_memory", pinned},
      {"offload_param.max_in_cpu",
       "use host_memory to bound what stays in RAM, or offload_param.ratio"},
      {"offload_optimizer.pipeline", overlapped},
      {"offload_optimizer.pipeline_read", overlapped},
      {"offload_optimizer.pipeline_write", overlapped},
      {"offload_optimizer.fast_init", "state is written once, at the start"},
      {"offload_optimizer.super_offload", "the plan decides what is offloaded", {"false"}},
      {"offload_optimizer.cpuadam_cores_perc", "use threads"},
  };
  for (Foreign& key : keys) key.name.insert(0, "zero_optimization.");
  return keys;
}

std::vector<Foreign> precision_keys() {
  const std::string master = "the master weights and moments are FP32 (see optimizer.state_format)";
  const std::string checked = "a step with a non-finite gradient is always skipped";
  const std::string activations = "use gradient_checkpointing; the plan places what is kept";
  return {
      {"bf16.immediate_grad_update", "gradients are accumulated in FP32 as they appear"},
      {"bf16.check_grad_overflow", checked},
      {"bf16.bf16_master_weights_and_grads", master, {"false"}},
      {"bf16.bf16_optimizer_states", master, {"false"}},
      {"fp16.auto_cast", "inputs are tokens, which are not cast"},
      {"fp16.fp16_master_weights_and_grads", master, {"false"}},
      {"data_types.grad_accum_dtype", "gradients are always accumulated in FP32"},
      {"prescale_gradients", "gradients are averaged over target tokens", {"false"}},
      {"gradient_predivide_factor", "gradients are averaged over target tokens", {"1"}},
      {"managed_gradient_accumulation", "accumulation is always managed"},
      {"zero_allow_untested_optimizer", "every optimizer offered works with sharding"},
      {"zero_force_ds_cpu_optimizer", "the CPU optimizer is always the fused one"},
      {"optimizer.params.torch_adam", "there is one AdamW, with PyTorch's numbers"},
      {"optimizer.params.amsgrad", "AMSGrad is not offered", {"false"}},
      {"optimizer.params.fused", "the update is always fused"},
      {"optimizer.params.foreach", "the update is always fused"},
      {"optimizer.params.fp32_optimizer_states", "moments are FP32", {"true"}},
      {"optimizer.legacy_fusion", "the update is always fused"},
      {"scheduler.params.last_batch_iteration", "a resume continues the schedule", {"-1"}},
      {"activation_checkpointing.partition_activations", activations},
      {"activation_checkpointing.number_checkpoints", activations},
      {"activation_checkpointing.contiguous_memory_optimization", activations},
      {"activation_checkpointing.profile", activations},
      {"activation_checkpointing.synchronize_checkpoint_boundary", activations},
  };
}

std::vector<Foreign> other_keys() {
  const std::string metrics = "metrics.jsonl has every step's times and values";
  const std::string one_queue =
      "each file on a drive has a queue, which aio.queue_depth keeps full";
  const std::string not_offered = "it is not offered";
  return {
      {"wall_clock_breakdown", metrics},
      {"memory_breakdown", metrics},
      {"dump_state", "run.json has the effective configuration"},
      {"tensorboard", metrics},
      {"wandb", metrics},
      {"csv_monitor", metrics},
      {"comet", metrics},
      {"comms_logger", "use trace"},
      {"flops_profiler", "use trace"},
      {"aio.thread_count", one_queue},
      {"aio.num_threads", one_queue},
      {"aio.intra_op_parallelism", one_queue},
      {"aio.single_submit", "requests are always submitted in batches"},
      {"aio.overlap_events", "the queue is always kept full"},
      {"aio.use_gds", "the disk tier goes through pinned host memory", {"false"}},
      {"zenflow", "stale updates would change the result", {"null", "false"}},
      {"zero_optimization.zenflow", "stale updates would change the result", {"null", "false"}},
      {"compile", "there is no graph to compile", {"null", "false", "{...}"}},
      {"sparse_attention", not_offered, {"null", "false"}},
      {"sparse_gradients", not_offered, {"false"}},
      {"amp", "use bf16 or fp16", {"false"}},
      {"torch_autocast", "use bf16 or fp16", {"false"}},
      {"elasticity", "a run resumes on any number of ranks", {"false"}},
      {"autotuning", "the plan chooses sizes", {"false"}},
      {"compression_training", not_offered, {"null"}},
      {"data_efficiency", not_offered, {"false"}},
      {"curriculum_learning", not_offered, {"false"}},
      {"progressive_layer_drop", not_offered, {"false"}},
      {"eigenvalue", not_offered, {"false"}},
      {"pipeline", not_offered, {"null", "false"}},
      {"tensor_parallel", not_offered, {"null", "false"}},
      {"checkpoint", "checkpoints resume on any number of ranks"},
      {"dataloader_drop_last", "every step has a whole batch", {"true"}},
      {"disable_allgather", "the plan chooses how weights are gathered"},
      {"graph_harvesting", "the schedule is planned"},
      {"timers", metrics},
      {"seq_parallel_communication_data_type", "there is no sequence parallelism"},
  };
}

}  // namespace

std::vector<Foreign> deepspeed_keys() {
  std::vector<Foreign> keys = zero_keys();
  for (auto& part : {precision_keys(), other_keys()})
    keys.insert(keys.end(), part.begin(), part.end());
  return keys;
}

std::vector<Foreign> trainer_flags() {
  const std::string metrics = "metrics.jsonl and run.json are always written";
  const std::string hub = "there is no upload to a hub";
  const std::string loader = "the loader reads ahead by itself";
  const std::string by_steps =
      "the cadence is in steps: use eval_steps and save_steps (eval_steps 0: at the end, "
      "save_steps 0: no checkpoint)";
  const std::string compile = "there is no graph to compile";
  const std::string launcher = "the launcher's environment variables say it";
  return {
      {"report_to", metrics},
      {"run_name", metrics},
      {"logging_dir", metrics},
      {"logging_strategy", "progress is logged by steps: use logging_steps", {"steps"}},
      {"logging_first_step", "the first step is always in metrics.jsonl"},
      {"logging_nan_inf_filter", "a non-finite value is always shown"},
      {"log_level", "what matters is always logged"},
      {"disable_tqdm", "the live line appears on terminals only"},
      {"eval_strategy", by_steps, {"steps", "no"}},
      {"evaluation_strategy", by_steps, {"steps", "no"}},
      {"save_strategy", by_steps, {"steps"}},
      {"save_safetensors", "checkpoints are always safetensors", {"", "true", "True"}},
      {"save_only_model", "checkpoints always carry the optimizer", {"false", "False"}},
      {"save_on_each_node", "a checkpoint is written once", {"false", "False"}},
      {"per_device_eval_batch_size", "evaluation uses the training micro-batch"},
      {"load_best_model_at_end", "the last model is kept", {"false", "False"}},
      {"metric_for_best_model", "the last model is kept"},
      {"greater_is_better", "the last model is kept"},
      {"do_train", "the subcommand says it", {"", "true", "True"}},
      {"do_eval", "evaluation data says it"},
      {"do_predict", "use terrace generate", {"false", "False"}},
      {"push_to_hub", hub, {"false", "False"}},
      {"hub_model_id", hub},
      {"hub_strategy", hub},
      {"dataloader_num_workers", loader},
      {"dataloader_pin_memory", loader},
      {"dataloader_prefetch_factor", loader},
      {"dataloader_drop_last", "every step has a whole batch"},
      {"remove_unused_columns", "only token sequences reach the model"},
      {"group_by_length", "sequences all have the same length", {"false", "False"}},
      {"tf32", "fp32 means fp32", {"false", "False"}},
      {"bf16_full_eval", "evaluation uses the compute type"},
      {"fp16_full_eval", "evaluation uses the compute type"},
      {"fp16_opt_level", "use --fp16"},
      {"half_precision_backend", "use --bf16 or --fp16"},
      {"gradient_checkpointing_kwargs", "recomputation has no further settings"},
      {"torch_compile", compile, {"false", "False"}},
      {"torch_compile_backend", compile},
      {"use_cpu", "use --device cpu", {"false", "False"}},
      {"no_cuda", "use --device cpu", {"false", "False"}},
      {"local_rank", launcher},
      {"ddp_backend", "the backend follows from the device"},
      {"ddp_timeout", "use --peer_timeout"},
      {"ddp_find_unused_parameters", "every parameter of a supported model is used"},
      {"ddp_bucket_cap_mb", "the plan sizes transfers"},
      {"fsdp", "use --zero_stage 3"},
      {"fsdp_config", "use --zero_stage 3"},
      {"data_seed", "use --seed", {}, true},
      {"full_determinism", "results are always deterministic"},
      {"label_smoothing_factor", "label smoothing is not offered", {"0", "0.0"}},
      {"neftune_noise_alpha", "NEFTune is not offered", {}, true},
      {"max_train_samples", "give less data or --max_steps", {}, true},
      {"use_peft", "adapters are not offered", {"false", "False"}},
      {"load_in_8bit", "quantized weights are not offered", {"false", "False"}},
      {"load_in_4bit", "quantized weights are not offered", {"false", "False"}},
      {"dataset_name", "give files with --data", {}, true},
      {"train_file", "give files with --data", {}, true},
      {"validation_file", "give files with --eval_data", {}, true},
      {"trust_remote_code", "no code of a model folder is run", {"false", "False"}},
      {"torch_dtype", "use --bf16, --fp16 or --dtype", {}, true},
      {"attn_implementation", "there is one attention"},
      {"use_liger_kernel", "kernels are always fused"},
      {"auto_find_batch_size", "terrace plan says what fits", {"false", "False"}},
      {"lr_scheduler_kwargs", "use --min_lr_ratio or --set scheduler.params.*", {}, true},
      {"optim_args", "use --set optimizer.params.*", {}, true},
  };
}

}  // namespace terrace::config
