"""Ends a computation of orders that nobody waits for any more: a job was unregistered while its order was computed.

In: a question that says whether to stop, asked between two portions of work. Out: `StoppedError` in the thread that
computes. Used by mlfs.orders.streams around everything that a job has computed; asked in mlfs.orders.mt19937 and
mlfs.orders.order_file, where the time goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlfs.errors import JobError


class StoppedError(JobError):
    """The computation was ended, as its job is not wanted any more."""

    def __init__(self) -> None:
        super().__init__("the job was unregistered while its order was computed", "", "name")


class _Asked(threading.local):
    """The question of this thread."""

    stop: Callable[[], bool] | None = None


_asked = _Asked()


@contextmanager
def stoppable(stop: Callable[[], bool]) -> Iterator[None]:
    """A computation of this thread inside ends soon after `stop` says so, or the one around this one."""
    before = _asked.stop
    _asked.stop = stop if before is None else lambda: stop() or before()
    try:
        yield
    finally:
        _asked.stop = before


def stop_if_asked() -> None:
    """Raises StoppedError when this thread's computation is to end."""
    if _asked.stop is not None and _asked.stop():
        raise StoppedError
