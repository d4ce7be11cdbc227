"""Drives the scheduler: hands it events, and has its commands carried out.

In: events, on the loop. Out: commands for those who carry them out: lanes (mlfs.engine.lanes), readers who wait
(mlfs.engine.demand), jobs (mlfs.engine.mount_jobs); drops and time are dealt with here. All decisions are the
scheduler's (mlfs.plan.scheduler), which knows nothing of threads; nothing is decided here. One step at a time: an event
that arises while commands are carried out waits for the next one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from mlfs.engine.demand import Demand
from mlfs.engine.fetch import Fetcher
from mlfs.engine.lanes import Lanes
from mlfs.engine.runner import Runner, start
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.stats import Counters

log = logging.getLogger("mlfs.engine")


class Driver:
    """See the module.

    Args:
        clock: seconds, monotone. others: who carries out further commands, by the command's class.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        fetcher: Fetcher,
        lanes: Lanes,
        demand: Demand,
        counters: Counters,
        runner: Runner,
        clock: Callable[[], float],
        others: Mapping[type, Callable[[Any], None]],
    ) -> None:
        self._scheduler = scheduler
        self._fetcher = fetcher
        self._lanes = lanes
        self._demand = demand
        self._counters = counters
        self._runner = runner
        self._clock = clock
        self._inbox: list[e.Event] = []
        self._stepping = False
        self._alarm_s = math.inf
        self._alarm: trio.CancelScope | None = None
        self._do: dict[type, Callable[[Any], None]] = {
            c.Fetch: self._fetch,
            c.Drop: self._drop,
            c.Evict: self._evict,
            c.Warn: self._warn,
            c.WakeAt: self._wake_at,
            c.Count: self._count,
            c.Fault: self._fault,
            **lanes.carry_out(),
            **demand.carry_out(),
            **others,
        }

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
                    self._carry_out(command)
        finally:
            self._stepping = False

    def _carry_out(self, command: c.Command) -> None:
        try:
            self._do[type(command)](command)
        except Exception:  # a bug: it costs what the command is about, not the others
            log.exception("a command of the scheduler could not be carried out: %r", command)
            self._counters.error("driver_fault")

    def stop(self, stop: bool) -> None:
        """Fetch nothing ahead any more; or go on after all."""
        self._lanes.stop(stop)
        self.step(e.Stopped(stop))

    def _fetch(self, fetch: c.Fetch) -> None:
        (self._demand if fetch.waited_for else self._lanes).fetch(fetch)

    def _fault(self, fault: c.Fault) -> None:
        """A bug of the scheduler: it costs what the event was about, never the mount, and no reader his read."""
        log.error("the scheduler failed over %r", fault.event, exc_info=fault.error)
        self._counters.error("scheduler_fault")
        self._demand.scheduler_failed(fault.event)

    # -- drops, time, words

    def _drop(self, drop: c.Drop) -> None:
        start(self._runner, "drop", self._fetcher.drop, drop.samples, then=partial(self._dropped, drop.samples))

    def _dropped(self, samples: Sequence[int], _: None, error: BaseException | None) -> None:
        if error is not None:
            log.error("pages could not be dropped", exc_info=error)
        self.step(e.Dropped(samples))

    def _evict(self, evict: c.Evict) -> None:
        call, then = self._fetcher.evict, partial(self._evicted, evict.place)
        start(self._runner, "keep", call, evict.place, evict.samples, then=then)

    def _evicted(self, place: int, used_bytes: int | None, error: BaseException | None) -> None:
        if error is not None:
            log.error("copies could not be evicted", exc_info=error)
        self.step(e.Evicted(place, self._fetcher.used_bytes(place) if used_bytes is None else used_bytes))

    def _wake_at(self, wake: c.WakeAt) -> None:
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

    def _warn(self, warn: c.Warn) -> None:
        log.warning("%s", warn.text)

    def _count(self, count: c.Count) -> None:
        self._counters.error(count.kind)
