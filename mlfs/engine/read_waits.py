"""How long readers wait in READ requests: for pages that the kernel does not have, and for ranges of large files.

In: READs that have to wait, each with the open file that it is for. Out: waits, told one by one. Loop only.

The kernel may send several READs of a file at once, for one reader who waits for the first of them. So READs of a file
that wait at the same time count as one wait: from when the first of them begins until none is left. A reader who
computes while the kernel reads ahead for it waits less than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ReadWaits:
    """See the module.

    Args:
        waited: told of each wait for which open file it was, and how many seconds it took.
    """

    def __init__(self, clock: Callable[[], float], waited: Callable[[int, float], None]) -> None:
        self._clock = clock
        self._waited = waited
        self._waiting: dict[int, tuple[int, float]] = {}  # by open file: READs that wait, and since when

    @contextmanager
    def of(self, file: int) -> Iterator[None]:
        """A READ of the file waits while the context lasts."""
        count, since_s = self._waiting.get(file, (0, self._clock()))
        self._waiting[file] = count + 1, since_s
        try:
            yield
        finally:
            count, since_s = self._waiting.pop(file)
            if count > 1:
                self._waiting[file] = count - 1, since_s
            else:
                self._waited(file, self._clock() - since_s)
