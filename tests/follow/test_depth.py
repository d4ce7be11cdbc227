"""The depth of a loader's prefetching: exact where the loop is slower than loading, never wrong where it is not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import TimedLoader

from mlfs.follow import depth
from mlfs.follow.depth import Depth, DepthWatch, depth_of
from mlfs.follow.shape import Shape

WORKERS = st.integers(1, 8)
PREFETCH = st.integers(1, 6)
BATCHES = st.sampled_from([1, 2, 4, 16])


def depth_from(loader: TimedLoader, seed: int, left_out: float = 0.0) -> Depth:
    """What an epoch of the loader tells; `left_out`: share of samples that are never opened."""
    rng = random.Random(seed)
    samples = loader.batch * loader.workers * (loader.prefetch + 8) + rng.randint(0, loader.batch)
    opens = [opened for opened in loader.opens(samples, rng) if rng.random() >= left_out or not opened[2]]
    seconds, process, x = (np.array(column) for column in zip(*opens, strict=True))
    return depth_of(process, x, seconds, Shape(loader.batch, loader.workers), samples)


@settings(derandomize=True)  # jitter is chance: a bound may be missed once in a hundred thousand epochs
@given(WORKERS, PREFETCH, BATCHES, st.sampled_from([0.0, 0.005]), st.floats(0, 3), st.integers(0, 1 << 30))
def test_it_is_exact_where_the_loop_is_slower(
    workers: int, prefetch: int, batch: int, start_s: float, first_steps: float, seed: int
) -> None:
    step_s = 0.1 + 3 * batch * 0.001 * (prefetch + 1)
    first_s = first_steps * step_s
    loader = TimedLoader(batch, workers, prefetch, 0.001, step_s, first_step_s=first_s, start_s=start_s)
    assert depth_from(loader, seed).exact == prefetch


@settings(derandomize=True)
@given(
    WORKERS, PREFETCH, BATCHES, st.floats(0, 4), st.sampled_from([0.0, 0.005, 0.3]), st.sampled_from([0, 1]),
    st.sampled_from([0.0, 0.02]), st.sampled_from([0.05, 0.3]), st.sampled_from([0.0, 0.02]), st.integers(0, 1 << 30),
)  # fmt: skip
def test_it_is_never_wrong(
    workers: int, prefetch: int, batch: int, steps: float, start_s: float, asked_ahead: int, collate_s: float,
    jitter: float, left_out: float, seed: int,
) -> None:  # fmt: skip
    """Whatever the loop's pace: between the bounds. With one worker a batch that the loop takes ahead counts as one."""
    step_s = steps * batch * 0.003 / workers
    loader = TimedLoader(batch, workers, prefetch, 0.003, step_s, collate_s, 0.0, start_s, asked_ahead, jitter)
    depth = depth_from(loader, seed, left_out)
    more = asked_ahead if workers == 1 else 0
    assert depth.at_least <= prefetch + more
    assert depth.at_most is None or depth.at_most >= prefetch


@pytest.mark.parametrize("workers", [1, 3])
def test_a_loop_that_is_faster_than_loading_leaves_it_open(workers: int) -> None:
    depth = depth_from(TimedLoader(16, workers, 4, step_s=0.0001), 1)
    assert depth.exact is None
    assert depth.at_most is None


def test_without_the_epochs_beginning_it_is_unknown() -> None:
    loader = TimedLoader(4, 2, 2, step_s=0.2)
    opens = loader.opens(100, random.Random(1))[9:]
    seconds, process, x = (np.array(column) for column in zip(*opens, strict=True))
    assert depth_of(process, x, seconds, Shape(4, 2), 100) == Depth()


def test_opens_by_another_process_are_left_out() -> None:
    loader, rng = TimedLoader(8, 3, 3, step_s=0.2), random.Random(2)
    opens = loader.opens(400, rng)
    opens += [(rng.uniform(0, 2), 77, rng.randrange(300, 400)) for _ in range(40)]
    seconds, process, x = (np.array(column) for column in zip(*sorted(opens), strict=True))
    assert depth_of(process, x, seconds, Shape(8, 3), 400).exact == 3


def test_what_several_epochs_tell_is_taken_together() -> None:
    watch, shape = DepthWatch(0), Shape(4, 2)
    for epoch, step_s in enumerate((0.0, 0.2)):
        for at_s, process, x in TimedLoader(4, 2, 3, step_s=step_s).opens(120, random.Random(epoch)):
            watch.opened(1, [x], process, [1000.0 * epoch + at_s])
            watch.opened(0, [x], process + 50, [1000.0 * epoch + at_s])  # another rank's: one is enough
        assert watch.depth(shape, 120).exact == (3 if epoch else None)
        watch.next_epoch(epoch + 1, shape, 120)
    assert watch.epoch == -1  # it is known: nothing more is kept
    assert watch.depth(shape, 120).exact == 3


def test_what_the_same_opens_tell_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times = list[int]()

    def counted(*args: Any) -> Depth:
        times.append(1)
        return depth_of(*args)

    monkeypatch.setattr(depth, "depth_of", counted)
    watch, shape = DepthWatch(0), Shape(4, 2)
    opens = TimedLoader(4, 2, 3, step_s=0.2).opens(120, random.Random(1))
    for at_s, process, x in opens[:-1]:
        watch.opened(0, [x], process, [at_s])
    assert watch.depth(shape, 120) == watch.depth(shape, 120)
    assert len(times) == 1
    at_s, process, x = opens[-1]
    watch.opened(0, [x], process, [at_s])
    assert watch.depth(shape, 120).exact == 3
    watch.depth(Shape(8, 2), 120)
    assert len(times) == 3


def test_an_epoch_that_was_not_seen_whole_tells_nothing() -> None:
    watch, shape = DepthWatch(0), Shape(4, 2)
    watch.missed()
    for at_s, process, x in TimedLoader(4, 2, 3, step_s=0.2).opens(120, random.Random(0)):
        watch.opened(0, [x], process, [at_s])
    assert watch.depth(shape, 120) == Depth()


def test_bounds_that_contradict_each_other_change_nothing() -> None:
    assert Depth(2, 4).narrowed(Depth(3)) == Depth(3, 4)
    assert Depth(2, 4).narrowed(Depth(5)) == Depth(2, 4)
    assert Depth(1).narrowed(Depth(2, 2)).exact == 2
