"""The entry point of the `mlfs` command. It decides what Ctrl-C does before it imports anything that takes a while.

In: the command line. Out: an exit code. Called by the `mlfs` script and `python -m mlfs`. `mlfs.cli.commands` decides
what the command line means.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from mlfs.cli.ending import EndedBySignal, die, hear_no_more, hear_the_end

if TYPE_CHECKING:
    from collections.abc import Sequence

# Objects that are made before Python looks for garbage among them; some 2 MB. Its own number is 700.
COLLECT_AFTER = 20_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Bad usage leaves through SystemExit(2).

    Args:
        argv: the arguments; None for those of this process. Signals are handled only for those of this process.
    """
    if argv is not None:
        from mlfs.cli.commands import main as run

        return run(argv)
    _fill_standard_descriptors()
    # Imports make objects that stay: a command that lasts a tenth of a second need not look for garbage 200 times.
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
    # Another handler means that Ctrl-C is ignored (`nohup mlfs ... &`) or belongs to a program that embeds this one.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _leave)
    try:
        from mlfs.cli.commands import main as run

        return run(sys.argv[1:], partial(_hear, ours))
    except EndedBySignal as ended:
        die(ended.number)
    finally:
        gc.freeze()  # Python looks for garbage once more as it ends, among all that the operating system frees at once
        hear_no_more()
        if ours:
            signal.signal(signal.SIGINT, _leave)


def _fill_standard_descriptors() -> None:
    """Open what was closed (`mlfs mount ... <&- >&- 2>&-`): the next file would get its number, and be written to."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - for as long as this process lives
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _leave(_number: int, _frame: object) -> None:
    """End at once, as nothing has begun or all is done. A KeyboardInterrupt would come in the middle of an import."""
    os._exit(128 + signal.SIGINT)


def _hear(interrupts: bool) -> None:
    if interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hear_the_end()


if __name__ == "__main__":
    sys.exit(main())
