"""A plain torch training loop for tests: knows nothing of mlfs, reads files through DataLoaders, reports what it saw.

In: a directory in ImageFolder's layout. Out: for each rank and epoch the checksums of the samples in the order the loop
got them. Each rank is a process of its own, so worker processes are as in real training.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import zlib
from pathlib import Path
from typing import Any

Seen = list[list[list[int]]]


def train(
    directory: str | Path,
    *,
    ranks: int,
    workers: int,
    epochs: int,
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    first_epoch: int = 0,
) -> Seen:
    """Run all ranks; returns checksums by rank, epoch, sample."""
    context = mp.get_context("fork")
    queue: Any = context.Queue()
    epoch_begins = context.Barrier(ranks)  # as ranks that exchange gradients wait for each other
    arguments = (epoch_begins, os.fspath(directory), ranks, workers, epochs, batch_size, seed, shuffle, first_epoch)
    processes = [context.Process(target=_rank, args=(queue, rank, *arguments)) for rank in range(ranks)]
    for process in processes:
        process.start()
    seen = dict(queue.get() for _ in processes)
    for process in processes:
        process.join()
    return [seen[rank] for rank in range(ranks)]


def _rank(
    queue: Any, rank: int, epoch_begins: Any, directory: str, ranks: int, workers: int, epochs: int, batch: int,
    seed: int, shuffle: bool, first_epoch: int,
) -> None:  # fmt: skip
    import torch
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    torch.set_num_threads(1)
    paths = sorted(
        os.path.join(directory, name, file)
        for name in os.listdir(directory)
        for file in os.listdir(f"{directory}/{name}")
    )

    class Files(Dataset[int]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> int:
            with open(paths[index], "rb") as file:
                return zlib.crc32(file.read())

    dataset = Files()
    sampler: Any = DistributedSampler(dataset, ranks, rank, shuffle=shuffle, seed=seed)
    seen = []
    for epoch in range(first_epoch, first_epoch + epochs):
        sampler.set_epoch(epoch)
        epoch_begins.wait()
        loader = DataLoader(dataset, batch, sampler=sampler, num_workers=workers)
        seen.append([int(x) for batch_of in loader for x in batch_of])
    queue.put((rank, seen))
