"""That a mount is about to be unmounted: nothing is fetched ahead, no job is taken, so that it is idle when it goes.

In: `mlfs unmount`, which says again and again that it is still at it, and the signals that end the daemon. Out: calls
on the engine. Called by mountd.control. A mount whose unmounting is not heard of any more (a killed command, a closed
terminal) goes on as before.
"""

from __future__ import annotations

import logging
import math

import trio

from mlfs.engine.engine import Engine
from mountd.prime_inodes import InodePrimer

log = logging.getLogger("mlfs.ending")

# How long the mount waits to hear of its unmounting again. The command says it every second, on a busy machine later.
PATIENCE_S = 5.0


class Ending:
    """See the module. Loop only; `run` must be running."""

    def __init__(self, engine: Engine, primer: InodePrimer) -> None:
        self._engine = engine
        self._primer = primer
        self._until_s: float | None = None
        self._begun = trio.Event()

    @property
    def is_near(self) -> bool:
        """Whether somebody is unmounting."""
        return self._until_s is not None

    def begin(self, patience_s: float = PATIENCE_S) -> None:
        """Somebody unmounts, or still does; infinity: nothing calls that off."""
        if self._until_s is None:
            self._stop(True)
        self._until_s = max(self._until_s or 0.0, trio.current_time() + patience_s)
        self._begun.set()

    def call_off(self) -> None:
        """The mount stays, unless the daemon itself is ending."""
        if self._until_s is not None and not math.isinf(self._until_s):
            self._until_s = None
            self._stop(False)

    def _stop(self, stop: bool) -> None:
        self._primer.pause(stop)
        self._engine.stop_prefetching(stop)

    async def run(self) -> None:
        """Go on when nobody unmounts any more, for as long as the mount lives."""
        while True:
            await self._begun.wait()
            self._begun = trio.Event()
            while self._until_s is not None and trio.current_time() < self._until_s:
                await trio.sleep_until(self._until_s)
            if self._until_s is not None:
                log.warning("whoever was unmounting this is not heard of any more: the mount goes on")
                self.call_off()
