"""The training job of the benchmark: torch DataLoaders over a directory, one process a rank, steps that only take time.

In: a directory in ImageFolder's layout. Out: seconds of each epoch, the slowest rank's. Called by scripts/bench.py.
"""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS, WORKERS, BATCH, STEP_S = 2, 2, 32, 0.032


def run_job(directory: Path, epochs: int, start: Callable[[], object], no_io: bool = False) -> list[float]:
    """Train, and return the seconds of each epoch.

    Args:
        start: called when all ranks are ready; epoch 0 counts from there.
        no_io: whether samples are bytes in memory instead of files.
    """
    context = mp.get_context("spawn")
    queue, ready, go = context.Queue(), context.Barrier(RANKS + 1), context.Event()
    arguments = (str(directory), epochs, no_io, queue, ready, go)
    processes = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    ready.wait()
    began = time.time()
    start()
    go.set()
    spans = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    firsts = [began] + [min(each[epoch][0] for each in spans) for epoch in range(1, epochs)]
    lasts = [max(each[epoch][1] for each in spans) for epoch in range(epochs)]
    return [last - first for first, last in zip(firsts, lasts, strict=True)]


def _rank(rank: int, directory: str, epochs: int, no_io: bool, queue: Any, ready: Any, go: Any) -> None:
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    paths = sorted(str(path) for path in Path(directory).glob("*/*.jpg"))

    class Samples(Dataset):
        def __init__(self) -> None:
            self.memory = Path(paths[0]).read_bytes()

        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> int:
            if no_io:
                return len(bytearray(self.memory))
            with open(paths[index], "rb") as file:
                return len(file.read())

    dataset = Samples()
    sampler: DistributedSampler = DistributedSampler(dataset, RANKS, rank, shuffle=True, seed=0)
    loader = DataLoader(
        dataset, BATCH, sampler=sampler, num_workers=WORKERS, persistent_workers=True, multiprocessing_context="fork"
    )
    spans = []
    ready.wait()
    go.wait()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        began = time.time()
        for _ in loader:
            time.sleep(STEP_S)  # in place of the accelerator's work
        spans.append((began, time.time()))
    queue.put(spans)
