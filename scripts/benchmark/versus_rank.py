"""One rank of the side-by-side benchmark's training: waits for a data set, trains as scripts/train_demo.py does, waits.

    python scripts/benchmark/versus_rank.py RENDEZVOUS    RANK and WORLD_SIZE stand in the environment

In: JSON lines on standard input, {"data": DIR, "epochs": N, "batch_size": N}. Out: the lines of the training script,
and {"done": RANK} after each training; {"ready": RANK} first of all. So torch is imported before any time counts, and
nothing that is made ready for a training has a head start while it is. Run by scripts/benchmark/versus.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import torch
import torch.distributed as dist
import train_demo


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    train_demo.report({"ready": rank})
    for line in sys.stdin:
        torch.manual_seed(0)
        train_demo.train(argparse.Namespace(workers=2, seed=0, **json.loads(line)))
        train_demo.report({"done": rank})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
