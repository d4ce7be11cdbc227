"""Loops as scripts have them, and the reads that a mount sees of them: ranks, workers, validations, runs that go on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from mlfs.audit.findings import audit
from mlfs.audit.reads import Kin, ReadLog
from mlfs.audit.report import Audit
from mlfs.follow.evidence import UNTIMED, Read

Epoch = list[list[int]]  # by rank, samples in the order in which its sampler gives them


class Loop(NamedTuple):
    """The shape of a script. Attributes: workers: of each rank, 0: the rank reads by itself."""

    samples: int
    ranks: int
    workers: int
    persistent: bool
    batch: int
    epochs: int


class Script:
    """Plays runs of scripts in one mount. Attributes: ends: how many reads there were when each epoch was over."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._processes = count(100)
        self._kin: dict[int, Kin] = {}
        self._reads: list[tuple[int, int]] = []
        self.ends: list[int] = []

    def audit(self, at: int | None = None) -> Audit:
        """What the auditor says of so many reads; None: of all."""
        log = ReadLog(lambda process, _: self._kin[process])
        log.add([Read(sample, process, 1, UNTIMED) for sample, process in self._reads[:at]])
        return audit(log.reads())

    def run(
        self, loop: Loop, epochs: Sequence[Epoch], validation: Sequence[int] = (), in_process: bool = False
    ) -> None:
        """A run: its epochs, and a validation by rank 0 after each, by workers or `in_process`."""
        run = next(self._processes)
        ranks = range(len(epochs[0]))
        main = [self._process(run, rank) for rank in ranks]
        workers = [[self._process(run, rank) for _ in range(loop.workers)] for rank in ranks]
        for epoch in epochs:
            streams = [self._of_rank(loop, epoch[rank], workers[rank] or [main[rank]]) for rank in ranks]
            self._reads += self._side_by_side(loop, streams)
            if not loop.persistent:
                workers = [[self._process(run, rank) for _ in range(loop.workers)] for rank in ranks]
            readers = [main[0]] if in_process or not loop.workers else [self._process(run, 0) for _ in range(2)]
            self.ends.append(len(self._reads))
            batches = (at // loop.batch for at in range(len(validation)))
            self._reads += [(s, readers[b % len(readers)]) for s, b in zip(validation, batches, strict=True)]

    def run_apart(self, loop: Loop, epochs: Sequence[Epoch]) -> None:
        """A run whose ranks wait for nobody: each goes through its epochs at a pace of its own."""
        run, timed = next(self._processes), []
        for rank in range(len(epochs[0])):
            main, pace, now = self._process(run, rank), self._rng.uniform(0.6, 1), 0.0
            workers = [self._process(run, rank) for _ in range(loop.workers)]
            for epoch in epochs:
                reads = self._of_rank(loop, epoch[rank], workers or [main])
                timed += [(now + at / pace, read) for at, read in enumerate(reads)]
                now += len(reads) / pace
                if not loop.persistent:
                    workers = [self._process(run, rank) for _ in range(loop.workers)]
        self._reads += [read for _, read in sorted(timed)]
        self.ends.append(len(self._reads))

    def run_unsharded(self, loop: Loop, epochs: Sequence[Epoch]) -> None:
        """A run whose workers each go through all that the rank reads."""
        run = next(self._processes)
        for epoch in epochs:
            for rank, samples in enumerate(epoch):
                workers = [self._process(run, rank) for _ in range(loop.workers)]
                for at in range(0, len(samples), loop.batch):
                    self._reads += [(s, worker) for worker in workers for s in samples[at : at + loop.batch]]
            self.ends.append(len(self._reads))

    def _process(self, run: int, rank: int) -> int:
        process = next(self._processes)
        self._kin[process] = Kin(run, rank)
        return process

    def _of_rank(self, loop: Loop, samples: list[int], readers: list[int]) -> list[tuple[int, int]]:
        """Batches go to workers in turn. Each worker reads one after the other, at a pace of its own."""
        timed = []
        for worker, reader in enumerate(readers):
            now = self._rng.random()
            for turn, at in enumerate(range(worker * loop.batch, len(samples), len(readers) * loop.batch)):
                batch = samples[at : at + loop.batch]
                now, takes = max(now, turn), self._rng.uniform(0.5, 1.3)
                timed += [(now + takes * k / loop.batch, sample, reader) for k, sample in enumerate(batch)]
                now += takes
        return [(sample, reader) for _, sample, reader in sorted(timed)]

    def _side_by_side(self, loop: Loop, streams: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
        """Ranks take steps together; within a step any of them is first."""
        merged: list[tuple[int, int]] = []
        size = loop.batch * 4
        for at in range(0, max(map(len, streams)), size):
            parts = [stream[at : at + size] for stream in streams]
            self._rng.shuffle(parts)
            merged += [read for part in parts for read in part]
        return merged


def drawn(rng: random.Random) -> Loop:
    """A shape of a script."""
    workers, persistent = rng.choice([(0, False), (2, False), (2, True), (4, False), (4, True), (8, False)])
    return Loop(
        rng.choice([300, 600, 1500]), rng.choice([1, 2, 4]), workers, persistent, rng.choice([4, 8, 16]),
        rng.choice([4, 6]),
    )  # fmt: skip


def dealt(loop: Loop, order: Callable[[int], list[int]]) -> list[Epoch]:
    """Epochs of which each rank gets every n-th sample."""
    epochs = []
    for epoch in range(loop.epochs):
        samples = order(epoch)
        even = samples[: len(samples) // loop.ranks * loop.ranks]
        epochs.append([even[rank :: loop.ranks] for rank in range(loop.ranks)])
    return epochs


def files_of(epochs: list[Epoch], files: Callable[[int], list[int]]) -> list[Epoch]:
    """The same epochs in files, where each sample consists of several."""
    return [[[file for sample in rank for file in files(sample)] for rank in epoch] for epoch in epochs]


def shuffled(rng: random.Random, samples: int) -> list[int]:
    """A permutation."""
    order = list(range(samples))
    rng.shuffle(order)
    return order


def buffered(rng: random.Random, samples: int, buffer: int) -> list[int]:
    """The listing through a buffer that shuffles."""
    order, held = [], list[int]()
    for sample in range(samples):
        held.append(sample)
        if len(held) > buffer:
            order.append(held.pop(rng.randrange(len(held))))
    rng.shuffle(held)
    return order + held


def kinds(found: Audit) -> Counter[str]:
    """The kinds of findings."""
    return Counter(finding.kind.value for finding in found.findings)
