"""Advises how many loader workers each rank of a node should have, from what its loaders were seen to do.

Pure. In: each rank's work for a batch, as a mount has measured it; processors; the time of a training step where it is
known. Out: workers by rank, and how long a step then takes. Called by `mlfs.lab.commands.advise_workers` and, for the
status, by `mountd.headline`. Source: Lobster (Liu et al., ICPP'22), Sections 4.1 to 4.4: the functions are
those that the simulator runs (`mlfs.plan.threads`).

A loader's worker does what the paper's two kinds of threads do: it reads and preprocesses. So the work of a batch
stands for the bytes that Algorithm 1 has threads load, and a worker's waiting for reads for the part that more workers
do not shorten. Algorithm 1 wants a training step's time. While loaders are never idle nobody can tell it from reads;
then the workers are those that reach the peak of preprocessing (Section 4.1), dealt to ranks by their work (eq. 3).

Workers may wait for something else than a processor while they work (a database, another machine). So what was seen
comes before what processors would let one expect, and fewer workers than now are taken to do less, unless as many were
seen to do as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlfs.plan.model import Curve, Floats
from mlfs.plan.rank_load import RankLoad, StepLimit
from mlfs.plan.threads import TOLERANCE, PiecewiseLinear, Threads, assign, in_proportion, preprocessing_threads

# A model of two lines needs so many measurements (mlfs.plan.threads).
FEWEST_COUNTS = 4
# Times of the same work differ by less than that many times.
ALIKE = 1.5
# A smaller gain is not worth another start of a training script.
LITTLE = 0.05
# A number of workers is next to the fastest one if loading takes longer by at most this share with it.
NEXT_TO_FASTEST = 0.02


@dataclass(frozen=True, slots=True)
class Loader:
    """A rank's loader as it was seen.

    Attributes:
        rank: its number. workers: processes that load for it; 0: the training process does it by itself.
        work_s: what one process works for a batch. waiting_s: how long it waits for a batch's reads.
        step_s: from a batch of the rank to its next.
        train_s: how long a training step takes, None where that cannot be told.
        waits: whether it waits for reads more than it works: more workers are no cure.
    """

    rank: int
    workers: int
    work_s: float
    waiting_s: float
    step_s: float
    train_s: float | None = None
    waits: bool = False

    @classmethod
    def of(cls, load: RankLoad, train_s: float | None = None) -> Loader:
        """As a mount has measured it. Args: train_s: how long a training step takes, where somebody knows it."""
        workers, told_s = load.workers, load.step_s if load.limit is StepLimit.TRAINING else None
        if load.reader_trains:
            workers, told_s = 0, load.handing_s
        return cls(
            load.rank,
            workers,
            load.work_s,
            load.waiting_s,
            load.step_s,
            told_s if train_s is None else train_s,
            load.limit is StepLimit.READS,
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """The result: how many workers, and what that gains.

    Attributes:
        workers: by rank, in the order of the loaders.
        step_s: how long a step takes with them; where the training step's time is not known it takes that at least.
            Ranks whose loaders wait for reads are left out of account.
        now_s: how long it takes now. train_s: what was reckoned with, None where it is not known.
        keeps_up: whether loading takes no longer with them than training, so that training is the limit; False where
            the training step's time is not known.
    """

    workers: tuple[int, ...]
    step_s: float
    now_s: float
    train_s: float | None
    keeps_up: bool = False

    @property
    def gain(self) -> float:
        """How many times as fast steps become."""
        return self.now_s / self.step_s if self.step_s > 0 else 1.0

    @property
    def is_worth_it(self) -> bool:
        """Whether the gain is worth another start of the script."""
        return self.gain > 1 + LITTLE


class LoaderSpeeds:
    """How many seconds some number of workers take together for the work that one worker does in a second now.

    Between the numbers of workers that were seen, the times that were seen are joined by lines; where there are enough
    of them, by two lines fitted around the fastest number (Section 4.1). With fewer workers than were ever seen, the
    time grows in inverse proportion to their number. With more it falls in the same way up to one worker for each
    processor, unless a smaller number than the largest was seen to be the fastest.

    Args:
        pace: by number of workers on the node, the seconds that each of them takes for a byte; `now` among them.
    """

    def __init__(self, pace: Mapping[int, float], now: int, processors: int) -> None:
        together_s = {count: seconds / count / pace[now] for count, seconds in sorted(pace.items())}
        peak = min(together_s, key=lambda count: (together_s[count], count))
        self._grows = peak == max(pace)
        # The number beyond which no more workers need be thought of.
        self.most = max(processors, peak)
        self._least_s, self._lines = together_s[peak], None
        if len(pace) >= FEWEST_COUNTS:
            # Two lines fit the neighbourhood of the peak only.
            near = sorted(pace, key=lambda count: abs(count - peak))[: max(FEWEST_COUNTS, len(pace) // 2)]
            together_s = {count: together_s[count] for count in sorted(near)}
            self._lines = PiecewiseLinear.fit(list(together_s), list(together_s.values()))
        self._counts, self._speeds = list(together_s), [1 / seconds for seconds in together_s.values()]

    def at(self, threads: float) -> float:
        """The seconds at this number of workers."""
        first, last = self._counts[0], self._counts[-1]
        if threads <= first:
            return first / threads / self._speeds[0]
        if threads > last and self._grows:
            return last / min(threads, self.most) / self._speeds[-1]
        if self._lines is not None:
            return max(self._least_s, self._lines.at(min(threads, last)))
        return 1 / float(np.interp(threads, self._counts, self._speeds))


def surely_loads(workers: int, registered: int | None) -> bool:
    """Whether what was seen of a rank's reader is surely the work of a loader.

    One process that reads by itself, of a job of which nobody knows the number of workers, may be a worker, or the
    training process. Then nobody can tell preprocessing from training, and nothing is advised.

    Args:
        workers: processes that were seen to read for the rank. registered: `num_workers` of the job, None: not known.
    """
    return registered is not None or workers > 1


def of_this_script(pace: Mapping[int, float], now: int) -> dict[int, float]:
    """The paces that can be of the same work: a script of the same name may preprocess something else.

    More workers make none of them faster, and at worst they all together are no faster than before.
    """
    if not pace.get(now):
        return {now: 1.0}
    kept = {}
    for count, seconds in pace.items():
        (fewer, fewer_s), (more, more_s) = sorted([(count, seconds), (now, pace[now])])
        if fewer_s / ALIKE <= more_s <= fewer_s * ALIKE * more / fewer:
            kept[count] = seconds
    return kept


def advise(loaders: Sequence[Loader], processors: int, pace: Mapping[int, float]) -> Advice:
    """Advise a number of workers for each rank.

    Args:
        loaders: of all ranks of the node. processors: what the node has for them.
        pace: by number of workers on the node, the seconds that each of them takes for a byte.
    """
    as_they_are = tuple(loader.workers for loader in loaders)
    free = [loader for loader in loaders if not loader.waits]
    now_s = max(loader.step_s for loader in free or loaders)
    if not free:
        return Advice(as_they_are, now_s, now_s, None)
    now = sum(max(1, loader.workers) for loader in loaders)
    speeds = LoaderSpeeds(of_this_script(pace, now), now, processors)
    most = max(speeds.most, len(free))
    work = np.array([loader.work_s for loader in free])
    waiting_s, workers = np.array([(loader.waiting_s, max(1, loader.workers)) for loader in free]).T
    known = [loader.train_s for loader in free if loader.train_s is not None]
    # Ranks wait for one another: the one that never waits takes the least time.
    train_s = min(known) if len(known) == len(free) else None
    node = _Node(work, waiting_s, workers, speeds)
    if train_s is not None:
        rate = Curve(tuple((float(count), 1 / speeds.at(count)) for count in range(1, most + 1)))
        counts = assign(work[:, None], [rate], waiting_s / workers, train_s, most, TOLERANCE * train_s)
        counts = node.kept_up(counts, most, (1 + TOLERANCE) * train_s)
    else:
        counts = in_proportion(work, max(len(free), preprocessing_threads(speeds.at, most)))
    loading_s, loading_now_s = float(node.loading(counts).max()), float(((work + waiting_s) / workers).max())
    # Ranks wait for one another by turns, so a step takes longer than the loading of any one rank. While loading is the
    # limit, a step becomes shorter in the same proportion as loading.
    step_s = max(train_s, loading_s) if train_s is not None else loading_s * now_s / (loading_now_s or now_s)
    keeps_up = train_s is not None and loading_s <= (1 + TOLERANCE) * train_s
    advice = Advice(_with_others(loaders, counts.tolist()), step_s, now_s, train_s, keeps_up)
    if not advice.is_worth_it and (not keeps_up or step_s > (1 + TOLERANCE) * now_s):
        # The numbers of now stay: nobody has seen that others do as well.
        keeps_up = train_s is not None and loading_now_s <= (1 + TOLERANCE) * train_s
        return Advice(as_they_are, now_s, now_s, train_s, keeps_up)
    return advice


@dataclass(frozen=True, slots=True)
class _Node:
    """The ranks that workers are dealt to, in arrays of one entry a rank.

    Attributes:
        work: what one worker works for a batch, with as many workers on the node as now. waiting_s: how long it waits
            for a batch's reads. workers: how many there are now.
        speeds: how the work of a batch changes with the number of workers on the node.
    """

    work: Floats
    waiting_s: Floats
    workers: Floats
    speeds: LoaderSpeeds

    def loading(self, counts: Threads) -> Floats:
        """How long each rank loads a batch with so many workers.

        The workers of all ranks share the processors. Waiting becomes longer with fewer workers than now, and no
        shorter with more.
        """
        total = int(counts.sum())
        loading_s: Floats = self.work * self.speeds.at(total) * total / counts
        return loading_s + self.waiting_s / np.minimum(self.workers, counts)

    def kept_up(self, counts: Threads, most: int, allowed_s: float) -> Threads:
        """`counts` with one worker more for the slowest rank, again and again, until no rank loads for longer than
        `allowed_s` or the node has `most` workers.

        Algorithm 1 takes the number whose loading time is nearest to that of training, which may be a number that is
        too small. The fewest workers that are next to the fastest are taken where no number keeps up.
        """
        counts = counts.copy()
        tried = [(float(self.loading(counts).max()), counts.copy())]
        while tried[-1][0] > allowed_s and counts.sum() < most:
            counts[self.loading(counts).argmax()] += 1
            tried.append((float(self.loading(counts).max()), counts.copy()))
        enough_s = max(allowed_s, (1 + NEXT_TO_FASTEST) * min(seconds for seconds, _ in tried))
        return next(of for seconds, of in tried if seconds <= enough_s)


def _with_others(loaders: Iterable[Loader], counts: Iterable[int]) -> tuple[int, ...]:
    """By loader: what is advised for those that do not wait for reads; the others keep what they have."""
    advised = iter(counts)
    return tuple(loader.workers if loader.waits else next(advised) for loader in loaders)
