"""Simulated loaders: who opens which position when, within the bounds that torch's DataLoader keeps, and beyond.

In: sizes, a random generator. Out: opens as (process, entry). torch/utils/data/dataloader.py: batch b goes to worker b
mod W and is handed out after batch b - P*W came back; batches come back in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.shape import RankStream


def streams_of(seed: int, epoch: int, n: int, ranks: int) -> list[np.ndarray]:
    """A shuffled epoch dealt to ranks like DistributedSampler, padded cyclically."""
    order = np.random.default_rng((seed, epoch)).permutation(n)
    per_rank = -(-n // ranks)
    order = np.resize(order, per_rank * ranks)
    return [order[rank::ranks].astype(np.int64) for rank in range(ranks)]


def matcher_for(seed: int, n: int, ranks: int, batch: int, epochs: int) -> StreamMatcher:
    """A matcher that has all epochs loaded."""
    length = len(streams_of(seed, 0, n, ranks)[0])
    loaded = {epoch: EpochIndex(epoch, epoch * length, streams_of(seed, epoch, n, ranks), n) for epoch in range(epochs)}
    return StreamMatcher(RankStream(length, batch), [0] * ranks, loaded)


@dataclass
class Loader:
    """A DataLoader of one rank. Processes are numbered from `pid0`, anew each epoch unless they are persistent.

    Attributes:
        workers: 0: the main process reads by itself. prefetch: batches handed out ahead, per worker.
        in_order: False: a batch goes to whoever has none, and counts as back when it is read.
        stop_after: batches of an epoch after which the loop is left, 0 for none.
    """

    batch: int
    workers: int
    pid0: int
    prefetch: int = 2
    persistent: bool = False
    in_order: bool = True
    stop_after: int = 0

    def epoch(self, number: int, stream: np.ndarray, rng: random.Random) -> Iterator[tuple[int, int]]:
        """(process, entry) of one epoch."""
        batches = [stream[i : i + self.batch].tolist() for i in range(0, len(stream), self.batch)]
        if self.stop_after:
            batches = batches[: self.stop_after]
        if not self.workers:
            yield from ((self.pid0, entry) for batch in batches for entry in batch)
            return
        pids = [self.pid0 + 1 + w + (0 if self.persistent else number * self.workers) for w in range(self.workers)]
        queues: list[list[list[int]]] = [[] for _ in pids]
        left: list[int] = []
        back = issued = 0
        read: set[int] = set()
        numbers: list[list[int]] = [[] for _ in pids]
        while back < len(batches):
            while issued < len(batches) and issued < back + self.prefetch * self.workers:
                worker = (
                    issued % self.workers if self.in_order else min(range(self.workers), key=lambda w: len(queues[w]))
                )
                queues[worker].append(list(batches[issued]))
                numbers[worker].append(issued)
                left.append(len(batches[issued]))
                issued += 1
            worker = rng.choice([w for w in range(self.workers) if queues[w]])
            yield pids[worker], queues[worker][0].pop(0)
            if not queues[worker][0]:
                queues[worker].pop(0)
                read.add(numbers[worker].pop(0))
            if self.in_order:
                while back in read:
                    back += 1
            else:
                back = len(read)


def run_job(
    matcher: StreamMatcher, loaders: list[Loader], streams: list[list[np.ndarray]], rng: random.Random,
    parents: bool = True,
) -> list[tuple[int, int]]:  # fmt: skip
    """Feed all epochs of all ranks, each at its own pace; streams[epoch][rank]. Returns (entry, position)."""

    def rank_opens(rank: int) -> Iterator[tuple[int, int]]:
        for number, of_rank in enumerate(streams):
            yield from loaders[rank].epoch(number, of_rank[rank], rng)

    running = {rank: rank_opens(rank) for rank in range(len(loaders))}
    seen = []
    while running:
        rank = rng.choice(list(running))
        opened = next(running[rank], None)
        if opened is None:
            del running[rank]
            continue
        process, entry = opened
        parent = loaders[rank].pid0 if process != loaders[rank].pid0 else 1
        match, _ = matcher.observe(entry, process, parent if parents else 0)
        if match is not None:
            seen.append((entry, match.position))
    matcher.relearn()
    return seen


@dataclass
class TimedLoader:
    """A DataLoader with the loop that takes its batches, in seconds.

    Attributes:
        open_s: from one sample of a worker to its next. collate_s: from a batch's last sample until it is ready.
        step_s: the loop's time for a batch. first_step_s: more of it for the first one.
        start_s: from the start of one worker to that of the next.
        asked_ahead: batches the loop takes before their turn.
        jitter: each time is drawn from 1 - jitter to 1 + jitter of itself. collate_jitter: the same for collate_s.
        exponential: the times of samples are drawn from an exponential distribution of that mean.
        times: how many times as long the samples of a batch take, by its number.
        pause_s: how long the loop does something else behind a batch, by its number.
    """

    batch: int
    workers: int
    prefetch: int
    open_s: float = 0.001
    step_s: float = 0.0
    collate_s: float = 0.0
    first_step_s: float = 0.0
    start_s: float = 0.0
    asked_ahead: int = 0
    jitter: float = 0.1
    collate_jitter: float = 0.1
    exponential: bool = False
    times: Callable[[int], float] = lambda batch: 1.0
    pause_s: Callable[[int], float] = lambda batch: 0.0

    def opens(self, samples: int, rng: random.Random) -> list[tuple[float, int, int]]:
        """(seconds, process, place in the stream) of an epoch, in the order of time."""
        return opens_in_step([self], samples, rng)[0]

    def drawn(self, seconds: float, rng: random.Random, jitter: float | None = None) -> float:
        """About so long."""
        scatter = self.jitter if jitter is None else jitter
        return seconds * rng.uniform(1 - scatter, 1 + scatter)


def opens_in_step(
    loaders: list[TimedLoader], samples: int, rng: random.Random
) -> list[list[tuple[float, int, int]]]:  # fmt: skip
    """By rank, the opens of an epoch of a job whose ranks wait for one another at the end of each step."""
    batches = -(-samples // loaders[0].batch)
    given_s: list[list[float]] = [[] for _ in loaders]  # by rank, when the loop was given batch b
    ready_s: list[list[float]] = [[] for _ in loaders]
    free_s = [[of.start_s * worker for worker in range(of.workers)] for of in loaders]
    opened: list[list[tuple[float, int, int]]] = [[] for _ in loaders]
    loop_s = 0.0

    def step() -> None:
        """The loop takes the next batch of each rank when it is ready, and goes on when all have computed."""
        nonlocal loop_s
        ends_s = []
        for rank, of in enumerate(loaders):
            number = len(given_s[rank])
            given_s[rank].append(max(ready_s[rank][number], loop_s))
            computes_s = of.drawn(of.step_s, rng) if number >= of.asked_ahead else 0.0
            computes_s += (of.first_step_s if number == of.asked_ahead else 0.0) + of.pause_s(number)
            ends_s.append(given_s[rank][-1] + computes_s)
        loop_s = max(ends_s)

    for batch in range(batches):
        for rank, of in enumerate(loaders):
            before = batch - of.prefetch * of.workers
            while len(given_s[rank]) <= before:
                step()
            worker = batch % of.workers
            at_s = max(free_s[rank][worker], given_s[rank][before] if before >= 0 else 0.0)
            for place in range(batch * of.batch, min(samples, (batch + 1) * of.batch)):
                opened[rank].append((at_s, 1000 + worker, place))
                a_file_s = rng.expovariate(1 / of.open_s) if of.exponential else of.drawn(of.open_s, rng)
                at_s += a_file_s * of.times(batch)
            free_s[rank][worker] = at_s + of.drawn(of.collate_s, rng, of.collate_jitter)
            ready_s[rank].append(free_s[rank][worker])
    return [sorted(of_rank) for of_rank in opened]


def in_turns(running: list[Iterator[Any]], rng: random.Random) -> Iterator[Any]:
    """The opens of all ranks, mixed, until each has come to its end."""
    while running:
        opens = rng.choice(running)
        opened = next(opens, None)
        if opened is None:
            running.remove(opens)
        else:
            yield opened
