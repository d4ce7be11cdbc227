"""Matching of whatever is drawn: loaders of any kind, resumed and left early, samples left out, opens of others.

What must hold for all of them: each position is matched or given up before it is forgotten, and all counts add up. And
what must hold for loaders that read as they are predicted to: their opens agree.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import Loader, streams_of
from support.drawn import cases as few_or_many

from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.matching import StreamMatcher
from mlfs.follow.shape import RankStream, Shape

EPOCHS = 3
COINCIDENCES = 4


@dataclass(frozen=True)
class Case:
    """A job's loaders, drawn.

    Attributes:
        length: samples of a rank's epoch. begin: index at which the first epoch's reading begins.
        threads: 1, or how many threads of one process read a rank's stream, in place of workers.
        told: whether the matcher is told the loader's shape.
        outside: share of the samples that are no files of the mount.
    """

    seed: int
    ranks: int
    length: int
    begin: int
    batch: int
    workers: int
    prefetch: int
    persistent: bool
    in_order: bool
    threads: int
    stop_after: int
    told: bool
    one_rank: bool
    outside: float

    def stream(self, epoch: int, rank: int, seed: int | None = None) -> np.ndarray:
        stream = streams_of(self.seed if seed is None else seed, epoch, self.length * self.ranks, self.ranks)[rank]
        stream[np.random.default_rng((self.seed, epoch, rank)).random(len(stream)) < self.outside] = -1
        return stream

    def index(self, epoch: int) -> EpochIndex:
        streams = [self.stream(epoch, rank) for rank in range(self.ranks)]
        begin = 0 if epoch else self.begin
        return EpochIndex(epoch, epoch * self.length, streams, self.length * self.ranks, begin)

    def matcher(self, epochs: dict[int, EpochIndex]) -> StreamMatcher:
        shape = Shape(self.batch, self.workers) if self.told and self.workers > 1 else None
        stream = RankStream(self.length, self.batch, one_rank=self.one_rank)
        return StreamMatcher(stream, [self.begin] * self.ranks, epochs, shape)

    def opens(self, rank: int, rng: random.Random, seed: int | None = None) -> Iterator[tuple[int, int, int]]:
        """(entry, process, parent) of all that a rank reads."""
        parent = 1000 * (rank + 1)
        loader = Loader(
            self.batch, self.workers, parent, self.prefetch, self.persistent, self.in_order, self.stop_after
        )
        for epoch in range(EPOCHS):
            read = self.stream(epoch, rank, seed)[0 if epoch else self.begin :]
            if self.threads > 1:
                yield from ((entry, parent, 1) for entry in out_of_order(read, self.threads, rng) if entry >= 0)
            else:
                opens = loader.epoch(epoch, read, rng)
                yield from ((entry, process, parent) for process, entry in opens if entry >= 0)


def out_of_order(stream: np.ndarray, threads: int, rng: random.Random) -> Iterator[int]:
    """Each thread takes the next sample whenever it is free."""
    at_hand: list[int] = []
    for entry in stream.tolist():
        at_hand.append(entry)
        if len(at_hand) == threads:
            yield at_hand.pop(rng.randrange(threads))
    yield from at_hand


@st.composite
def cases(draw: st.DrawFn, orderly: bool = False) -> Case:
    """Loaders; `orderly`: only what is predicted open for open."""
    length = draw(st.integers(18 if orderly else 2, 400))
    return Case(
        seed=draw(st.integers(0, 1 << 20)),
        ranks=draw(st.integers(1, 3)),
        length=length,
        begin=draw(st.sampled_from([0, 0, length // 3, length // 3 if orderly else length - 1])),
        batch=draw(st.integers(1, 20)),
        workers=draw(st.integers(0, 5)),
        prefetch=draw(st.integers(1, 3)),
        persistent=draw(st.booleans()),
        in_order=orderly or draw(st.booleans()),
        threads=1 if orderly else draw(st.sampled_from([1, 1, 1, 3, 8])),
        stop_after=0 if orderly else draw(st.sampled_from([0, 0, 2])),
        told=draw(st.booleans()),
        one_rank=draw(st.booleans()),
        outside=0.0 if orderly else draw(st.sampled_from([0.0, 0.0, 0.1])),
    )


def interleaved(case: Case, rng: random.Random, wrong_ranks: int = 0) -> Iterator[tuple[int, int, int]]:
    """The opens of all ranks, each at its own pace; the first `wrong_ranks` read another order."""
    running = {r: case.opens(r, rng, case.seed + 1 if r < wrong_ranks else None) for r in range(case.ranks)}
    while running:
        rank = rng.choice(list(running))
        opened = next(running[rank], None)
        if opened is None:
            del running[rank]
        else:
            yield opened


def load_what_is_read(case: Case, matcher: StreamMatcher, epochs: dict[int, EpochIndex]) -> None:
    """Have loaded what a job has: from the epoch before the slowest rank's to the one after the fastest's."""
    frontiers = [progress.frontier for progress in matcher.ranks]
    low, high = min(frontiers) // case.length - 1, max(frontiers) // case.length + 1
    for epoch in range(max(0, low), min(EPOCHS, high + 1)):
        if epoch not in epochs:
            epochs[epoch] = case.index(epoch)
    for epoch in [epoch for epoch in epochs if 0 < epoch < low]:
        del epochs[epoch]


@settings(max_examples=few_or_many(50), derandomize=True)  # what is drawn decides how many coincidences there are
@given(cases(orderly=True))
def test_each_open_of_an_orderly_loader_agrees(case: Case) -> None:
    """But for coincidences: a worker that lives on may end an epoch and begin the next one with the same sample."""
    rng = random.Random(case.seed)
    matcher = case.matcher({epoch: case.index(epoch) for epoch in range(EPOCHS)})
    for opened in interleaved(case, rng):
        matcher.observe(*opened)
    matcher.relearn()
    expected = sum(1 for rank in range(case.ranks) for _ in case.opens(rank, random.Random(0)))
    assert expected - COINCIDENCES <= matcher.score.agreed <= matcher.score.observed <= expected
    assert min(progress.frontier for progress in matcher.ranks) >= EPOCHS * case.length - COINCIDENCES


@settings(max_examples=few_or_many(50))
@given(cases(), st.data())
def test_each_position_is_matched_or_given_up_and_all_counts_add_up(case: Case, data: st.DataObject) -> None:
    """Whatever is read, right or wrong, with the epochs loaded and let go of as the ranks move on."""
    rng = random.Random(case.seed)
    left_out = data.draw(st.sampled_from([0.0, 0.05, 0.9]), "share of samples left out")
    strange = data.draw(st.sampled_from([0.0, 0.05]), "share of opens by a process that reads at random")
    late = data.draw(st.sampled_from([0, 30, 300]), "opens before the matcher begins")
    wrong_ranks = data.draw(st.integers(0, case.ranks), "ranks that read another order")
    loaded_at_first = data.draw(st.integers(1, EPOCHS), "epochs loaded at first")
    epochs = {epoch: case.index(epoch) for epoch in range(loaded_at_first)}
    matcher = case.matcher(epochs)
    over = [set(range(case.begin)) for _ in range(case.ranks)]
    for number, opened in enumerate(interleaved(case, rng, wrong_ranks)):
        if number < late or rng.random() < left_out:
            continue
        stranger = (rng.randrange(case.length * case.ranks), 7, 3)
        for entry, process, parent in [opened, stranger] if rng.random() < strange else [opened]:
            match, given_up = matcher.observe(entry, process, parent)
            if match is not None:
                over[match.rank_index].add(match.position)
            for rank, (low, high) in given_up:
                over[rank].update(range(low, high))
        load_what_is_read(case, matcher, epochs)
    for rank, progress in enumerate(matcher.ranks):
        assert progress.floor <= progress.frontier
        assert over[rank] >= set(range(progress.floor)) | progress.done
    assert 0 <= matcher.score.agreed <= matcher.score.observed
    cells = matcher.score.cells.values()
    assert matcher.score.observed == sum(cell.observed for cell in cells)
    assert matcher.score.agreed == sum(cell.agreed for cell in cells)
    assert all(0 <= cell.agreed <= cell.observed for cell in cells)
