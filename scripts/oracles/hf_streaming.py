"""HF datasets: an IterableDataset that shuffle(seed) has shuffled: rows of one shard; shards that workers open."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from oracles.case import Case

DISTRIBUTION = "datasets"
EPOCHS = 3
ROWS = 4


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Examples from a generator, as those of files are."""
    from datasets import IterableDataset

    for _ in range(count // 2):
        n, size, seed = draw.randint(1, 120), draw.randint(1, 150), draw.randrange(2**32)
        rows = IterableDataset.from_generator(_rows, gen_kwargs={"n": n})
        read = [row["index"] for row in rows.shuffle(seed=seed, buffer_size=size)]
        job: dict[str, Any] = {"draw": "buffer", "generator": "numpy", "buffer_size": size, "seeding": "same"}
        yield Case(job | {"seed": seed}, n, [(0, 0, read)])
    for _ in range(count - count // 2):
        yield _of_shards(draw, IterableDataset)


def _rows(n: int) -> Iterator[dict[str, int]]:
    for index in range(n):
        yield {"index": index}


OPENED: list[int] = []


def _of_files(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        OPENED.append(shard)
        for row in range(ROWS):
            yield {"index": row}


def _of_shards(draw: random.Random, dataset: Any) -> Case:
    """The shards that each rank's workers open, all of one length, one of each worker in turn."""
    import torch.utils.data
    from datasets.distributed import split_dataset_by_node

    n, ranks, workers, seed = draw.randint(1, 80), draw.randint(1, 3), draw.randint(1, 4), draw.randrange(2**32)
    at_once, shuffles, job = draw.choice([1, 2, 10]), draw.random() < 0.8, dict[str, Any]()
    data = dataset.from_generator(_of_files, gen_kwargs={"shards": list(range(n))})
    if shuffles:
        data = data.shuffle(seed=seed, buffer_size=1, max_buffer_input_shards=at_once)
        job["shards_at_once"] = at_once
    reads = []
    for epoch in range(EPOCHS):
        data.set_epoch(epoch)
        for rank in range(ranks):
            mine, opened = split_dataset_by_node(data, rank, ranks) if ranks > 1 else data, []
            mine.set_epoch(epoch)
            for worker in range(workers):
                info = SimpleNamespace(id=worker, num_workers=workers, seed=0, dataset=mine)
                torch.utils.data._utils.worker._worker_info = info
                OPENED.clear()
                for _ in mine:
                    pass
                opened.append(OPENED[:])
            turns = max(map(len, opened))
            reads.append(
                (epoch, rank, [shards[turn] for turn in range(turns) for shards in opened if turn < len(shards)])
            )
    torch.utils.data._utils.worker._worker_info = None
    job |= {"preset": "hf-streaming", "seed": seed, "world_size": ranks, "num_workers": workers, "shuffle": shuffles}
    return Case(job, n, reads)
