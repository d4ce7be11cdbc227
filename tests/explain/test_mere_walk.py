"""A walk over the directories beside a registration that shuffles: `cp -r`, or a script that does not shuffle."""

from __future__ import annotations

import pytest

from mlfs.explain.disagreement import is_mere_walk
from mlfs.follow.matching import Open
from mlfs.follow.score import Cell

FILES = range(10, 210)


def opened(reads: list[tuple[int, int]]) -> list[Open]:
    cell = Cell(0, -1)
    return [Open(entry, process, 1, cell, False, -1, -1) for entry, process in reads]


def by_workers(batch: int, workers: int) -> list[tuple[int, int]]:
    """Workers that read one file each in turn, each its own batches."""
    batches = [list(FILES[at : at + batch]) for at in range(0, len(FILES), batch)]
    own = [[entry for one in batches[worker::workers] for entry in one] for worker in range(workers)]
    return [(of[at], worker) for at in range(max(map(len, own))) for worker, of in enumerate(own) if at < len(of)]


WALKS = {
    "cp": [(entry, 1) for entry in FILES],
    "xargs -n 20": [(entry, entry // 20) for entry in FILES],
    "find -exec": [(entry, entry) for entry in FILES],
    "xargs -P 2 -n 20": [(entry + 20 * side, entry // 20 + side) for entry in FILES[:20] for side in (0, 1)],
    "cp twice": [(entry, turn) for turn in (1, 2) for entry in FILES],
}
SCRIPTS = {
    "2 workers": by_workers(8, 2),
    "3 workers": by_workers(16, 3),
    "a second pass": [(entry, 1) for _ in range(2) for entry in FILES],
    "a second pass, of which little is remembered": [(entry, 1) for entry in (*FILES[100:], *FILES[:20])],
}


@pytest.mark.parametrize("reads", WALKS.values(), ids=WALKS)
def test_who_may_be_cp_is_no_script(reads: list[tuple[int, int]]) -> None:
    assert is_mere_walk(opened(reads), FILES[0])


@pytest.mark.parametrize("reads", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_that_does_not_shuffle_shows_itself(reads: list[tuple[int, int]]) -> None:
    assert not is_mere_walk(opened(reads), FILES[0])
