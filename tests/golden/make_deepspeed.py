#!/usr/bin/env python3
"""Writes deepspeed.json beside this file: what DeepSpeed makes of its own configuration keys, as the
learning rate of each update, the loss scale of each step, the numbers of an optimizer, batch sizes,
and the default of each key.

    pip install torch deepspeed==0.19.6 && tests/golden/make_deepspeed.py
"""

import inspect
import itertools
import json
import pathlib

import deepspeed
import torch
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime import config as ds_config
from deepspeed.runtime import constants, lr_schedules
from deepspeed.runtime.activation_checkpointing.config import ACT_CHKPT_DEFAULT
from deepspeed.runtime.fp16 import loss_scaler
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.swap_tensor.aio_config import AIO_DEFAULT_DICT
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import (DeepSpeedZeroOffloadOptimizerConfig,
                                                   DeepSpeedZeroOffloadParamConfig)

PEAK = 1e-3
UPDATES = 12


def schedule_cases():
    shapes = [{"warmup_type": "linear"}, {"warmup_type": "log"}]
    warmups = [1, 2, 3, 20]
    starts = [{}, {"warmup_min_lr": 1e-4}]
    for shape, warmup, start in itertools.product(shapes, warmups, starts):
        yield "WarmupLR", {"warmup_num_steps": warmup, "warmup_max_lr": PEAK, **start, **shape}
        for total in (5, 10, 30):
            yield "WarmupDecayLR", {"total_num_steps": total, "warmup_num_steps": warmup,
                                    "warmup_max_lr": PEAK, **start, **shape}
    ratios = [{}, {"warmup_min_ratio": 0.1}, {"cos_min_ratio": 0.2},
              {"warmup_min_ratio": 0.3, "cos_min_ratio": 0}]
    for shape, warmup, ratio in itertools.product(shapes, warmups, ratios):
        for total in (5, 10, 30):
            yield "WarmupCosineLR", {"total_num_steps": total, "warmup_num_steps": warmup, **ratio,
                                     **shape}
    # What the file leaves out.
    yield "WarmupLR", {}
    yield "WarmupLR", {"last_batch_iteration": -1}
    yield "WarmupDecayLR", {"total_num_steps": 2000}
    yield "WarmupDecayLR", {"total_num_steps": 10, "warmup_num_steps": 2}  # its own peak
    yield "WarmupCosineLR", {"total_num_steps": 10, "warmup_num_steps": 2}


def schedule_case(kind, params):
    lr = 5e-4 if "warmup_max_lr" not in params else 2.5e-4  # the scheduler's is not the optimizer's
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = getattr(lr_schedules, kind)(optimizer, **params)
    rates = []
    for _ in range(UPDATES):  # as DeepSpeedEngine._take_model_step does
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {"type": kind, "params": params, "lr": lr, "rates": rates}


def scaler_cases():
    overflows = [step in (0, 1, 9, 10, 11, 20, 22, 24, 26) for step in range(40)]
    for window, hysteresis, consecutive in itertools.product((1, 3), (1, 2, 3), (False, True)):
        fp16 = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": window,
                "hysteresis": hysteresis, "consecutive_hysteresis": consecutive,
                "min_loss_scale": 2}
        yield fp16, overflows
    yield {"enabled": True}, [False] * 1001 + [True, True, True]
    yield {"enabled": True, "loss_scale": 128}, overflows


def scaler_case(fp16, overflows):
    config = DeepSpeedFP16Config(**fp16)
    scaler = loss_scaler.CreateLossScaler(torch.half, config.loss_scale, config.loss_scale == 0,
                                          config.dynamic_loss_scale_args())
    scaler.raise_error_at_min_scale = False
    scales = []
    for overflow in overflows:
        scaler.update_scale(overflow)
        scales.append(scaler.loss_scale)
    return {"fp16": fp16, "overflows": overflows, "scales": scales}


def defaults_of(function):
    return {name: parameter.default for name, parameter in
            inspect.signature(function).parameters.items()
            if parameter.default is not inspect.Parameter.empty}


