"""A served order in rounds: what no node keeps is fetched as it lies in the tree, a round ahead of the readers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import trio
from fakes import InlineRunner, Mount, kin, running, simulate

from mlfs.job import JobSpec, parse_job
from mlfs.orders.order import build_order
from mlfs.orders.served import ServedOrder
from mlfs.orders.streams import JobStreams
from mlfs.plan.scheduler.states import footprint_bytes

LANES, HALF, THINK_S = 4, 48, 0.03  # HALF: samples of half of the staging window
FILES, SIZE, RANKS, BATCH, EPOCHS = 240, 5000, 2, 4, 3
ROOM = footprint_bytes(SIZE)


class Lanes(InlineRunner):
    """The source's lanes take as long for each sample as they are said to."""

    def __init__(self, sample_s: float) -> None:
        super().__init__(threads={"pfs": LANES})
        self._sample_s = sample_s

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        if pool != "pfs" or not isinstance(args[0], Generator):
            await trio.sleep(self._sample_s if pool == "demand" else 0)
            return call(*args)
        async with self._limits[pool]:
            try:
                while True:
                    next(args[0])
                    await trio.sleep(self._sample_s)
            except StopIteration as end:
                return end.value


class Run(NamedTuple):
    """What became of a job.

    Attributes:
        together: of the neighbours in the tree, among what no node keeps, that the source was asked for in the last
            epoch, the share that was read together: at the same time, or by lanes that are free one after the other.
        reads: of the source. stalls: opens that waited. seconds: of all epochs.
    """

    together: float
    reads: int
    stalls: int
    seconds: float


def run(root: Path, kept: int, sample_s: float, refills: bool) -> Run:
    """Train by an opportunistic order; each read has its bytes, and was predicted."""
    found: list[Run] = []

    async def body() -> None:
        runner = Lanes(sample_s)
        async with running(root, FILES, SIZE, staging=2 * HALF * ROOM, ram=kept * ROOM, runner=runner) as mount:
            spec, streams, away = served(mount, kept)
            if not refills:
                streams.refill = lambda epoch, ranks: None  # type: ignore[method-assign]
            await mount.engine.shared.register(spec, streams)
            await trio.sleep(1)
            began_s, before = trio.current_time(), 0
            for epoch in range(EPOCHS):
                before = len(mount.source.read)
                async with trio.open_nursery() as nursery:
                    for rank in range(RANKS):
                        nursery.start_soon(read, mount, streams.epoch_ids(epoch, rank).tolist(), rank)
            seconds = trio.current_time() - began_s
            await trio.sleep(1)
            score = mount.engine.jobs[spec.name].score
            assert score.agreed == score.observed == EPOCHS * FILES
            last, stalls = mount.source.read[before:], mount.engine.counters.all.stalls.count
            found.append(Run(read_together(last, away), len(mount.source.read), stalls, seconds))

    simulate(body)
    return found[0]


def read_together(reads: list[int], away: list[int]) -> float:
    """Of the neighbours that were both read, the share that was read together; nothing is read twice."""
    when = {entry: number for number, entry in enumerate(reads)}
    assert len(when) == len(reads)
    pairs = [(when[one], when[other]) for one, other in pairwise(away) if one in when and other in when]
    return sum(abs(one - other) < 2 * LANES for one, other in pairs) / len(pairs)


def served(mount: Mount, kept: int) -> tuple[JobSpec, JobStreams, list[int]]:
    """The job and its streams, and what no node keeps as it lies in the tree."""
    nodes = [{"node": 0, "ranks": "0-1", "keeps_bytes": [kept * ROOM], "buffer_bytes": HALF * ROOM}]
    fields = {"sampler": "torch-distributed", "seed": 3, "world_size": RANKS, "batch_size": BATCH, "epochs": EPOCHS}
    spec = parse_job(fields | {"ranks": [0, 1], "serve": "opportunistic", "level": 0.0, "nodes": nodes})
    entries = np.array(mount.files, dtype=np.int64)
    sizes = np.full(FILES, SIZE, dtype=np.int64)
    order = ServedOrder(build_order(spec, FILES), spec, sizes, entries)
    away = order.kept.node < 0
    return spec, JobStreams(spec, entries, order), entries[away].tolist()


async def read(mount: Mount, entries: list[int], rank: int) -> None:
    """A rank's epoch, batch after batch."""
    for at, entry in enumerate(entries):
        if at % BATCH == 0:
            await trio.sleep(THINK_S)
        assert await mount.read(entry, kin(100 + rank)[0]) == mount.content(entry)


@pytest.mark.parametrize("kept", [0, 60, 150])
def test_the_next_round_is_fetched_piece_by_piece_while_this_one_is_read(tmp_path: Path, kept: int) -> None:
    """With a source that keeps up nobody waits, in either order, and nothing more is read."""
    by_need, refilled = (run(directory(tmp_path, refills), kept, 0.01, refills) for refills in (False, True))
    assert by_need.together < 0.5
    assert refilled.together > 0.85
    assert by_need.stalls == refilled.stalls == 0
    assert refilled.seconds == by_need.seconds
    assert refilled.reads <= by_need.reads + LANES * BATCH  # what is fetched ahead at an epoch's end varies


def test_where_the_source_is_too_slow_it_still_reads_piece_by_piece_and_takes_no_longer(tmp_path: Path) -> None:
    by_need, refilled = (run(directory(tmp_path, refills), 0, 0.025, refills) for refills in (False, True))
    assert by_need.stalls > 40
    assert refilled.stalls <= by_need.stalls
    assert refilled.together > 0.8
    assert refilled.seconds <= 1.01 * by_need.seconds


def directory(parent: Path, refills: bool) -> Path:
    """One for each run."""
    path = parent / str(refills)
    path.mkdir()
    return path
