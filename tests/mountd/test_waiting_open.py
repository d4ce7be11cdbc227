"""An OPEN that waits is answered once, whoever comes first: the worker that has the bytes in place, or the loop."""

from __future__ import annotations

import errno
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mountd.handlers import AskedAgain, Handlers, WaitingOpen
from mountd.inodes import handle_of, inode_of

ENTRY, PID, UNIQUE, LARGE = 7, 100, 12, 1 << 60
HANDLE = handle_of(ENTRY, 0)


class Surroundings:
    """What an open meets of the handlers, the engine and the channel: all of it notes what it is told.

    Attributes:
        told: by whom what was told. answers: handles, or errnos below 0. early: handles that may not be closed yet.
        generations: of each entry.
    """

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.answers: list[int] = []
        self.early: set[int] = set()
        self.generations = [0] * (ENTRY + 1)
        digest = {
            name: self.note(name) for name in ("waits", "goes_on", "goes_on_in_worker", "refused", "soon", "closed")
        }
        ranges = SimpleNamespace(close_large=self.note("closed"), generation_of=lambda _: 1, is_unsized=lambda _: False)
        opens = SimpleNamespace(
            clock=lambda: 1.0, wait=self.note("scheduler"), count=self.note("counted"), stalled=self.note("stalled"),
            ranges=ranges,
        )  # fmt: skip
        self.handlers = cast(
            Handlers,
            SimpleNamespace(
                again=AskedAgain(lambda: 0.0, self.note("does_not_come")), does_not_come=self.note("does_not_come"),
                digest=SimpleNamespace(**digest), failures=SimpleNamespace(note=self.note("failed")), opens=opens,
                looks=SimpleNamespace(changes=0, changed_since=lambda entry, before: False), ranges=ranges,
                manifest=SimpleNamespace(
                    generation_view=self.generations, unsized=SimpleNamespace(counted=lambda _: None)
                ),
            ),
        )  # fmt: skip

    def note(self, what: str) -> Any:
        return lambda *told: self.told.append((what, *told))

    def opens(self, unique: int, handle: int) -> None:
        assert unique == UNIQUE
        self.early.add(handle)
        self.answers.append(handle)

    def failed(self, unique: int, error: Exception) -> None:
        assert unique == UNIQUE
        self.answers.append(-cast(int, cast(OSError, error).errno))

    def noted(self, handle: int) -> None:
        self.early.discard(handle)

    noted_before = noted

    def open(self, generation: int = 0) -> WaitingOpen:
        opened = WaitingOpen(self.handlers, self, UNIQUE, inode_of(ENTRY, generation), PID)
        opened.begin()
        return opened

    def names(self) -> list[str]:
        """Of what was told, without what it was about."""
        return [what for what, *_ in self.told]


def test_a_worker_answers_and_the_loop_notes_the_rest() -> None:
    around = Surroundings()
    opened = around.open()
    assert around.names() == ["waits", "scheduler"]
    assert opened.in_place(5000)
    assert (around.answers, around.early) == ([HANDLE], {HANDLE})  # it may not be closed before the loop has noted it
    assert around.told[-1] == ("goes_on_in_worker", ENTRY, PID, 5000)
    opened.answer(None)
    assert (around.answers, around.early) == ([HANDLE], set())
    assert around.names()[-3:] == ["counted", "stalled", "soon"]


def test_the_loop_answers_where_no_worker_did() -> None:
    around = Surroundings()
    around.open().answer(None)
    assert (around.answers, around.early) == ([HANDLE], set())
    assert around.told[-1] == ("goes_on", ENTRY, PID, 0)


def test_a_reader_is_refused_and_a_worker_that_was_given_up_on_comes_too_late() -> None:
    around = Surroundings()
    opened = around.open()
    opened.refuse(OSError(errno.ETIMEDOUT, "twice"))
    assert not opened.in_place(5000)
    assert (around.answers, around.early) == ([-errno.ETIMEDOUT], set())
    assert around.names()[2:] == ["stalled", "failed", "refused"]


def test_a_large_files_handle_is_closed_where_a_worker_has_answered_with_another() -> None:
    around = Surroundings()
    opened = around.open()
    assert opened.in_place(5000)
    opened.over(None, LARGE, 0)
    assert around.answers == [HANDLE]
    assert ("closed", LARGE) in around.told


def test_a_file_that_has_changed_is_opened_again_and_counts_once() -> None:
    around = Surroundings()
    opened = around.open()
    around.generations[ENTRY] = 1
    assert not opened.in_place(5000)
    opened.over(None, LARGE, 5000)
    assert around.answers == [-errno.ESTALE]
    around.told.clear()
    around.open(generation=1)  # the handle that the first has opened is of this content
    assert around.answers[1:] == [LARGE]
    assert around.told == [("goes_on", ENTRY, PID, 5000)]


@pytest.mark.parametrize("seed", range(200))
def test_whoever_comes_first_answers_and_nobody_does_a_second_time(seed: int) -> None:
    """Workers, some of them given up on, and the loop's end, in a drawn order; a worker may be cut in two."""
    draw, around = random.Random(seed), Surroundings()
    opened = around.open()
    if draw.random() < 0.2:
        around.generations[ENTRY] = 1
    ends = [
        lambda: opened.answer(None),
        lambda: opened.refuse(OSError(errno.EIO, "")),
        lambda: opened.over(None, LARGE, 0),
    ]
    cut = draw.random() < 0.3  # a worker that has the right to answer is overtaken by the loop
    real = around.handlers.digest.goes_on_in_worker
    end = draw.choice(ends)
    steps = [lambda: opened.in_place(1)] * draw.randrange(3) + [end]
    draw.shuffle(steps)

    def overtaken(*told: Any) -> None:
        real(*told)
        if cut and end in steps:
            steps.remove(end)
            end()

    around.handlers.digest.goes_on_in_worker = overtaken  # type: ignore[method-assign]
    while steps:
        steps.pop()()
    assert len(around.answers) == 1
    assert not around.early
    assert sum(name in ("goes_on", "goes_on_in_worker", "refused") for name in around.names()) <= 1
