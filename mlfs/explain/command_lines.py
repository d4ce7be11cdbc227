"""Looks for seeds on the command lines of the processes that read, as in `train.py --seed 3141592653`.

In: processes. Out: seeds to try before others; the reads have to confirm them like any other. Called by
`mlfs.explain.inference` in a worker thread, as it reads /proc.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# A seed from a command line is looked at further than popular ones: a second or two for each.
MOST_SEEDS = 4
# A rank's workers have the command line of their parent, so these are more than enough.
_MOST_PROCESSES = 16
_MOST_BYTES = 1 << 16
_LOW_WORD = 0xFFFFFFFF  # all that torch takes of a seed
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,20}(?![\w.])")


def seeds_on_command_lines(pids: Iterable[int]) -> tuple[int, ...]:
    """At most four: those that are called a seed, then other numbers too large for a batch size or number of epochs."""
    named: list[int] = []
    large: list[int] = []
    for pid in list(dict.fromkeys(pids))[:_MOST_PROCESSES]:
        for word, before in _words(pid):
            found = [int(number) & _LOW_WORD for number in _NUMBER.findall(word)]
            if "seed" in f"{before} {word}".lower():
                named += found
            else:
                large += [number for number in found if number >= 1 << 16]
    return tuple(dict.fromkeys((*named, *large)))[:MOST_SEEDS]


def _words(pid: int) -> Iterable[tuple[str, str]]:
    """The words of a process' command line, each with the one before it."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            words = file.read(_MOST_BYTES).decode("utf-8", "replace").split("\0")
    except OSError:
        return []  # the process has ended, or belongs to another container
    return zip(words, ["", *words], strict=False)
