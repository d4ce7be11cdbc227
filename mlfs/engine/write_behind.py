"""Has places keep what was got for readers, behind their backs.

In: contents, on the loop, that were fetched for readers, or got past the fetches for a READ that found its pages gone.
Out: copies, made in a worker thread; `Kept` for the scheduler. Until then they stand in `Fetcher.to_keep` and answer
opens. Lanes keep what they fetch ahead by themselves.
"""

from __future__ import annotations

from typing import NamedTuple

from mlfs.engine.coalesce import Coalesced
from mlfs.engine.context import Context
from mlfs.engine.fetch import Fetched, Fetcher
from mlfs.plan.scheduler.commands import KeepCopy
from mlfs.plan.scheduler.events import Kept, ReadAside

# A hop to a thread costs more than keeping a sample: some are collected.
KEEP_DELAY_S = 0.02


class _ToKeep(NamedTuple):
    """A sample to keep, of which fetch, and the places that may."""

    fetch: int
    fetched: Fetched
    keep_in: tuple[int, ...]


class WriteBehind:
    """Collects copies that places shall keep, and has a worker write them.

    Args:
        most_bytes: where the places' writer is this far behind, what comes is not kept: memory is bounded.
    """

    def __init__(self, context: Context, fetcher: Fetcher, most_bytes: int) -> None:
        self._step = context.step
        self._runner = context.runner
        self._fetcher = fetcher
        self._most_bytes = most_bytes
        self._waiting_bytes = 0
        self._waiting: list[_ToKeep] = []
        self._soon = Coalesced(KEEP_DELAY_S)
        self._past_fetches: dict[int, Fetched] = {}  # got past the fetches, while the scheduler is told

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not kept yet, at most `most_bytes`."""
        return self._waiting_bytes

    def keep(self, fetch: int, fetched: Fetched, keep_in: tuple[int, ...]) -> None:
        """Have a place keep it; skipped when the writer is far behind."""
        if fetched.data is None or self._waiting_bytes + fetched.size_bytes > self._most_bytes:
            self._fetcher.no_longer_kept_soon([fetched])
            self._step(Kept(fetch, fetched.sample, 0))
            return
        self._waiting_bytes += fetched.size_bytes
        self._waiting.append(_ToKeep(fetch, fetched, keep_in))
        self._fetcher.keep_soon(fetched, keep_in[0])
        self._soon.call()

    def got_aside(self, fetched: Fetched) -> None:
        """A whole sample was got past the fetches, from the source or a peer: kept, if the scheduler wants a copy."""
        self._past_fetches[fetched.sample] = fetched
        try:
            self._step(ReadAside(fetched.sample))
        finally:
            del self._past_fetches[fetched.sample]

    def keep_aside(self, keep: KeepCopy) -> None:
        """Have a place keep what was got past the fetches."""
        fetched = self._past_fetches.get(keep.sample)
        if fetched is None:  # it was told within another step, and is over
            self._step(Kept(keep.fetch, keep.sample, 0))
        else:
            self.keep(keep.fetch, fetched, keep.keep_in)

    async def run(self) -> None:
        while True:
            await self._soon.wait()
            batch, self._waiting = self._waiting, []
            kept = [(0, 0)] * len(batch)
            try:
                kept = await self._runner.run("keep", self._fetcher.keep, [(one.fetched, one.keep_in) for one in batch])
            finally:  # whatever became of it: these samples do not wait any more
                self._waiting_bytes -= sum(one.fetched.size_bytes for one in batch)
                self._fetcher.no_longer_kept_soon([one.fetched for one in batch])
                ends = [(one.fetch, one.fetched.sample, *end) for one, end in zip(batch, kept, strict=True)]
                self._step(*(Kept(*end) for end in ends))
