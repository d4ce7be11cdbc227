"""One rank that reads files in the order of a list, as a loader does that computes nothing: for scripts/bench served.

    RANK=0 WORLD_SIZE=4 python scripts/read_in_order.py DATA LISTS [--epochs 3] [--threads 4]

In: a directory; LISTS, the path of an epoch's list with {epoch} and {rank} in it, a path relative to DATA a line; rank,
world size and the address of the first rank from the environment, as torchrun sets them. Out: a JSON line an epoch:
epoch, rank, seconds, seconds waiting for data, and how many bytes were read. The ranks begin each epoch together.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist

PATIENCE_S = 60.0


def read(path: str) -> int:
    """Read a file whole; its bytes."""
    with open(path, "rb", buffering=0) as file:
        return len(file.read())


def lines_of(path: str) -> list[str]:
    """The lines of a list: of a job that is registered on another node just now it comes a moment later."""
    ends = time.monotonic() + PATIENCE_S
    while not os.path.exists(path) and time.monotonic() < ends:
        time.sleep(0.05)
    with open(path) as lines:
        return [line.rstrip("\n") for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description="Read files in the order of lists.")
    parser.add_argument("data")
    parser.add_argument("lists")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4)
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    with ThreadPoolExecutor(args.threads) as pool:
        for epoch in range(args.epochs):
            paths = [os.path.join(args.data, path) for path in lines_of(args.lists.format(epoch=epoch, rank=rank))]
            dist.barrier()
            began = time.perf_counter()
            ahead = iter(paths)  # one reader takes what the others have not taken yet: so they stay side by side
            total = sum(
                pool.map(lambda _, ahead=ahead: sum(map(read, ahead)), itertools.repeat(None, args.threads))  # type: ignore[misc]
            )
            seconds = time.perf_counter() - began
            line = {"epoch": epoch, "rank": rank, "seconds": seconds, "waiting": seconds, "bytes": total}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
