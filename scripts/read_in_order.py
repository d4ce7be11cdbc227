"""One rank of a training that computes nothing: reads files in the order of a list, for scripts/bench served.

    RANK=0 WORLD_SIZE=4 python scripts/read_in_order.py DATA LISTS --batch-size 16 [--epochs 3] [--threads 4]

In: a directory; LISTS, the path of an epoch's list with {epoch} and {rank} in it, a path relative to DATA a line; rank,
world size and the address of the first rank from the environment, as torchrun sets them. Out: a JSON line an epoch:
epoch, rank, seconds, seconds waiting for data, and how many bytes were read. As in data-parallel training, a rank ends
a step when all ranks have read their batch of it, and reads one batch ahead meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import torch.distributed as dist

PATIENCE_S = 60.0
BATCHES = 2  # that are being read at a time: as many as the simulator's loaders have (mlfs.lab.sim.detailed.training)


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


def read_epoch(pool: ThreadPoolExecutor, paths: list[str], batch_size: int) -> int:
    """Read all files, step by step; their bytes. The pool takes them in their order."""
    total, under_way = 0, deque[list[Future[int]]]()
    starts = range(0, len(paths), batch_size)
    for start in [*starts, *[len(paths)] * (BATCHES - 1)]:
        under_way.append([pool.submit(read, path) for path in paths[start : start + batch_size]])
        if len(under_way) == BATCHES:
            total += sum(file.result() for file in under_way.popleft())
            dist.barrier()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description="Read files in the order of lists, all ranks step by step.")
    parser.add_argument("data")
    parser.add_argument("lists")
    parser.add_argument("--batch-size", type=int, required=True)
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
            total = read_epoch(pool, paths, args.batch_size)
            seconds = time.perf_counter() - began
            line = {"epoch": epoch, "rank": rank, "seconds": seconds, "waiting": seconds, "bytes": total}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
