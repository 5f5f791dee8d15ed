#!/usr/bin/env python3
"""Measures Terrace's AdamW step on the CPU against DeepSpeed's CPUAdam and PyTorch's fused AdamW, in
turns, on the same tensors and threads.

    cmake -S . -B build -DTERRACE_BENCHMARKS=ON && cmake --build build --target optimizer_peers
    python3 -m venv peers && peers/bin/pip install torch numpy ninja deepspeed
    peers/bin/python benchmarks/optimizer_peers.py --library build/benchmarks/liboptimizer_peers.so

What each side is asked to do: to go from a gradient and a clip factor to an updated FP32 master,
exp_avg and exp_avg_sq and a bf16 parameter.

    terrace fp32     one pass from the bf16 gradient; 28 bytes a parameter
    terrace split    the same with the master as bf16 parameter and remainder; 26 bytes
    deepspeed        as its engine does it: gradient.mul_(factor), DeepSpeedCPUAdam.step(), and
                     parameter.copy_(master); 8 + 28 + 6 bytes. Its gradient is FP32 already: the
                     pass that widens it is not counted, in its favour.
    deepspeed kernel DeepSpeedCPUAdam.step() alone: FP32 gradient, no clip factor, no parameter; 28
    torch fused      torch.optim.AdamW(fused=True).step() and parameter.copy_(master): FP32 gradient,
                     no clip factor, in its favour; 28 + 6
"""

import argparse
import ctypes
import json
import os
import statistics
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch  # noqa: E402

RATE, DECAY, FACTOR = 1e-4, 0.1, 0.999


class PeerStep(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int64), ("master", ctypes.c_void_p),
                ("exp_avg", ctypes.c_void_p), ("exp_avg_sq", ctypes.c_void_p),
                ("parameter", ctypes.c_void_p), ("gradient", ctypes.c_void_p),
                ("step", ctypes.c_int64), ("learning_rate", ctypes.c_double),
                ("weight_decay", ctypes.c_double), ("gradient_scale", ctypes.c_double),
                ("split", ctypes.c_int32)]


class Tensors:
    """One set of state for everybody; only `split` needs a remainder instead of the master."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        self.master = torch.nn.Parameter(torch.randn(count, generator=generator))
        self.exp_avg = torch.randn(count, generator=generator) * 1e-2
        self.exp_avg_sq = torch.rand(count, generator=generator) * 1e-4 + 1e-6
        self.gradient = (torch.randn(count, generator=generator) * 1e-2).bfloat16()
        self.gradient_fp32 = self.gradient.float()
        self.parameter = self.master.detach().bfloat16()
        self.remainder = torch.zeros(count, dtype=torch.int16)
        self.master.grad = self.gradient_fp32


def terrace(library, workers, tensors, split):
    master = tensors.remainder if split else tensors.master
    pointers = [t.data_ptr() for t in (master, tensors.exp_avg, tensors.exp_avg_sq,
                                       tensors.parameter, tensors.gradient)]
    arguments = PeerStep(tensors.master.numel(), *pointers, 0, RATE, DECAY, FACTOR, int(split))

    def run():
        arguments.step += 1
        if library.peer_step(workers, ctypes.byref(arguments)) != 0:
            raise RuntimeError("the step failed")
    return run


def share_state(optimizer, tensors, step):
    optimizer.state[tensors.master] = {"step": step, "exp_avg": tensors.exp_avg,
                                       "exp_avg_sq": tensors.exp_avg_sq}


def deepspeed_kernel(tensors):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    optimizer = DeepSpeedCPUAdam([tensors.master], lr=RATE, weight_decay=DECAY, adamw_mode=True)
    share_state(optimizer, tensors, 0)
    return optimizer.step


def deepspeed_whole(tensors, step):
    @torch.no_grad()
    def run():
        tensors.gradient_fp32.mul_(FACTOR)
        step()
        tensors.parameter.copy_(tensors.master)
    return run


def torch_fused(tensors):
    optimizer = torch.optim.AdamW([tensors.master], lr=RATE, weight_decay=DECAY, fused=True)
    share_state(optimizer, tensors, torch.tensor(0.0))

    @torch.no_grad()
    def run():
        optimizer.step()
        tensors.parameter.copy_(tensors.master)
    return run


def agreement(tensors, step, clipped):
    """The master after one step from the present state, which is put back."""
    kept = [t.detach().clone() for t in (tensors.master, tensors.exp_avg, tensors.exp_avg_sq)]
    gradient = tensors.gradient_fp32.clone()
    if clipped:
        tensors.gradient_fp32.mul_(FACTOR)
    step()
    result = tensors.master.detach().clone()
    with torch.no_grad():
        for tensor, old in zip((tensors.master, tensors.exp_avg, tensors.exp_avg_sq), kept):
            tensor.copy_(old)
        tensors.gradient_fp32.copy_(gradient)
    return result


def measure(sides, count, rounds):
    seconds = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            if turn > 0:  # the first one warms up
                seconds[name].append(time.perf_counter() - start)
    rates = {name: count / statistics.median(times) * 1e-9 for name, times in seconds.items()}

    def ratio(ours, theirs):
        return statistics.median(b / a for a, b in zip(seconds[ours], seconds[theirs]))
    ratios = {f"{ours} / {theirs}": ratio(ours, theirs)
              for ours in ("terrace fp32", "terrace split")
              for theirs in sides if not theirs.startswith("terrace")}
    return rates, ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", dest="shared_object", required=True)
    parser.add_argument("--parameters", type=int, default=1 << 26)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    library = ctypes.CDLL(options.shared_object)
    library.peer_workers.restype = ctypes.c_void_p
    library.peer_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    workers = library.peer_workers(options.threads)

    tensors = Tensors(options.parameters)
    kernel = deepspeed_kernel(tensors)
    sides = {"terrace fp32": terrace(library, workers, tensors, split=False),
             "deepspeed": deepspeed_whole(tensors, kernel),
             "terrace split": terrace(library, workers, tensors, split=True),
             "deepspeed kernel": kernel,
             "torch fused": torch_fused(tensors)}

    # Everybody's first step from the same state has to give the same master.
    ours = agreement(tensors, terrace(library, workers, tensors, split=False), clipped=False)
    differences = {name: (agreement(tensors, step, clipped=True) - ours).abs().max().item()
                   for name, step in (("deepspeed", deepspeed_kernel(tensors)),
                                      ("torch fused", torch_fused(tensors)))}
    rates, ratios = measure(sides, options.parameters, options.rounds)
    import deepspeed
    print(json.dumps({"schema": "terrace.benchmark.optimizer_peers/1",
                      "parameters": options.parameters, "threads": options.threads,
                      "torch": torch.__version__, "deepspeed": deepspeed.__version__,
                      "largest_difference_of_master": differences,
                      "gigaparameters_per_second": rates, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
