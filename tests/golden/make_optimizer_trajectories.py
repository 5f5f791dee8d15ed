#!/usr/bin/env python3
"""Writes optimizer_trajectories.json beside this file: what PyTorch's optimizers make of given
parameters and gradients in FP32, step by step.

    pip install torch numpy && tests/golden/make_optimizer_trajectories.py

The numbers are decimals with 9 significant digits, which give every FP32 number back.
"""

import json
import pathlib

import numpy
import torch

STEPS = 12
PARAMETERS = 10

# name, optimizer, lr, eps, weight_decay, scale of the gradients
CASES = [
    ("adamw_defaults", "AdamW", 1e-3, 1e-8, 0.01, 1e-2),
    ("adamw_no_decay", "AdamW", 5e-5, 1e-8, 0.0, 1e-2),
    ("adamw_large_decay", "AdamW", 0.1, 1e-8, 0.9, 1e-1),
    ("adamw_large_eps_and_rate", "AdamW", 0.1, 1e-3, 0.1, 1e-3),
    ("adamw_zero_gradients", "AdamW", 0.1, 1e-8, 0.1, 0.0),
    ("adamw_subnormal_gradients", "AdamW", 1e-3, 1e-30, 0.0, 1e-39),
    ("adamw_huge_gradients", "AdamW", 1e-3, 1e-8, 0.0, 1e15),
    ("adam_no_decay", "Adam", 1e-3, 1e-8, 0.0, 1e-2),
    ("adam_large_decay", "Adam", 0.1, 1e-8, 0.9, 1e-1),
    ("adam_large_eps_and_rate", "Adam", 0.1, 1e-3, 0.1, 1e-3),
    ("adam_zero_gradients", "Adam", 0.1, 1e-8, 0.1, 0.0),
    ("adagrad", "Adagrad", 1e-2, 1e-10, 0.0, 1e-2),
    ("adagrad_decay", "Adagrad", 0.1, 1e-3, 0.1, 1e-2),
    ("adam_subnormal_gradients", "Adam", 1e-3, 1e-30, 0.0, 1e-39),
]
BETAS = (0.9, 0.999)


def decimals(tensor):
    return [float(f"{x:.9g}") for x in tensor.tolist()]


def make(optimizer_type, lr, eps, weight_decay, scale, random):
    initial = torch.tensor(random.standard_normal(PARAMETERS).astype(numpy.float32))
    parameter = torch.nn.Parameter(initial.clone())
    options = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "foreach": False}
    if optimizer_type != "Adagrad":
        options["betas"] = BETAS
    optimizer = getattr(torch.optim, optimizer_type)([parameter], **options)
    gradients, parameters = [], []
    for _ in range(STEPS):
        gradient = (random.standard_normal(PARAMETERS) * scale).astype(numpy.float32)
        gradient[3] = 0
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        gradients.append(decimals(parameter.grad))
        parameters.append(decimals(parameter.data))
    return {"initial": decimals(initial), "gradients": gradients, "parameters": parameters}


def main():
    torch.set_flush_denormal(False)
    random = numpy.random.default_rng(20240229)
    cases = []
    for name, optimizer_type, lr, eps, weight_decay, scale in CASES:
        case = {"name": name, "type": optimizer_type, "lr": lr, "eps": eps,
                "weight_decay": weight_decay, "betas": BETAS}
        case.update(make(optimizer_type, lr, eps, weight_decay, scale, random))
        cases.append(case)
    path = pathlib.Path(__file__).with_name("optimizer_trajectories.json")
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
