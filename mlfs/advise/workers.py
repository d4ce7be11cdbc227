"""How many loader workers each rank of a node should have, from what its loaders were seen to do.

Pure. In: each rank's work for a batch, as a mount has measured it; processors; the time of a training step where it is
known. Out: workers by rank, and how long a step then takes. Called by `mlfs.cli.advise_workers`. Source: Lobster (Liu
et al., ICPP'22), Sections 4.1 to 4.4: the functions are those that the simulator runs (`mlfs.plan.threads`).

A loader's worker does what the paper's two kinds of threads do: it reads and preprocesses. So the work of a batch
stands for the bytes that Algorithm 1 has threads load, and a worker's waiting for reads for the part that more workers
do not shorten. Algorithm 1 wants a training step's time. While loaders are never idle nobody can tell it from reads;
then the workers are those that reach the peak of preprocessing (Section 4.1), dealt to ranks by their work (eq. 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlfs.plan.gpu_queues import TOLERANCE
from mlfs.plan.model import Curve
from mlfs.plan.threads import PiecewiseLinear, SecondsByThreads, assign, in_proportion, preprocessing_threads

# A model of two lines needs so many measurements (mlfs.plan.threads).
FEWEST_COUNTS = 4


@dataclass(frozen=True, slots=True)
class Loader:
    """A rank's loader as it was seen.

    Attributes:
        rank: its number. workers: processes that load for it; 0: the training process does it by itself.
        work_s: what one process works for a batch. waiting_s: how long it waits for a batch's reads.
        step_s: from a batch of the rank to its next.
        train_s: how long a training step takes, None where that cannot be told.
    """

    rank: int
    workers: int
    work_s: float
    waiting_s: float
    step_s: float
    train_s: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """What was worked out.

    Attributes:
        workers: by rank, in the order of the loaders.
        step_s: how long a step takes with them; where the training step's time is not known it takes that at least.
        now_s: how long it takes now. train_s: what was reckoned with, None where it is not known.
    """

    workers: tuple[int, ...]
    step_s: float
    now_s: float
    train_s: float | None

    @property
    def gain(self) -> float:
        """How many times as fast steps become."""
        return self.now_s / self.step_s if self.step_s > 0 else 1.0


class Linear:
    """Workers work side by side, up to one for each processor; beyond, more do not help.

    Args:
        now: how many worked when one of them was seen to take a second.
    """

    def __init__(self, processors: int, now: int) -> None:
        self._processors = processors
        self._one_s = min(1.0, processors / max(1, now))  # what it would have taken with a processor of its own

    def at(self, threads: float) -> float:
        """Seconds for what one worker takes a second for, when `now` of them work."""
        return self._one_s / min(threads, self._processors)


class Measured:
    """As several numbers of workers were seen to work.

    Two lines fit the neighbourhood of the peak only (docs/model.md): below it, workers count in proportion; beyond the
    largest number that was seen, more do not help.

    Args:
        pace: by number of workers on the node, the seconds that each of them takes for a byte.
        now: the number to which the seconds of `at` are relative.
    """

    def __init__(self, pace: Mapping[int, float], now: int) -> None:
        together_s = {count: seconds / count for count, seconds in pace.items()}
        peak = min(together_s, key=lambda count: (together_s[count], count))
        near = sorted(sorted(pace, key=lambda count: abs(count - peak))[: max(FEWEST_COUNTS, len(pace) // 2)])
        self._model = PiecewiseLinear.fit(near, [together_s[count] for count in near])
        self._first, self._first_s, self._most = near[0], together_s[near[0]], near[-1]
        self._least_s, self._one_s = together_s[peak], pace[now]

    def at(self, threads: float) -> float:
        """Seconds for what one worker takes a second for, when `now` of them work."""
        if threads < self._first:
            return self._first_s * self._first / threads / self._one_s
        return max(self._least_s, self._model.at(min(threads, self._most))) / self._one_s


def scaling(pace: Mapping[int, float], now: int, processors: int) -> SecondsByThreads:
    """How preprocessing goes with the number of workers: as measured, or linear where too few numbers were seen."""
    return Measured(pace, now) if len(pace) >= FEWEST_COUNTS and now in pace else Linear(processors, now)


def advise(loaders: Sequence[Loader], processors: int, pace: Mapping[int, float]) -> Advice:
    """See the module.

    Args:
        loaders: of all ranks of the node. processors: what the node has for them.
        pace: by number of workers on the node, the seconds that each of them takes for a byte.
    """
    most = max(processors, len(loaders))
    model = scaling(pace, sum(loader.workers for loader in loaders), processors)
    work = np.array([loader.work_s for loader in loaders])
    waiting = np.array([loader.waiting_s / max(1, loader.workers) for loader in loaders])
    known = [loader.train_s for loader in loaders if loader.train_s is not None]
    train_s = max(known) if len(known) == len(loaders) else None
    if train_s is not None:
        rate = Curve(tuple((float(count), 1 / model.at(count)) for count in range(1, most + 1)))
        workers = assign(work[:, None], [rate], waiting, train_s, most, TOLERANCE * train_s)
    else:
        workers = in_proportion(work, max(len(loaders), preprocessing_threads(model, most)))
    counts = tuple(workers.tolist())
    loading = [seconds * model.at(count) for seconds, count in zip(work.tolist(), counts, strict=True)]
    step_s = max(train_s or 0.0, *(seconds + wait for seconds, wait in zip(loading, waiting.tolist(), strict=True)))
    return Advice(counts, step_s, max(loader.step_s for loader in loaders), train_s)
