"""webdataset: files that go through shuffle(bufsize, initial, seed=...) or detshuffle, and a WebDataset's shards."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator
from typing import Any

from oracles.case import Case

DISTRIBUTION = "webdataset"
EPOCHS = 3


def cases(draw: random.Random, count: int) -> Iterator[Case]:
    """detshuffle adds the epoch to its seed."""
    import webdataset

    for _ in range(count // 2):
        n, size, first, seed = draw.randint(0, 120), draw.randint(1, 60), draw.randint(1, 70), draw.randrange(2**40)
        stage = webdataset.detshuffle(bufsize=size, initial=first, seed=seed)
        reads = [(epoch, 0, list(stage.run(iter(range(n))))) for epoch in range(EPOCHS)]
        job: dict[str, Any] = {"draw": "filling-buffer", "generator": "python", "buffer_size": size, "seed": seed}
        yield Case(job | {"buffer_first": first, "seeding": "seed+epoch"}, n, reads)
    for _ in range(count - count // 2):
        yield _of_shards(draw, webdataset)


def _of_shards(draw: random.Random, webdataset: Any) -> Case:
    """The shards that each rank's workers open, one of each worker in turn. Workers live on, or are made each epoch."""
    n, ranks, workers, seed = draw.randint(1, 120), draw.randint(1, 3), draw.randint(1, 4), draw.randrange(2**40)
    by_epoch, lives_on, size = draw.random() < 0.6, draw.random() < 0.6, draw.choice([1, 7, 100, 1000])
    data = webdataset.WebDataset(
        [f"{shard}.tar" for shard in range(n)], shardshuffle=size, detshuffle=by_epoch, seed=seed,
        nodesplitter=webdataset.split_by_node,
    )  # fmt: skip
    copies = {(rank, worker): copy.deepcopy(data) for rank in range(ranks) for worker in range(workers)}
    reads = []
    for epoch in range(EPOCHS):
        for rank in range(ranks):
            opened = []
            for worker in range(workers):
                os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{ranks}", "WORKER": f"{worker}"}
                os.environ["NUM_WORKERS"] = f"{workers}"
                pipeline = copies[rank, worker] if lives_on else copy.deepcopy(data)
                urls = pipeline.invoke(pipeline.pipeline[0])
                for stage in pipeline.pipeline[1:4]:  # by node, by worker, the shuffle; then shards are opened
                    urls = pipeline.invoke(stage, urls)
                opened.append([int(of["url"].removesuffix(".tar")) for of in urls])
            turns = max(map(len, opened))
            reads.append(
                (epoch, rank, [shards[turn] for turn in range(turns) for shards in opened if turn < len(shards)])
            )
    job: dict[str, Any] = {"preset": "webdataset", "layout": "sorted", "seed": seed, "buffer_size": size}
    job |= {"world_size": ranks, "num_workers": workers}
    return Case(job | ({"seeding": "seed+epoch"} if by_epoch and lives_on else {}), n, reads)
