"""What must hold of a node's scheduler, whatever happens: after each of its steps, and at the end of a run.

In: the events and commands of each step, the scheduler's table and statistics. Out: `Broken`, which says what does not
hold. The checker keeps its own account of fetches and promises, which it takes from the commands alone.

- The window counts the bytes of its samples, and has no more than its capacity but for what readers waited for. What
  places hold and have promised never exceeds their capacity.
- No sample is in two fetches at a time. A sample in place is STAGED exactly while a use of it is to come.
- A waiter is answered, refused or sent to the source once. Nobody is refused what the source would have given him, or
  waits longer than the limits allow.
- A reader is given no bytes older than what its node was told of before it opened the sample.
- A node asks no other node for a sample only because a third one asked for it.
- The look-ahead stands still only where all has been looked at, or where the next sample has to wait.
- Bytes between agents are those of the version that was asked for. A lane waits for a dead peer no longer than the
  peers' patience, one beat of its agent and a second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType

from mlfs.follow.job import JobRun
from mlfs.plan.scheduler import commands as c
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.config import SOURCE, PlaceInfo
from mlfs.plan.scheduler.job_record import JobRecord
from mlfs.plan.scheduler.look_ahead import nearest
from mlfs.plan.scheduler.scheduler import Scheduler
from mlfs.plan.scheduler.states import STATE_NAMES, State


class Broken(AssertionError):
    """Something that must hold does not."""


class Watch:
    """Watches one node's scheduler. `step` is to be called after each of its steps.

    Attributes:
        longest_wait_s: that anybody waited for an answer.
    """

    def __init__(self, scheduler: Scheduler, places: Sequence[PlaceInfo]) -> None:
        self._scheduler, self._table, self._places = scheduler, scheduler.table, places
        self._samples = range(len(scheduler.table.state))
        self._flying: dict[int, int] = {}  # sample -> the fetch that it is in
        self._lanes: dict[int, set[int]] = {}  # fetch -> samples of it that did not end
        self._promised: dict[tuple[int, int], tuple[int, int]] = {}  # (fetch, sample) -> place, bytes
        self._used_bytes = [place.used_bytes for place in places]
        # Samples that may take more room than the window has: fetched for a reader who waited, or grown at the source.
        self._beyond: set[int] = set()
        self._waiting: set[e.Waiter] = set()
        self._now_s = 0.0
        self.longest_wait_s = 0.0
        # Samples of which a reader was told that they are in place. The scheduler does not know of the read yet.
        self._coming: set[int] = set()

    def step(self, now_s: float, events: Sequence[e.Event], commands: Sequence[c.Command]) -> None:
        """A step was made. Raises Broken."""
        self._now_s = now_s
        for event in events:
            self._take(event)
        for command in commands:
            self._follow(command)
        # They ask for the scheduler's statistics only where something seems not to hold: these cost more than a step.
        self._check_table()
        self._check_places()
        self._check_looks()
        if any(isinstance(event, e.JobInstalled | e.JobEnded) for event in events):
            self._check_forgotten()

    # -- the account

    def _take(self, event: e.Event) -> None:
        match event:
            case e.Landed():
                self._ended(event)
            case e.FetchEnded():
                for landed in event.landed:
                    self._ended(landed)
                for sample in self._lanes.pop(event.fetch, ()):
                    self._forget(event.fetch, sample)
            case e.Recalled():
                self._forget(event.fetch, event.sample)
            case e.Kept():
                self._promised.pop((event.fetch, event.sample), None)
                if event.place:
                    self._used_bytes[event.place] = event.used_bytes
            case e.Evicted():
                self._used_bytes[event.place] = event.used_bytes
            case _:
                self._take_read(event)

    def _take_read(self, event: e.Event) -> None:
        match event:
            case e.Waits():
                self._waiting.add(event.waiter)
            case e.Touched():
                self._coming.add(event.sample)
            case e.ReadsSeen():
                self._coming.difference_update(read.sample for read in event.reads)
            case e.Opened():
                self._coming.discard(event.sample)
            case e.Resized():
                self._beyond.add(event.sample)

    def _ended(self, landed: e.Landed) -> None:
        fetch, sample = landed.fetch, landed.sample
        kept = not landed.error and (landed.place == SOURCE or self._places[landed.place].node >= 0)
        if self._flying.get(sample) == fetch:
            self._flying.pop(sample)
            self._lanes.get(fetch, set()).discard(sample)
            if not kept:
                self._promised.pop((fetch, sample), None)

    def _forget(self, fetch: int, sample: int) -> None:
        if self._flying.get(sample) == fetch:
            self._flying.pop(sample)
        self._lanes.get(fetch, set()).discard(sample)
        self._promised.pop((fetch, sample), None)

    def _follow(self, command: c.Command) -> None:
        match command:
            case c.Fetch():
                self._begun(command)
            case c.Abandon():
                for sample in list(self._lanes.get(command.fetch, ())):
                    self._forget(command.fetch, sample)
            case c.Answer() | c.OpenDirect() | c.Refuse():
                waiter = command.waiter
                if waiter not in self._waiting:
                    raise Broken(f"somebody is answered about sample {waiter.sample} who does not wait for it")
                self._waiting.remove(waiter)
                self.longest_wait_s = max(self.longest_wait_s, self._now_s - waiter.since_s)
                if isinstance(command, c.Answer):
                    self._coming.add(waiter.sample)

    def _begun(self, fetch: c.Fetch) -> None:
        self._lanes[fetch.fetch] = {item.sample for item in fetch.items}
        for item in fetch.items:
            sample = item.sample
            if sample in self._flying:
                raise Broken(f"sample {sample} is fetched by {fetch.fetch} and by {self._flying[sample]}")
            self._flying[sample] = fetch.fetch
            if fetch.waited_for:
                self._beyond.add(sample)
                if self._places[item.place].node >= 0 and all(
                    waiter.is_peer for waiter in self._waiting if waiter.sample == sample
                ):
                    raise Broken(f"sample {sample} is asked of another node only because a node asked for it here")
            if item.keep_in and not self._table.held_by[sample]:  # else it takes the room of the copy that is there
                place = item.keep_in[0]
                bytes_ = self._places[place].footprint_bytes(self._table.sizes[sample])
                self._promised[fetch.fetch, sample] = place, bytes_

    # -- what must hold

    def _check_table(self) -> None:
        table = self._table
        total = beyond = 0
        for sample in self._samples:
            state = table.state[sample]
            if state == State.ABSENT:
                self._beyond.discard(sample)
                continue
            total += table.footprint(sample)
            if sample in self._beyond:
                beyond += table.footprint(sample)
            if (state == State.STAGED) != (table.pending[sample] > 0) and state in (State.STAGED, State.RECENT):
                raise Broken(f"sample {sample} is {STATE_NAMES[state]} with {table.pending[sample]} uses to come")
            if (state == State.FETCHING) != (sample in self._flying):
                raise Broken(f"sample {sample} is {STATE_NAMES[state]}, its fetch is {self._flying.get(sample)}")
        if total != table.window_bytes:
            raise Broken(f"the window counts {table.window_bytes} bytes, its samples have {total}")
        without = total - beyond  # what the window may hold has shrunk, perhaps, since they were fetched
        if without > table.window_capacity_bytes and without > self._scheduler.statistics().window_full_bytes:
            raise Broken(f"the window has {total} bytes, {beyond} of them for readers who waited")

    def _check_places(self) -> None:
        promised = [0] * len(self._places)
        total = 0
        for (_, sample), (place, bytes_) in self._promised.items():
            total += bytes_
            if self._table.held_by[sample] != place:  # else it would take the room of the copy that is there
                promised[place] += bytes_
        for number, info in enumerate(self._places):
            if promised[number] and self._used_bytes[number] + promised[number] > info.capacity_bytes:
                raise Broken(f"{info.name}: {self._used_bytes[number]} bytes used, {promised[number]} promised")
        told = self._scheduler.keeping.promised_bytes
        if told != total:
            raise Broken(f"{told} bytes are promised, fetches under way were promised {total}")

    def _check_looks(self) -> None:
        """The look-ahead stands still only where all has been looked at, or where the next sample has to wait.

        It waits for room only while what lingers goes, or nothing does.
        """
        table = self._table
        if table.window_bytes > table.window_capacity_bytes:
            return
        of_jobs = [job.uses for job in self._scheduler.records.values()]
        if nearest(of_jobs) is None:
            return
        for uses in of_jobs:
            for rank in range(len(uses.cursors)):
                sample = uses.next_of(rank, table.window_capacity_bytes)
                if sample < 0:
                    continue
                if table.state[sample] in (State.GOING, State.DROPPING):
                    return
                if table.state[sample] == State.ABSENT and not table.fits_window(sample):
                    lingering = [sample for sample in self._samples if self._lingers(sample)]
                    if lingering and not self._scheduler.window.dropping and not self._looks_on():
                        raise Broken(f"samples {lingering} linger, and the look-ahead waits for room")
                    return
        if not self._looks_on():
            raise Broken("the look-ahead stands still, though there is something to look at and room for it")

    def _looks_on(self) -> bool:
        """Whether the look-ahead goes on in the next step, or was ended."""
        statistics = self._scheduler.statistics()
        return statistics.looking or statistics.stopped

    def _check_forgotten(self) -> None:
        """A job that has ended, or in whose place another one came, is forgotten with its record: nothing of the
        scheduler leads to it, whatever is under way for it."""
        records, runs = self._scheduler.records.values(), self._scheduler.jobs.values()
        for found in reached_from(self._scheduler, JobRun, e.Waiter):  # who waits is the driver's
            if isinstance(found, JobRecord) and found not in records:
                raise Broken(f"the record of job {found.run.name} is reached, which has ended")
            if isinstance(found, JobRun) and found not in runs:
                raise Broken(f"job {found.name} is reached, which has ended")

    def _lingers(self, sample: int) -> bool:
        """Whether its pages stay, though nobody holds it open and nobody is to read it."""
        table = self._table
        return table.state[sample] == State.RECENT and sample not in self._coming and sample not in table.readers

    def at_rest(self) -> None:
        """All readers have stopped, all jobs have ended, nothing is under way. Raises Broken for what is left over."""
        table, statistics = self._table, self._scheduler.statistics()
        for sample in self._samples:
            state = table.state[sample]
            if state not in (State.ABSENT, State.RECENT):
                raise Broken(f"at the end sample {sample} is {STATE_NAMES[state]}")
            if table.pending[sample]:
                raise Broken(f"at the end sample {sample} has {table.pending[sample]} uses to come")
        left = {
            "who were not answered": len(self._waiting),
            "readers who wait": statistics.waiting,
            "open samples": len(table.readers),
            "fetches": statistics.fetches + len(self._flying),
            "samples to drop": statistics.dropping,
            "promised bytes": statistics.keeping.promised_bytes,
            "queued samples": sum(pool.queued for pool in statistics.pools.values()),
            "working lanes": sum(pool.working for pool in statistics.pools.values()),
        }
        for what, count in left.items():
            if count:
                raise Broken(f"at the end {count} {what} are left over")


def reached_from(root: object, *ends: type) -> Iterator[object]:
    """All that an object leads to, without classes, modules, plain values, and what lies behind objects of `ends`.

    Of a function it is what it was made with, and not the module that it stands in.
    """
    seen, left = {id(root)}, [root]
    while left:
        of = left.pop()
        for found in gc.get_referents(of.__closure__ if isinstance(of, FunctionType) else of):
            if gc.is_tracked(found) and id(found) not in seen and not isinstance(found, type | ModuleType):
                seen.add(id(found))
                yield found
                if not isinstance(found, ends):
                    left.append(found)
