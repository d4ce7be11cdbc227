"""The way into the `mlfs` command: so light that Ctrl-C is heard before anything that takes a while is imported.

In: the words of the shell. Out: an exit code. Called by the `mlfs` script and `python -m mlfs`. What the words
mean is `mlfs.cli.commands`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Bad usage leaves through SystemExit(2).

    Args:
        argv: None for the words of this process; others leave its signals alone.
    """
    if argv is not None:
        from mlfs.cli.commands import main as run

        return run(argv)
    # Elsewhere Ctrl-C is ignored (`nohup mlfs ... &`), or somebody's who embeds us.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _leave)
    try:
        from mlfs.cli.commands import main as run

        return run(sys.argv[1:], _hear_interrupts if ours else lambda: None)
    finally:
        if ours:
            signal.signal(signal.SIGINT, _leave)


def _leave(_number: int, _frame: object) -> None:
    """Nothing has begun yet, or all is done: no KeyboardInterrupt in the middle of somebody's import."""
    os._exit(128 + signal.SIGINT)


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
