"""litdata: the chunks that the workers of a StreamingDataset open, by its own shuffles and its own way to resume."""

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
        yield from _resumed(draw, job, sizes, cache, shuffle)


def _resumed(draw: random.Random, job: dict[str, Any], sizes: list[int], cache: Any, shuffle: Any) -> Iterator[Case]:
    """The job, which has left off in the middle of an epoch and comes back, up to three times."""
    from litdata.streaming.dataset import StreamingDataset
    from litdata.utilities.env import _DistributedEnv, _WorkerEnv

    nowhere, nodes, epoch = SimpleNamespace(path=None, url=None), job["physical_nodes"], draw.randrange(EPOCHS - 1)
    # What its __iter__ asks for, without the files.
    dataset: Any = StreamingDataset.__new__(StreamingDataset)
    vars(dataset).update(
        cache=cache, shuffler=shuffle, shuffle=job["shuffle"], seed=job["seed"], drop_last=job["drop_last"],
        current_epoch=epoch + 1, _shuffle_num_chunks=len(sizes), num_canonical_nodes=None, posix_fast=None,
        item_loader=None, input_dir=nowhere, cache_dir=nowhere, _item_shuffle_window=0, subsampled_files=[],
        region_of_interest=[], _state_dict=None, _elastic_item_lists=None, _elastic_drop_first=None,
        distributed_env=_DistributedEnv(job["world_size"], 0, nodes),
    )  # fmt: skip
    shape = job["world_size"], job["num_workers"], job["group_batch"]
    left = sum(sizes) // shape[0]
    for _ in range(3):
        batches = left // shape[2]
        if batches < 2:
            return
        yielded = shape[2] * draw.randint(1, batches - 1)
        state = {**dataset.state_dict(yielded, *shape[1:])}
        if draw.random() < 0.5:  # worker processes have it, and not the one whose state is saved
            state.pop("resume_mode", None)
        other = nodes * draw.randint(1, 3), draw.randint(1, 3), draw.choice((1, 4, 16))
        now = shape if draw.random() < 0.4 else other
        dataset.batch_size, reads, rest = now[2], [], 0
        for rank in range(now[0]):
            mine = []
            for worker in range(now[1]):
                dataset._state_dict, dataset._elastic_item_lists = {**state}, None
                dataset.distributed_env = _DistributedEnv(now[0], rank, nodes)
                dataset.worker_env = _WorkerEnv(now[1], worker)
                if shape != now or "resume_mode" in state:
                    dataset._setup_elastic_resume(replay_workers=shape == now)
                    chunks, rest = dataset.worker_chunks, rest + dataset.stop_length
                else:
                    dealt = shuffle.get_chunks_and_intervals_per_workers(dataset.distributed_env, *now[1:], epoch + 1)
                    dataset.worker_next_chunk_index = 0
                    dataset.upcoming_indexes = []
                    dataset._resume(*dealt)
                    at = dataset.worker_next_chunk_index - bool(len(dataset.upcoming_indexes))
                    # __iter__ has its reader open the first ones of the epoch before that.
                    chunks = list(dict.fromkeys(dataset.worker_chunks))[:4] + list(dataset.worker_chunks[at:])
                    rest += sum(end - begin for _, begin, end, _ in dataset.worker_intervals[at:])
                mine.append(list(dict.fromkeys(int(chunk) for chunk in chunks)))
            turns = max(map(len, mine))
            reads.append((epoch, rank, [of[turn] for turn in range(turns) for of in mine if turn < len(of)]))
        if not any(chunks for _, _, chunks in reads):
            return
        numbers = {name: value for name, value in state.items() if type(value) is int or name == "resume_mode"}
        told = {"current_epoch": epoch + 1, "num_samples_yielded": yielded, "dataset": numbers}
        yield Case(
            job | dict(zip(("world_size", "num_workers", "group_batch"), now, strict=True)) | {"resume": told},
            len(sizes), reads, sizes,
        )  # fmt: skip
        if shape == now and "resume_mode" not in state:
            return
        shape, left = now, rest // now[0]
