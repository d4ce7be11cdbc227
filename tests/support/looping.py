"""A torch training loop that goes on, epoch after epoch, until it is told to stop: for tests that wait for a condition.

In: a directory in ImageFolder's layout, and what the script does otherwise than was registered. Each rank is a process
of its own, as in real training. Knows nothing of mlfs.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_EPOCHS = 2000


@dataclass(frozen=True)
class Script:
    """What the script does. `world` 0: as many ranks as run. `first_rank`: the rank of the first process."""

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
        stop.set()
        for process in processes:
            process.join()


def _rank(directory: str, script: Script, number: int, stop: Any, epochs: Any) -> None:
    import torch
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    torch.set_num_threads(1)
    paths = sorted(str(path) for path in Path(directory).glob("*/*.jpg"))

    class Files(Dataset[int]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> int:
            with open(paths[index], "rb") as file:
                return len(file.read())

    dataset = Files()
    world, rank = script.world or script.ranks, script.first_rank + number
    sampler: Any = DistributedSampler(dataset, world, rank, shuffle=script.shuffle, seed=script.seed)
    keep = script.persistent and script.workers > 0
    loader = DataLoader(
        dataset, script.batch_size, sampler=sampler, num_workers=script.workers, persistent_workers=keep
    )
    for epoch in range(script.first_epoch, script.first_epoch + MOST_EPOCHS):
        if script.set_epoch:
            sampler.set_epoch(epoch)
        for step, _ in enumerate(loader, 1):
            if step == script.stop_after:
                break
        if number == 0:
            epochs.value += 1
        if stop.is_set():
            return
