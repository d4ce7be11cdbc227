"""Ends a command at SIGTERM and SIGHUP: it cleans up behind itself first, and then dies of the signal.

In: the signals that a terminal, a shell or a batch system sends. Out: `EndedBySignal` in the main thread, so that what
a command has changed (the terminal, a temporary file) is put back on the way out. A signal that is ignored (nohup)
stays ignored, and a command that takes signals itself has its own way. Called by `mlfs.cli.main`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_HEARD = (signal.SIGTERM, signal.SIGHUP)
_ENDING = (signal.SIGINT, *_HEARD)
# How often one looks for a signal that nobody takes; one that is there twice is not about to be taken.
_LOOK_EVERY_S = 0.3
_hearing = threading.Event()


class EndedBySignal(BaseException):
    """A signal has come that ends the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def hear_the_end() -> None:
    """From now on `EndedBySignal` is raised at a signal that would end the process."""
    for number in _HEARD:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    _hearing.set()


def end_what_hangs() -> None:
    """From now on a thread ends the process at a signal that waits for a main thread which no signal reaches. Only for
    commands that have nothing to clean up, and not for what a program that embeds them hears.
    """
    if _hearing.is_set():
        threading.Thread(target=_watch_for_signals, daemon=True, name="mlfs-signals").start()


def _watch_for_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # so that this thread sees them where the main thread does not
    before: set[int] = set()
    while True:
        time.sleep(_LOOK_EVERY_S)
        now = signal.sigpending() & set(_ENDING)
        for number in now & before:
            if number == signal.SIGINT:
                os.write(2, b"mlfs: interrupted\n")
            os._exit(128 + number)
        before = now


def hear_no_more() -> None:
    """Have signals end the process at once again."""
    _hearing.clear()
    for number in _HEARD:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def unheard() -> Iterator[None]:
    """In the main thread: what is short, and must not be cut off by the next signal."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *_HEARD)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _end(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one would come in the middle of cleaning up
    raise EndedBySignal(number)


def ended_by(error: BaseException | None) -> int:
    """The signal that is the cause of an error, 0 for none: a terminal that is gone cannot be written to either."""
    while error is not None and not isinstance(error, EndedBySignal):
        error = error.__cause__ or error.__context__
    return error.number if error is not None else 0


def die(number: int) -> NoReturn:
    """End this process by the signal, so that whoever waits for it is told the truth."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
