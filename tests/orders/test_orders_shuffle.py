"""Shuffles done block by block, and compiled, against the loop over the elements that they stand for."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.orders import shuffle
from mlfs.orders.mt19937 import randperm
from mlfs.orders.shuffle import Direction, shuffle_from_targets


def by_loop(targets: list[int], direction: Direction) -> list[int]:
    values = list(range(len(targets)))
    steps = list(range(len(targets)))
    for i in reversed(steps) if direction == "backward" else steps:
        values[i], values[targets[i]] = values[targets[i]], values[i]
    return values


@st.composite
def swaps(draw: st.DrawFn) -> tuple[list[int], Direction]:
    """Targets that a shuffle could draw, with far more collisions than chance would give."""
    n = draw(st.integers(0, 60))
    direction: Direction = draw(st.sampled_from(["forward", "backward", "growing"]))
    low = [i if direction == "forward" else 0 for i in range(n)]
    high = [n - 1 if direction == "forward" else i for i in range(n)]
    favourites = draw(st.lists(st.integers(0, max(n - 1, 0)), min_size=1, max_size=5))
    targets = []
    for i in range(n):
        near = draw(st.sampled_from([*favourites, i, i + 1]) | st.integers(low[i], high[i]))
        targets.append(min(max(near, low[i]), high[i]))
    return targets, direction


@given(drawn=swaps(), block=st.integers(1, 70))
@settings(max_examples=cases(80), deadline=None)
def test_blocks_of_any_size_do_what_the_loop_does(drawn: tuple[list[int], Direction], block: int) -> None:
    targets, direction = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "SMALLEST_BLOCK", block)
        patch.setattr(shuffle, "LARGEST_BLOCK", block)
        patch.setattr(shuffle, "compiled_shuffle", lambda n: None)
        result = shuffle_from_targets(np.array(targets, dtype=np.int64), direction)
    assert result.tolist() == by_loop(targets, direction)


@pytest.mark.parametrize("direction", ["forward", "backward", "growing"])
def test_the_compiled_loop_gives_the_same(monkeypatch: pytest.MonkeyPatch, direction: Direction) -> None:
    assert shuffle.wait_for_compiled(), "numba is among the tests' needs: scripts/setup installs it"
    draws = np.random.default_rng(4)
    up = np.arange(30_000)
    targets = draws.integers(up, 30_000) if direction == "forward" else draws.integers(0, up + 1)
    used = shuffle_from_targets(targets, direction)
    monkeypatch.setattr(shuffle, "compiled_shuffle", lambda n: None)
    assert np.array_equal(shuffle_from_targets(targets, direction), used)


def test_a_short_shuffle_and_a_shuffle_without_numba_go_on_without_it() -> None:
    code = """if True:
        import sys, threading
        from mlfs.orders import shuffle
        from mlfs.orders.mt19937 import randperm
        randperm(400_000, 1)
        assert threading.active_count() == 1 and "numba" not in sys.modules
        sys.modules["numba"] = None  # importing it fails from here on
        shuffle.importlib.util.find_spec = lambda name: None
        assert not shuffle.wait_for_compiled()
        randperm(600_000, 1)
        assert threading.active_count() == 1
        shuffle.importlib.util.find_spec = lambda name: object()
        assert not shuffle.wait_for_compiled(), "a numba that cannot be imported is none"
        print(randperm(600_000, 1)[:3].tolist())
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", f"{randperm(600_000, 1)[:3].tolist()}\n")


def test_too_many_elements_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "MOST_ELEMENTS", 3)
    with pytest.raises(ValueError, match="cannot shuffle 4 elements"):
        shuffle_from_targets(np.arange(4))
