"""Drives the scheduler: hands it events, and has its commands carried out.

In: events, on the loop. Out: commands for those who carry them out (mlfs.engine.engine has the list); drops and time
are dealt with here. All decisions are the scheduler's (mlfs.plan.scheduler), which knows nothing of threads; nothing is
decided here. One step at a time: an event that arises while commands are carried out waits for the next one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

import trio

from mlfs.engine.fetch import Fetcher
from mlfs.engine.runner import Runner, start
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.stats import Counters

log = logging.getLogger("mlfs.engine")


class Driver:
    """Steps the scheduler: events in, one step at a time, commands out.

    Args:
        clock: seconds, monotone. do: has a command carried out, and never raises.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        fetcher: Fetcher,
        counters: Counters,
        runner: Runner,
        clock: Callable[[], float],
        do: Callable[[c.Command], None],
    ) -> None:
        self._scheduler = scheduler
        self._fetcher = fetcher
        self._counters = counters
        self._runner = runner
        self._clock = clock
        self._do = do
        self._inbox: list[e.Event] = []
        self._stepping = False
        self._alarm_s = math.inf
        self._alarm: trio.CancelScope | None = None

    def step(self, *events: e.Event) -> None:
        """On the loop: have the scheduler take events in, and carry out what it says."""
        self._inbox += events
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inbox:
                taken, self._inbox = self._inbox, []
                for command in self._scheduler.step(self._clock(), taken):
                    self._do(command)
        finally:
            self._stepping = False

    # -- drops, time, words

    def drop(self, drop: c.Drop) -> None:
        """Have a worker drop pages."""
        start(self._runner, "drop", self._fetcher.drop, drop.samples, then=partial(self._dropped, drop.samples))

    def _dropped(self, samples: Sequence[int], _: None, error: BaseException | None) -> None:
        if error is not None:
            log.error("pages could not be dropped", exc_info=error)
        self.step(e.Dropped(samples))

    def evict(self, evict: c.Evict) -> None:
        """Have a worker take copies out of a place."""
        call, then = self._fetcher.evict, partial(self._evicted, evict.place)
        start(self._runner, "keep", call, evict.place, evict.samples, then=then)

    def _evicted(self, place: int, used_bytes: int | None, error: BaseException | None) -> None:
        if error is not None:
            log.error("copies could not be evicted", exc_info=error)
        self.step(e.Evicted(place, self._fetcher.used_bytes(place) if used_bytes is None else used_bytes))

    def wake_at(self, wake: c.WakeAt) -> None:
        """Tell the scheduler when that time has come."""
        self._alarm_s = wake.at_s
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            passing_s = max(0.0, self._alarm_s - self._clock())  # infinity stays what it is
            self._alarm.deadline = trio.current_time() + passing_s

    async def run(self) -> None:
        """Tell the scheduler when its time has come, for as long as the mount lives."""
        while True:
            with trio.CancelScope() as self._alarm:
                self._set_alarm()
                await trio.sleep_forever()
            self._alarm, self._alarm_s = None, math.inf
            self.step(e.TimePassed())

    def warn(self, warn: c.Warn) -> None:
        """Log it for a person."""
        log.warning("%s", warn.text)

    def count(self, count: c.Count) -> None:
        self._counters.error(count.kind)
