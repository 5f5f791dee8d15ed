#!/usr/bin/env python3
"""Writes schedules.json beside this file: the learning rates that Hugging Face's schedules give to
every update, and one past the end.

    pip install torch transformers && tests/golden/make_schedules.py
"""

import json
import pathlib

import torch
import transformers

PEAK = 3e-4
CASES = [(kind, warmup, total) for kind in ("linear", "cosine", "constant", "constant_with_warmup")
         for warmup, total in ((0, 10), (3, 10), (10, 10), (0, 1), (1, 7))]


def rates(kind, warmup, total):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = transformers.get_scheduler(kind, optimizer, warmup, total)
    result = []
    for _ in range(total + 1):
        result.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return result


def main():
    cases = [{"type": kind, "warmup": warmup, "total": total, "rates": rates(kind, warmup, total)}
             for kind, warmup, total in CASES]
    path = pathlib.Path(__file__).with_name("schedules.json")
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"transformers": "{transformers.__version__}", "peak": {PEAK}, '
                    f'"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