def optimizer_cases():
    for kind, classes in (("Adam", (DeepSpeedCPUAdam, FusedAdam)),
                          ("AdamW", (DeepSpeedCPUAdam, FusedAdam)),
                          ("Lion", (DeepSpeedCPULion, FusedLion)),
                          ("Adagrad", (DeepSpeedCPUAdagrad, torch.optim.Adagrad))):
        numbers = [{name: value for name, value in defaults_of(each.__init__).items()
                    if name in ("lr", "betas", "eps", "weight_decay", "bias_correction")}
                   for each in classes]
        assert numbers[0] == numbers[1], (kind, numbers)
        yield {"type": kind, "params": {}, "numbers": numbers[0]}
    adamw = defaults_of(torch.optim.AdamW.__init__)
    yield {"type": "AdamW", "params": {"torch_adam": True},
           "numbers": {name: adamw[name] for name in ("lr", "betas", "eps", "weight_decay")}}


def batch_cases():
    for train, micro, accumulation, world in itertools.product((None, 24), (None, 3, 5),
                                                               (None, 4), (1, 2)):
        config = object.__new__(ds_config.DeepSpeedConfig)
        config.train_batch_size = train
        config.train_micro_batch_size_per_gpu = micro
        config.gradient_accumulation_steps = accumulation
        config.world_size = world
        given = {"train": train, "micro": micro, "accumulation": accumulation, "world": world}
        try:
            config._configure_train_batch_size()
            found = [config.train_batch_size, config.train_micro_batch_size_per_gpu,
                     config.gradient_accumulation_steps]
        except AssertionError:
            found = None
        yield {**given, "found": found}


def plain(value):
    return getattr(value, "value", value)


def dumped(prefix, model):
    return {f"{prefix}.{field.alias or name}": plain(getattr(model, name))
            for name, field in type(model).model_fields.items()}


def key_defaults():
    keys = dumped("zero_optimization", DeepSpeedZeroConfig())
    keys.update(dumped("zero_optimization.offload_param", DeepSpeedZeroOffloadParamConfig()))
    keys.update(dumped("zero_optimization.offload_optimizer",
                       DeepSpeedZeroOffloadOptimizerConfig()))
    keys.update(dumped("fp16", DeepSpeedFP16Config()))
    keys.update(dumped("bf16", DeepSpeedBF16Config()))
    keys.update({f"aio.{name}": value for name, value in AIO_DEFAULT_DICT.items()})
    keys.update({f"activation_checkpointing.{name}": value
                 for name, value in ACT_CHKPT_DEFAULT.items()})
    keys["gradient_clipping"] = constants.GRADIENT_CLIPPING_DEFAULT
    for name in ("PRESCALE_GRADIENTS", "GRADIENT_PREDIVIDE_FACTOR", "SPARSE_GRADIENTS",
                 "COMMUNICATION_DATA_TYPE", "MEMORY_BREAKDOWN", "DUMP_STATE",
                 "DISABLE_ALLGATHER", "GRAPH_HARVESTING"):
        keys[getattr(constants, name)] = getattr(constants, f"{name}_DEFAULT")
    return {key: value for key, value in sorted(keys.items())
            if value is None or isinstance(value, (bool, int, float, str))}


def listed(cases):
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]"


def main():
    loss_scaler.dist = type("Alone", (), {"get_rank": staticmethod(lambda: 1)})
    path = pathlib.Path(__file__).with_name("deepspeed.json")
    path.write_text(
        "{" + f'"deepspeed": "{deepspeed.__version__}",\n'
        f'"schedules": {listed(schedule_case(*case) for case in schedule_cases())},\n'
        f'"scalers": {listed(scaler_case(*case) for case in scaler_cases())},\n'
        f'"optimizers": {listed(optimizer_cases())},\n'
        f'"batches": {listed(batch_cases())},\n'
        f'"defaults": {json.dumps(key_defaults(), indent=0)}' + "}\n")


if __name__ == "__main__":
    main()
