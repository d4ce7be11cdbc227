"""Contents that were got without a fetch: for READ requests that found their pages gone. They may be worth keeping.

In: such contents, on the loop. Out: `ReadAside` for the scheduler; where it wants a copy kept, the content for the
places' writer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlfs.engine.fetch import Fetched
from mlfs.engine.write_behind import WriteBehind
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e


class ReadsAside:
    """See the module.

    Args:
        step: takes events for the scheduler, and carries out what it says.
    """

    def __init__(self, step: Callable[..., None], write_behind: WriteBehind) -> None:
        self._step = step
        self._write_behind = write_behind
        self._told: dict[int, Fetched] = {}  # while the scheduler is told

    def carry_out(self) -> dict[type, Callable[[Any], None]]:
        """Who carries out the command about such contents."""
        return {c.KeepCopy: self._keep}

    def got(self, fetched: Fetched) -> None:
        """A sample's whole content was got from the source or a peer."""
        self._told[fetched.sample] = fetched
        try:
            self._step(e.ReadAside(fetched.sample))
        finally:
            del self._told[fetched.sample]

    def _keep(self, keep: c.KeepCopy) -> None:
        fetched = self._told.get(keep.sample)
        if fetched is None:  # it was told within another step, and is over
            self._step(e.Kept(keep.fetch, keep.sample, 0))
        else:
            self._write_behind.keep(keep.fetch, fetched, keep.keep_in)
