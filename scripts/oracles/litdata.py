"""litdata: the chunks that the workers of a StreamingDataset open, by its own shuffles."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from oracles.case import Case

DISTRIBUTION = "litdata"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """Chunks of one size and of several, shared by workers and not, on one node and on two."""
    warnings.simplefilter("ignore")
    from litdata.streaming.item_loader import Interval
    from litdata.streaming.shuffle import FullShuffle, NoShuffle, WindowShuffle
    from litdata.utilities.env import _DistributedEnv

    for _ in range(count):
        chunks, largest = draw.randint(1, 40), draw.choice((1, 9, 50))
        sizes = [draw.randint(1, largest) for _ in range(chunks)]
        ends = [sum(sizes[: at + 1]) for at in range(chunks)]
        intervals = [Interval(end - size, end - size, end, end) for end, size in zip(ends, sizes, strict=True)]
        bytes_of = SimpleNamespace(_chunks=[{"chunk_bytes": 1}] * chunks)
        reader = SimpleNamespace(_config=bytes_of, _max_cache_size=0)
        cache: Any = SimpleNamespace(get_chunk_intervals=lambda intervals=intervals: intervals, _reader=reader)
        nodes, workers, batch = draw.choice((1, 1, 2)), draw.randint(1, 3), draw.choice((1, 4, 16))
        ranks, seed, kind = nodes * draw.randint(1, 3), draw.choice((42, 0, draw.randrange(1 << 32))), draw.randrange(4)
        drop_last = draw.random() < 0.5
        job: dict[str, Any] = {
            "sampler": "litdata", "seed": seed, "world_size": ranks, "num_workers": workers, "group_batch": batch,
            "physical_nodes": nodes, "drop_last": drop_last, "shuffle": kind > 0,
        }  # fmt: skip
        shuffle: Any = (FullShuffle if kind else NoShuffle)(cache, seed, drop_last)
        if kind == 1:
            job["buffer_size"] = draw.choice((1, 4, 16))
            shuffle = WindowShuffle(cache, seed, drop_last, window=job["buffer_size"])
        reads = []
        for epoch in range(EPOCHS):
            environment = _DistributedEnv(ranks, 0, nodes)
            lists, _ = shuffle.get_chunks_and_intervals_per_workers(environment, workers, batch, epoch + 1)
            for rank in range(ranks):
                mine = [[int(chunk) for chunk in of] for of in lists[rank * workers : (rank + 1) * workers]]
                turns = max(map(len, mine))
                reads.append((epoch, rank, [of[turn] for turn in range(turns) for of in mine if turn < len(of)]))
        yield Case(job, chunks, reads, sizes)
