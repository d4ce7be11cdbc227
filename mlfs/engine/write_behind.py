"""Has places keep what was fetched for readers, behind their backs.

In: fetched samples with their bytes, on the loop. Out: copies, made in a worker thread; `Kept` for the scheduler. Until
then they stand in `Fetcher.to_keep` and answer opens. Used by mlfs.engine.demand; prefetch lanes keep their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mlfs.engine.coalesce import Coalesced
from mlfs.engine.fetch import Fetched, Fetcher
from mlfs.engine.runner import Runner
from mlfs.plan.scheduler.events import Kept

# A hop to a thread costs more than keeping a sample: some are collected.
KEEP_DELAY_S = 0.02


class _Waiting(NamedTuple):
    """A sample to keep, of which fetch, and the places that may."""

    fetch: int
    fetched: Fetched
    keep_in: tuple[int, ...]


class WriteBehind:
    """See the module.

    Args:
        kept: told on the loop of what became of a batch.
        most_bytes: where the places' writer is this far behind, what comes is not kept: memory is bounded.
    """

    def __init__(self, fetcher: Fetcher, runner: Runner, kept: Callable[[list[Kept]], None], most_bytes: int) -> None:
        self._fetcher = fetcher
        self._runner = runner
        self._kept = kept
        self._most_bytes = most_bytes
        self._waiting_bytes = 0
        self._waiting: list[_Waiting] = []
        self._soon = Coalesced(KEEP_DELAY_S)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not kept yet, at most `most_bytes`."""
        return self._waiting_bytes

    def keep(self, fetch: int, fetched: Fetched, keep_in: tuple[int, ...]) -> None:
        """Have a place keep it; skipped when the writer is far behind."""
        if fetched.data is None or self._waiting_bytes + fetched.size_bytes > self._most_bytes:
            self._kept([Kept(fetch, fetched.sample, 0)])
            return
        self._waiting_bytes += fetched.size_bytes
        self._waiting.append(_Waiting(fetch, fetched, keep_in))
        self._fetcher.keep_soon(fetched, keep_in[0])
        self._soon.call()

    async def run(self) -> None:
        """For as long as the mount lives."""
        while True:
            await self._soon.wait()
            batch, self._waiting = self._waiting, []
            kept = [(0, 0)] * len(batch)
            try:
                kept = await self._runner.run("keep", self._fetcher.keep, [(one.fetched, one.keep_in) for one in batch])
            finally:  # whatever became of it: these samples do not wait any more
                self._waiting_bytes -= sum(one.fetched.size_bytes for one in batch)
                self._fetcher.no_longer_kept_soon([one.fetched for one in batch])
                self._kept(
                    [
                        Kept(one.fetch, one.fetched.sample, place, used)
                        for one, (place, used) in zip(batch, kept, strict=True)
                    ]
                )
