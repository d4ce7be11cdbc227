"""A torch training loop that goes on until it is told to stop, for tests that wait for a condition.

In: a directory in ImageFolder's layout, and what the script does otherwise than was registered. Each rank is a process
of its own, as in real training. Knows nothing of mlfs.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_EPOCHS = 2000


@dataclass(frozen=True)
class Script:
    """What the script does.

    Attributes:
        stop_after: the step after which each epoch is left, 0 for none.
        world: the world size, 0 for as many ranks as run.
        first_rank: the rank of the first process.
        prefetch: the loader's prefetch_factor.
        slow: whether each step takes longer than loading, however slow that is.
        epochs: after how many the script ends by itself; by default it goes on until the context ends.
    """

    seed: int = 0
    ranks: int = 1
    workers: int = 2
    batch_size: int = 16
    set_epoch: bool = True
    shuffle: bool = True
    persistent: bool = False
    stop_after: int = 0
    first_epoch: int = 0
    world: int = 0
    first_rank: int = 0
    prefetch: int = 2
    slow: bool = False
    epochs: int = MOST_EPOCHS


@contextmanager
def looping(directory: str | Path, script: Script) -> Iterator[Any]:
    """The script runs while the context lasts; yields a value that counts the epochs that rank 0 has read."""
    context = mp.get_context("fork")
    stop, epochs = context.Event(), context.Value("i", 0)
    processes = [
        context.Process(target=_rank, args=(os.fspath(directory), script, rank, stop, epochs))
        for rank in range(script.ranks)
    ]
    for process in processes:
        process.start()
    try:
        yield epochs
    finally:
        if script.epochs == MOST_EPOCHS:
            stop.set()
        for process in processes:
            process.join()


def _rank(directory: str, script: Script, number: int, stop: Any, epochs: Any) -> None:
    import torch
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    torch.set_num_threads(1)
    paths = sorted(str(path) for path in Path(directory).glob("*/*.jpg"))
    read = mp.get_context("fork").Value("q", 0)

    class Files(Dataset[int]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> int:
            with open(paths[index], "rb") as file:
                length = len(file.read())
            with read.get_lock():
                read.value += 1
            return length

    dataset = Files()
    world, rank = script.world or script.ranks, script.first_rank + number
    sampler: Any = DistributedSampler(dataset, world, rank, shuffle=script.shuffle, seed=script.seed)
    more = {"prefetch_factor": script.prefetch, "persistent_workers": script.persistent} if script.workers else {}
    loader = DataLoader(dataset, script.batch_size, sampler=sampler, num_workers=script.workers, **more)
    for epoch in range(script.first_epoch, script.first_epoch + script.epochs):
        if script.set_epoch:
            sampler.set_epoch(epoch)
        before, pause_s = read.value, 0.05
        for step, _ in enumerate(loader, 1):
            if step == script.stop_after:
                break
            if script.slow:
                ahead = (step + script.prefetch * script.workers) * script.batch_size
                pause_s = _longer_than_loading(read, before + min(len(sampler), ahead), pause_s)
        if number == 0:
            epochs.value += 1
        if stop.is_set():
            return


def _longer_than_loading(read: Any, wanted: int, pause_s: float) -> float:
    """Take a step: wait until the workers have read all that they may, then for as long as that ever took."""
    began_s = time.monotonic()
    while read.value < wanted:
        time.sleep(0.002)
    pause_s = max(pause_s, time.monotonic() - began_s)
    time.sleep(pause_s)
    return pause_s
