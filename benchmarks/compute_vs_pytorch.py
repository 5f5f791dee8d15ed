#!/usr/bin/env python3
"""Measures whole training steps on the CPU, Terrace against PyTorch, in turns.

    cmake -S . -B build && cmake --build build --target terrace
    python3 -m venv peers && peers/bin/pip install torch numpy
    peers/bin/python benchmarks/compute_vs_pytorch.py --terrace build/terrace

A step is forward, backward, clipping to norm 1 and AdamW on random tokens; neither side recomputes
activations. Both have the same shapes, threads and tokens a step. Terrace keeps FP32 master weights
and moments and computes in --dtype. PyTorch keeps FP32 parameters and moments, computes in autocast
for bf16, with scaled_dot_product_attention and the fused AdamW: its best eager path. The table shows
the median tokens/s over the turns; the first steps of each turn are not counted.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

SHAPES = {
    "gpt2-124m": dict(kind="gpt2", layers=12, hidden=768, heads=12, intermediate=3072, vocab=50257,
                      positions=1024),
    "llama-160m": dict(kind="llama", layers=12, hidden=768, heads=12, intermediate=3072,
                       vocab=32000, positions=2048),
}
WARM_STEPS = 2


def make_model(shape, torch):
    """The architecture in plain PyTorch modules, weights random."""
    nn, functional = torch.nn, torch.nn.functional
    hidden, heads = shape["hidden"], shape["heads"]
    is_llama = shape["kind"] == "llama"
    make_norm = (lambda: nn.RMSNorm(hidden)) if is_llama else (lambda: nn.LayerNorm(hidden))

    def rotate(x, cosine, sine):
        left, right = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-right, left), dim=-1) * sine

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = make_norm(), make_norm()
            self.qkv = nn.Linear(hidden, 3 * hidden, bias=not is_llama)
            self.output = nn.Linear(hidden, hidden, bias=not is_llama)
            wide = shape["intermediate"] * (2 if is_llama else 1)
            self.widen = nn.Linear(hidden, wide, bias=not is_llama)
            self.narrow = nn.Linear(shape["intermediate"], hidden, bias=not is_llama)

        def forward(self, x, turn):
            rows, length, _ = x.shape
            q, k, v = (part.view(rows, length, heads, -1).transpose(1, 2)
                       for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
            if is_llama:
                q, k = rotate(q, *turn), rotate(k, *turn)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.output(mixed.transpose(1, 2).reshape(rows, length, hidden))
            wide = self.widen(self.norm2(x))
            if is_llama:
                gate, up = wide.chunk(2, dim=-1)
                return x + self.narrow(functional.silu(gate) * up)
            return x + self.narrow(functional.gelu(wide, approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(shape["vocab"], hidden)
            self.positions = None if is_llama else nn.Embedding(shape["positions"], hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(shape["layers"]))
            self.norm = make_norm()
            self.head = nn.Linear(hidden, shape["vocab"], bias=False)
            if not is_llama:
                self.head.weight = self.tokens.weight
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens, targets):
            x = self.tokens(tokens)
            turn = None
            if is_llama:
                size = hidden // heads
                rate = 10000.0 ** (-torch.arange(0, size, 2) / size)
                angle = torch.outer(torch.arange(tokens.shape[1]), rate).repeat(1, 2)
                turn = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
            else:
                x = x + self.positions(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x, turn)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Model()


def pytorch_side(arguments):
    """Runs in a process of its own: prints the seconds of each step."""
    import time

    import torch

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    shape = SHAPES[arguments.model]
    model = make_model(shape, torch)
    run = torch.compile(model) if arguments.side == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(arguments.steps + WARM_STEPS):
        tokens = torch.randint(shape["vocab"], (arguments.rows, arguments.sequence))
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.dtype == "bf16"):
            loss = run(tokens, tokens.roll(-1, 1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"version": torch.__version__, "seconds": seconds[WARM_STEPS:]}))


def run_pytorch(arguments, side):
    command = [sys.executable, __file__, "--side", side, "--model", arguments.model]
    for name in ("dtype", "rows", "sequence", "threads", "steps"):
        command += [f"--{name}", str(getattr(arguments, name))]
    environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads))
    result = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(result.stdout.splitlines()[-1])["seconds"]


def run_terrace(arguments, folder):
    import numpy

    tokens_per_step = arguments.rows * arguments.sequence
    steps = arguments.steps + WARM_STEPS
    data = folder / "tokens.npy"
    if not data.exists():
        generator = numpy.random.default_rng(1)
        vocabulary = SHAPES[arguments.model]["vocab"]
        numpy.save(data, generator.integers(0, vocabulary, (steps + 2) * tokens_per_step + 1,
                                            dtype=numpy.uint16))
    output = folder / "run"
    subprocess.run(
        [arguments.terrace, "train", "--model", arguments.model, "--data", data, "--output", output,
         "--overwrite_output_dir", "True", "--max_steps", str(steps), "--save_steps", "0",
         "--per_device_train_batch_size", str(arguments.rows), "--max_length",
         str(arguments.sequence), "--bf16", str(arguments.dtype == "bf16"),
         "--gradient_checkpointing", "False", "--weight_decay", "0.1", "--max_grad_norm", "1",
         "--offload_optimizer", "none", "--offload_param", "none", "--device", "cpu",
         "--threads", str(arguments.threads)],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [row["step_seconds"] for row in rows if "step_seconds" in row][WARM_STEPS:]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terrace", default="build/terrace", help="the program")
    parser.add_argument("--model", choices=SHAPES, default="gpt2-124m")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--rows", type=int, default=4, help="sequences a step")
    parser.add_argument("--sequence", type=int, default=256, help="tokens a sequence")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="counted steps a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--raw", type=pathlib.Path, help="write all step times to this JSON file")
    parser.add_argument("--side", choices=("eager", "compile"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        return pytorch_side(arguments)

    sides = ["terrace", "eager"] + (["compile"] if arguments.compile else [])
    seconds = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.turns):
            for side in sides:
                seconds[side].append(run_terrace(arguments, pathlib.Path(folder))
                                     if side == "terrace" else run_pytorch(arguments, side))
    tokens = arguments.rows * arguments.sequence
    speed = {side: tokens / statistics.median(sum(turns, [])) for side, turns in seconds.items()}
    print(f"{arguments.model}, {arguments.dtype}, {arguments.rows} x {arguments.sequence} tokens, "
          f"{arguments.threads} threads")
    for side in sides:
        print(f"  {side:<8} {speed[side]:9.1f} tokens/s   terrace is "
              f"{speed['terrace'] / speed[side]:.2f} times as fast")
    if arguments.raw:
        record = {key: str(value) for key, value in vars(arguments).items() if key != "raw"}
        arguments.raw.write_text(json.dumps({"arguments": record, "seconds": seconds}, indent=1))


if __name__ == "__main__":
    main()
