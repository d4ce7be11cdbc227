"""How many cases a test draws: a few in each run, and as many as wanted where somebody has the time.

In: the number that scripts/test runs. Out: that, or what MLFS_DRAWN says. `scripts/soak --tests CASES` sets it for all
tests that ask here.
"""

from __future__ import annotations

import os


def cases(few: int) -> int:
    """The number of cases that a test draws. They are always the same first ones, so what is found has its number."""
    return int(os.environ.get("MLFS_DRAWN", few))
