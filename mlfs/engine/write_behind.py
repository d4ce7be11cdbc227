"""Has tiers keep what demand fetches brought, behind the readers' backs.

In: fetched samples with their bytes, on the loop. Out: copies in tiers, made in a worker thread. Until then they stand
in `Fetcher.to_keep` and answer opens. Used by the engine; prefetch lanes keep their own.
"""

from __future__ import annotations

from mlfs.engine.coalesce import Coalesced
from mlfs.engine.fetch import Fetched, Fetcher
from mlfs.engine.runner import Runner

KEEP_DELAY_S = 0.02
MOST_KEEPING_BYTES = 64 << 20


class WriteBehind:
    """See the module.

    Attributes:
        waiting_bytes: bytes that are not kept yet, at most MOST_KEEPING_BYTES.
    """

    def __init__(self, fetcher: Fetcher, runner: Runner) -> None:
        self.fetcher = fetcher
        self.runner = runner
        self.waiting_bytes = 0
        self._waiting: list[Fetched] = []
        self._soon = Coalesced(KEEP_DELAY_S)  # a hop to a thread costs more than keeping a sample: collect some

    def keep(self, fetched: Fetched) -> None:
        """Have a tier keep it; skipped when the tiers' writer is far behind."""
        if self.waiting_bytes + fetched.size_bytes <= MOST_KEEPING_BYTES:
            self.waiting_bytes += fetched.size_bytes
            self._waiting.append(fetched)
            self.fetcher.to_keep[fetched.entry] = fetched
            self._soon.call()

    async def run(self) -> None:
        """For as long as the mount lives."""
        while True:
            await self._soon.wait()
            batch, self._waiting = self._waiting, []
            await self.runner.run("keep", self.fetcher.keep_waiting, batch)
            self.waiting_bytes -= sum(fetched.size_bytes for fetched in batch)
