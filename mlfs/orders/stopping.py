"""Ends a computation of orders that nobody waits for any more: a job was unregistered while its order was computed.

In: a question that says whether to stop, asked between two portions of work. Out: `StoppedError` in the thread that
computes. Used by mlfs.orders.streams around everything that a job has computed; asked in mlfs.orders.mt19937 and
mlfs.orders.order_file, where the time goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mlfs.errors import JobError


class StoppedError(JobError):
    """The computation was ended, as its job is not wanted any more."""

    def __init__(self) -> None:
        super().__init__("the job was unregistered while its order was computed", "", "name")


_asked: ContextVar[Callable[[], bool]] = ContextVar("_asked", default=lambda: False)
"""The question of this thread."""


@contextmanager
def stoppable(stop: Callable[[], bool]) -> Iterator[None]:
    """A computation of this thread inside ends soon after `stop` says so, or the one around this one."""
    before = _asked.get()
    token = _asked.set(lambda: stop() or before())
    try:
        yield
    finally:
        _asked.reset(token)


def stop_if_asked() -> None:
    """Raises StoppedError when this thread's computation is to end."""
    if _asked.get()():
        raise StoppedError
