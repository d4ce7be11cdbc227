"""Notices that somebody reads the files in the order of the directories, as `find`, `cp -r` and `tar` walk them.

Pure. In: what a family of processes opens. Out: whether its order is plain, and where it is. Used by
`mlfs.follow.families`.

Files are numbered directory by directory, and within a directory in the order of its listing, which is that of the
names (`mlfs.tree.manifest`). So a walk, and a script that sorts its paths, opens the next number, or one a little
further where something in between is not read.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

LONGEST_STEP = 8
"""Files that a walk may leave out at a time: those that a pattern does not match, or that a process beside it reads."""
FEWEST_STEPS = 8
"""Steps before an order is called plain: fewer come so by chance, in a data set of a few dozen files."""
JUDGED_STEPS = 32
"""The last steps, which it is judged by."""
PLAIN_SHARE = 0.8
"""Share of them that must go on: a walk jumps where a directory ends, or where another process goes on."""
WALKED_AHEAD = 16
"""Files that are fetched ahead for who reads in this order: enough to keep a few lanes at work."""
REMEMBERED_PROCESSES = 64
"""Processes of a family whose places are remembered: those that `xargs -P` keeps at work."""


def walked_to(sample: int, member: Sequence[int]) -> list[int]:
    """The next samples in the order of the directories. Args: member: by sample, whether it is of the job."""
    following = range(sample + 1, min(len(member), sample + 1 + WALKED_AHEAD))
    return [other for other in following if member[other]]


class PlainOrder:
    """Counts how many reads in a row go on in the order of the directories.

    Attributes:
        last_sample: what was opened last, -1 before anything.
    """

    def __init__(self) -> None:
        self.last_sample = -1
        self._steps: deque[bool] = deque(maxlen=JUDGED_STEPS)
        self._last_of: OrderedDict[int, int] = OrderedDict()

    def read(self, sample: int, process: int) -> None:
        """A process of the family opened a sample. One that has just begun goes on where the one before it was."""
        before = self._last_of.pop(process, self.last_sample)
        self._last_of[process] = self.last_sample = sample
        if len(self._last_of) > REMEMBERED_PROCESSES:
            self._last_of.popitem(last=False)
        if before not in (-1, sample):
            self._steps.append(0 < sample - before <= LONGEST_STEP)

    @property
    def is_plain(self) -> bool:
        """Whether the last reads came in the order of the directories."""
        return len(self._steps) >= FEWEST_STEPS and sum(self._steps) >= PLAIN_SHARE * len(self._steps)
