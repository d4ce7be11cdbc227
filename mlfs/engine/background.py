"""Tasks beside the readers' way, each of which may fail without ending the mount.

In: tasks that are to run for as long as the mount lives (planner, write-behind, explainer, the peers' door, ...). Out:
what became of those that failed, for the status. A task that fails is begun again after a pause, which grows while it
goes on failing. It must therefore be one that can be begun again: what it had under way is lost, and it says so to
whoever waits for that. Made by the engine; the daemon runs its own such tasks by it, too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import trio

from mlfs.engine.shortages import Shortages

log = logging.getLogger("mlfs.engine")

# A task that fails at once again and again must not keep the loop busy; one that failed once shall go on soon.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class BackgroundFault:
    """A task that failed: how often, and its last error in words."""

    task: str
    times: int
    error: str


class Background:
    """Runs tasks beside the readers' way, and begins one that fails again."""

    def __init__(self, shortages: Shortages) -> None:
        self._shortages = shortages
        self._faults: dict[str, BackgroundFault] = {}

    async def keep_going(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a task until it returns or is cancelled, whatever it raises meanwhile."""
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = trio.current_time()
            try:
                await run()
                return
            except* Exception as errors:
                self.failed(name, errors)
            if trio.current_time() - began_s > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def failed(self, name: str, error: Exception) -> None:
        """A task failed. Its first failure of each kind is logged whole."""
        causes = list(_causes(error))
        for cause in causes:
            self._shortages.noticed(cause)
        known = self._faults.get(name)
        words = repr(causes[0])
        self._faults[name] = BackgroundFault(name, 1 + (known.times if known is not None else 0), words)
        if known is None or known.error != words:
            log.error("the task of %s failed and is begun again; the mount goes on", name, exc_info=error)

    def statistics(self) -> tuple[BackgroundFault, ...]:
        return tuple(self._faults.values())


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    else:
        yield error
