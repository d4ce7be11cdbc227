"""All that one node decides, as one state machine: `step(now_s, events) -> commands`.

Pure: no trio, no threads, no I/O, no clock, no callbacks. In: events (mlfs.plan.scheduler.events) with the time at
which they are told. Out: commands (mlfs.plan.scheduler.commands), in the order in which they are to be carried out.
The daemon drives it with threads and pages (mlfs.engine), the simulator with modelled durations and many nodes
(mlfs.lab.sim.detailed): what one decides in a trace, the other decides in the same trace.

These are the parts, each with its own state:

- `states`: a sample's life. `window`: what lingers and is dropped, and how large the window is.
- `following`: the jobs, each with one record (`job_record`). `look_ahead`: uses that are counted ahead, and rounds of
  orders that mlfs serves. `shards_ahead`: the same of blocks of large files. `strangers_ahead`: what is fetched ahead
  for readers without a job, as `neighbours` learns.
- `fetching`: single flight and lanes (`pool_queue`). `waiting`: readers who wait, and second tries. `routing`: the
  place that a sample is fetched from.
- `keeping`: what is kept, and where. `evicting`: which copies make room. `warming`: copies for this node's places
  before anybody reads. `rest_of_files`: the same of files that were read for the most part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from mlfs.follow.job import JobRun
from mlfs.plan.file_blocks import FileBlocks
from mlfs.plan.loader_load import JobLoad
from mlfs.plan.scheduler import events as e
from mlfs.plan.scheduler.commands import Command, Count, Digested, Fault, Item, LayTripwires, WakeAt
from mlfs.plan.scheduler.config import SOURCE, Limits, PlaceInfo
from mlfs.plan.scheduler.evicting import Evicting
from mlfs.plan.scheduler.fetching import Fetching
from mlfs.plan.scheduler.following import Following
from mlfs.plan.scheduler.job_record import JobRecord
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.look_ahead import Ahead, nearest
from mlfs.plan.scheduler.rest_of_files import RestOfFiles
from mlfs.plan.scheduler.routing import MeasuredRates, Routing
from mlfs.plan.scheduler.shards_ahead import ShardsAhead
from mlfs.plan.scheduler.states import SampleTable, State, Verb
from mlfs.plan.scheduler.statistics import Statistics
from mlfs.plan.scheduler.strangers_ahead import StrangersAhead
from mlfs.plan.scheduler.waiting import Waiting
from mlfs.plan.scheduler.warming import Warming
from mlfs.plan.scheduler.window import Pressure, Window

# Samples that one step looks at ahead of the readers, if they lie in the page cache. A driver has others to serve
# between two steps, and a lane that is done with its batch (`pool_queue`: BATCH_S, at most 64 samples) wants the next.
LOOK_A_STEP = 256
# So many of them take no longer than one that is to be fetched.
AS_ONE_FETCH = 4


class Scheduler:
    """One node's decisions: its parts, and who of them takes in which event.

    Args:
        sizes: bytes by sample; the caller keeps them up to date.
        places: those of this node, the source first.
        rates: takes what lanes measure.
        known_source: what an earlier measurement says of the source, by class of sizes (`Routing`).
        goes_on: a bug in taking an event in is reported by Fault, and costs what that event is about; else it raises.
        blocks: see `SampleTable`.

    Attributes:
        table: the samples' records, for others to read. shards: the large files that jobs read or will, the same.
    """

    def __init__(
        self,
        sizes: memoryview,
        places: Sequence[PlaceInfo],
        limits: Limits,
        rates: MeasuredRates,
        known_source: Mapping[int, float] | None = None,
        goes_on: bool = False,
        blocks: FileBlocks | None = None,
    ) -> None:
        out: list[Command] = []
        table = SampleTable(sizes, limits.window_bytes, blocks)
        window = Window(table, out)
        routing = Routing(places, sizes, rates, known_source or {}, out)
        keeping = Keeping(places, table)
        fetching = Fetching(table, places, limits, routing, keeping, rates, out)
        self.table = table
        self._out = out
        self.window, self._routing, self._keeping, self.fetching = window, routing, keeping, fetching
        self._pressure = Pressure(limits.window_bytes)
        self._strangers_ahead = StrangersAhead(table)
        self.shards = ShardsAhead(table)
        self._following = Following(table, window, keeping, self._strangers_ahead, self.shards, out)
        self._jobs, self._rank_waits = self._following.records, self._following.rank_waits
        self._waiting = Waiting(table, limits, window, routing, keeping, fetching, self._rank_waits, out)
        self.warming = Warming(table, keeping, fetching)
        self._rest_of_files = RestOfFiles(table, keeping, fetching)
        self._evicting = Evicting(table, keeping, out)
        self._look = self._seen = False
        self._read_waited_s = 0.0  # beside what `Waiting` counts: after the open, which no choice of a place changes
        self._wake_s, self._goes_on = math.inf, goes_on
        self.handlers: dict[type, Callable[[Any, float], None]] = {
            e.ReadsSeen: self._reads_seen,
            e.Opened: lambda opened, now_s: self._following.opened(opened),
            e.Refused: self._released,
            e.Released: self._released,
            e.Waits: self._waits,
            e.ReadersWaited: self._readers_waited,
            e.SourceGave: self._source_gave,
            e.BlockReached: self._block_reached,
            e.AheadOfReader: lambda ahead, now_s: self.shards.ahead_of_reader(ahead.sample),
            e.MostWasAsked: lambda asked, now_s: self._rest_of_files.bring(asked.blocks),
            e.Touched: self._touched,
            e.Landed: self._landed,
            e.FetchEnded: self._fetch_ended,
            e.Recalled: self._recalled,
            e.Kept: lambda kept, now_s: self._have_kept((kept,)),
            e.CopiesFound: self._copies_found,
            e.CopyLost: self._copy_lost,
            e.Dropped: self._dropped,
            e.Holds: lambda holds, now_s: self.keeping.uses(*holds),
            e.Evicted: lambda evicted, now_s: self._evicting.evicted(*evicted),
            e.PagesLost: self._pages_lost,
            e.ReadAside: self._read_aside,
            e.Outdated: self._outdated,
            e.Resized: self._resized,
            e.JobInstalled: self._job_installed,
            e.JobEnded: self._job_ended,
            e.EpochKnown: self._epoch_known,
            e.EpochUnknown: self._epoch_unknown,
            e.JobBroken: lambda broken, now_s: self._following.broken(broken.job, broken.error),
            e.SourceHung: self._source_hung,
            e.Planned: self._planned,
            e.HeldBy: self._held_by,
            e.PlacesMeasured: lambda measured, now_s: self._keeping.measured(measured.bytes_per_s),
            e.PeersJoined: self._peers_joined,
            e.PeerLost: self._peer_lost,
            e.PeerBack: self._peer_back,
            e.Helped: lambda helped, now_s: self.fetching.helped_by(helped.movers),
            e.WarmUp: lambda warm_up, now_s: self.warming.begin(warm_up.samples),
            e.Stopped: self._stopped,
            e.TimePassed: self._time_passed,
        }

    # -- what others may see

    @property
    def jobs(self) -> Mapping[str, JobRun]:
        return self._following.jobs

    @property
    def records(self) -> Mapping[int, JobRecord]:
        """All that is known of each job, by the record's number."""
        return self._jobs

    def reads(self) -> int:
        """Reads that jobs have counted so far."""
        return sum(job.run.observed for job in self._jobs.values())

    def staged(self, most: int) -> list[int]:
        """Samples that are staged and will be read, the soonest needed first; at most so many."""
        return self._following.staged(most)

    def most_untold(self, files: int) -> int:
        """How many reads may be told of together, as nothing hinges on one of them: they come as predicted, or nobody
        predicts anything, and all that is read soon is in place. 0: each is to be told as soon as may be.

        Args:
            files: of the mount.
        """
        if self._look or self.fetching.under_way or self.window.is_scarce:
            return 0
        return self._following.most_untold(files)

    @property
    def keeping(self) -> Keeping:
        """The part that decides what is kept."""
        return self._keeping

    @property
    def capacities_bytes(self) -> list[int]:
        """The room that a plan fills, by class (`Keeping.capacities_bytes`)."""
        return self._keeping.capacities_bytes

    @property
    def waiters(self) -> Mapping[int, Sequence[e.Waiter]]:
        """By sample, those who wait for it, the first to come first. From any thread."""
        return self._waiting.waiters

    def place_of(self, item: Item) -> int:
        """The place to get an item from now: a copy may have been kept here since the source was chosen. From any
        thread."""
        return self.places_of((item,))[0]

    def places_of(self, items: Sequence[Item]) -> list[int]:
        """`place_of` of many items."""
        held_by = self.table.held_by
        return [item.place if item.place or item.instead else held_by[item.sample] for item in items]

    def where(self, sample: int) -> tuple[int, int]:
        """The place to read the sample from now, and this node's place with a copy for when that fails, 0 for none."""
        held_by = self.table.held_by[sample]
        place = self._routing.for_reader(sample, held_by, self._keeping.owner(sample))
        return place, held_by if held_by != place else 0

    def statistics(self) -> Statistics:
        """The figures of all parts, frozen."""
        table, fetching = self.table, self.fetching
        return Statistics(
            table.window_bytes, table.window_capacity_bytes, self.window.dropping, self._waiting.waiting,
            self._waiting.waited_s, fetching.under_way, self._look, fetching.stopped, fetching.peers_missed,
            fetching.statistics(), self._routing.statistics(), self._keeping.statistics(),
            {job.run.name: job.times.statistics() for job in self._jobs.values()},
            self._strangers_ahead.statistics(), self._pressure.full_bytes, self.warming.statistics(),
            {job.run.name: dict(job.waited_s) for job in self._jobs.values() if job.waited_s},
        )  # fmt: skip

    def loads(self, now_s: float) -> Mapping[str, JobLoad]:
        """By job, what its ranks' loaders do with their time: computed when asked for, which costs milliseconds.

        Jobs of which no batch was read yet are missing.
        """
        return self._following.loads(now_s)

    def ahead(self, name: str) -> tuple[Ahead, ...]:
        """The samples staged ahead of each local rank of a job; nothing for a job that is not followed."""
        job = self._following.named(name)
        return job.uses.ahead(self.table) if job is not None else ()

    # -- the step

    def step(self, now_s: float, events: Iterable[e.Event]) -> list[Command]:
        """Take events in, in their order, and decide."""
        taken, event = iter(events), None
        before = self.table.window_bytes
        try:
            for event in taken:
                self.handlers[type(event)](event, now_s)
            event = None
            self._decide(now_s, self.table.window_bytes < before)
        except Exception as error:
            if not self._goes_on:
                raise
            self._out.append(Fault(event, error))
            if event is not None:
                return self.step(now_s, taken)  # goes on with the other events
        commands = self._out[:]
        self._out.clear()
        return commands

    def _decide(self, now_s: float, room_came_free: bool) -> None:
        """Decide what follows from the events that were taken in."""
        if self._seen:
            self._seen = False
            self._judge(now_s)
        self.window.retire(*self._strangers_ahead.expired(now_s))
        if self._look or room_came_free:
            self._look_ahead(now_s)
        if not self._look and not self.fetching.stopped:
            self._strangers_ahead.fetch(now_s, partial(self.fetching.reserve_beside, now_s=now_s))
        before = self.table.window_bytes
        self._evicting.make_room(self._jobs)
        self.fetching.dispatch(self._waiting.is_urgent(now_s))
        if self.shards.by_file and not self._look:
            self._fill_ahead()
        if self.table.window_bytes < before:  # queued samples that nobody needs any more gave their room back
            self._look = True
        if not self._look:
            self.warming.dispatch()
            self._rest_of_files.dispatch()
        self.window.send()
        self._set_alarm(now_s)

    def _set_alarm(self, now_s: float) -> None:
        """Ask to be woken when a waiting time ends, or at once where the look-ahead has more to do."""
        due_s = min(self._waiting.next_due_s(), self._strangers_ahead.next_due_s(), self._pressure.next_due_s())
        wake_s = now_s if self._look or self.warming.has_more or self._rest_of_files.has_more else due_s
        if wake_s < self._wake_s:
            self._wake_s = wake_s
            self._out.append(WakeAt(wake_s))

    def _time_passed(self, _: e.TimePassed, now_s: float) -> None:
        self._wake_s = math.inf
        self._waiting.time_passed(now_s)
        if self._pressure.time_passed(now_s):
            self.table.set_window_capacity(self._pressure.bytes)
            self._look = True

    # -- reads

    def _reads_seen(self, seen: e.ReadsSeen, now_s: float) -> None:
        self.table.opened([read.sample for read in seen.reads])
        if seen.waits:
            for read in seen.reads:
                self._following.read_one(read, waits=True)
        else:
            self._following.read(seen.reads)
        self._closed(seen.released)
        self._seen = self._seen or bool(seen.reads)

    def _released(self, released: e.Released | e.Refused, now_s: float) -> None:
        if isinstance(released, e.Refused):
            self._following.refused(released.sample, released.process)
        self._closed((released.sample,))

    def _closed(self, samples: Sequence[int]) -> None:
        free = self.table.closed(samples)
        if self.table.has_rows:
            first_row, state = self.table.first_row, self.table.state
            if rows := [row for row in free if row >= first_row and state[row] == State.STAGED]:
                self._out.append(LayTripwires(rows))
        self._rank_waits.closed(free)
        self.window.retire(*free)
        if self.shards.by_file:
            self._following.blocks_over(self.shards.ended(free))

    def _waits(self, waits: e.Waits, now_s: float) -> None:
        self._waiting.wait(waits.waiter, now_s)
        if not waits.waiter.is_peer:
            waiting = self._waiting.waiting
            for job in self._jobs.values():
                job.times.waiting(waiting)

    def _readers_waited(self, waited: e.ReadersWaited, now_s: float) -> None:
        self._read_waited_s += waited.seconds
        self._rank_waits.waited(waited.sample, waited.seconds, opened=True)

    def _source_gave(self, gave: e.SourceGave, now_s: float) -> None:
        self._following.source_gave(gave.sample, gave.size_bytes)

    def _block_reached(self, reached: e.BlockReached, now_s: float) -> None:
        table, block = self.table, reached.sample
        if reached.lost and table.state[block] in (State.STAGED, State.RECENT):
            is_needed = table.state[block] == State.STAGED
            table.move(block, Verb.LOSE)
            if is_needed and self._pressure.lost(1, table.footprint(block), self.reads(), now_s):
                table.set_window_capacity(self._pressure.bytes)
        self._following.blocks_over(self.shards.reached(reached.sample))

    def _touched(self, touched: e.Touched, now_s: float) -> None:
        if self.table.state[touched.sample] == State.DROPPING and self.window.rescue(touched.sample):
            self.table.move(touched.sample, Verb.TOUCH)

    def _judge(self, now_s: float) -> None:
        """After reads, judge the jobs' predictions and the places."""
        waited_s = self._waiting.waited_s
        self._routing.judge(now_s, waited_s)
        self._following.judge(now_s, waited_s + self._read_waited_s)
        self._look = self._look or bool(self._jobs)
        self._out.append(Digested())

    # -- looking ahead

    def _look_ahead(self, now_s: float) -> None:
        """Have what is needed soonest staged, until the window is full, nothing is left, or LOOK_A_STEP is reached.

        Large files are only noted, as many as are read at once. Then their blocks are staged, before more is looked at.
        """
        looked, shards, readers, table = 0, self.shards, self._following.readers(), self.table
        first_block, largest_whole, state = table.blocks.first, table.blocks.above_bytes, table.state
        in_place = State.STAGED, State.RECENT
        while looked < LOOK_A_STEP and not self.fetching.stopped:
            found = None if shards.are_enough(readers) else nearest(job.uses for job in self._jobs.values())
            if found is None:
                shard = shards.next()
                if shard is None:
                    break
                block = shard.blocks[shard.looked]
                if not self._want(block, shard.job, shard.epoch, now_s):
                    self._is_full()
                    return
                table.expect(block)
                shards.took(shard)
                looked += AS_ONE_FETCH
                continue
            uses, rank = found
            before = uses.looked
            for sample, epoch in uses.coming(rank, table.window_capacity_bytes):
                if sample < first_block and table.sizes[sample] > largest_whole and table.blocks.of(sample):
                    if shards.are_enough(readers):
                        break
                    shards.expect(sample, uses.number, epoch, uses.line_of(rank, uses.cursors[rank]))
                elif state[sample] in in_place and table.window_bytes <= table.window_capacity_bytes:
                    looked -= AS_ONE_FETCH - 1
                elif not self._want(sample, uses.number, epoch, now_s):
                    self._is_full()
                    return
                table.expect(sample)
            looked += AS_ONE_FETCH * (uses.looked - before)
        else:
            self._look = not self.fetching.stopped
            return
        self._look = False

    def _is_full(self) -> None:
        """The window has no room for what comes next: whatever makes room looks again."""
        self.window.retire(*self._strangers_ahead.give_back())
        self._look = False

    def _want(self, sample: int, job: int, epoch: int, now_s: float) -> bool:
        """Have a sample staged; False when that has to wait for room, or for its pages to be gone."""
        table = self.table
        if table.window_bytes > table.window_capacity_bytes:  # readers who waited went over it
            self.window.make_room(0)
            return False
        state = table.state[sample]
        if state == State.DROPPING:
            return self.window.rescue(sample)
        if state != State.ABSENT:
            return state != State.GOING
        footprint = table.footprint(sample)
        if footprint > table.window_capacity_bytes:  # it never fits: left to the readers
            return True
        if table.window_bytes + footprint > table.window_capacity_bytes:
            self.window.make_room(footprint)
            return False
        self.fetching.reserve(sample, job, epoch, now_s)
        return True

    def _fill_ahead(self) -> None:
        """Have lanes of the source that have nothing else to do bring blocks for this node's places, in their order."""
        while (most := self.fetching.idle_lane_takes()) and (batch := self.shards.to_fill(most)):
            if len(self.fetching.fill(batch)) == len(batch):
                self.shards.no_room()
            self._look = self._look or not self.shards.are_enough(self._following.readers())

    # -- ends of fetches, copies and drops

    def _landed(self, landed: e.Landed, now_s: float) -> None:
        """A sample's fetch has ended: update its state first, then answer those who wait."""
        sample, table, waiters = landed.sample, self.table, self._waiting.waiters
        flying = self.fetching.landed(landed)
        if flying is None:
            return
        wanted = flying.wanted
        if landed.error:
            peer = self.fetching.asked_peer(flying)
            if wanted is None:
                self._waiting.failed(sample, landed.error, now_s, peer)
            else:
                self._lane_failed(sample, landed.error, peer, now_s)
            self._look = True
            return
        is_block = table.blocks.first <= sample < table.first_row
        if landed.place == SOURCE and wanted is not None:
            needs = self._following.who_needs(sample) if is_block and not wanted.job else None
            job, epoch = needs or (wanted.job, wanted.epoch)
            if job in self._jobs:
                self._jobs[job].run.bytes_read.count_pfs(epoch, landed.size_bytes - landed.read_before_bytes)
        table.move(sample, Verb.LAND if landed.staged else Verb.FAIL)
        if not landed.staged:
            self._look = True
        if sample in self.window.outdated and self.window.landed(sample, landed.staged):
            self._waiting.outdated(sample, now_s)
            return
        if is_block and landed.staged:
            self.shards.landed(sample)
        if sample in self.warming.under_way:
            self.warming.landed(landed)
            self._stage_again(sample, now_s)
        if wanted is not None and not landed.staged and sample in waiters:
            self._waiting.begin(sample, now_s)
            return
        # A reader who has waited to open a file closes it, which ends the use of its pages; a block is not closed, and
        # one who waited in a READ may have closed the file before this is told.
        read_soon = not is_block and sample in waiters and any(not one.in_read for one in waiters[sample])
        if sample in waiters:
            self._waiting.landed(sample, now_s)
        if not read_soon and table.state[sample] == State.RECENT:
            self.window.retire(sample)
        if is_block and not landed.staged and wanted is not None and not wanted.job:
            self._stage_again(sample, now_s)  # it was brought for places, and the look-ahead has come to it by now

    def _lane_failed(self, sample: int, error: int, peer: bool, now_s: float) -> None:
        """A lane's fetch failed: the sample is left to its reader. The source gives one that a peer did not have."""
        self.table.move(sample, Verb.FAIL)
        self.window.landed(sample, False)
        self.warming.failed(sample)
        if not peer:
            self._out.append(Count("prefetch_failed"))
        self._waiting.failed(sample, error, now_s)

    def _fetch_ended(self, ended: e.FetchEnded, now_s: float) -> None:
        missed = self.fetching.missed_by_peers(ended.landed)
        for landed in ended.landed:
            self._landed(landed, now_s)
        self.fetching.ended(ended, now_s)
        for wanted in reversed(missed):
            if self.table.state[wanted.sample] == State.ABSENT and self.table.pending[wanted.sample]:
                self.fetching.again_from_source(wanted)
        self._have_kept(ended.kept)

    def _recalled(self, recalled: e.Recalled, now_s: float) -> None:
        if self.fetching.fetch_of(recalled.sample) != recalled.fetch:
            return
        wanted = self.fetching.forget(recalled.fetch, recalled.sample)
        self.warming.taken_back(recalled.sample)
        if not self._waiting.recalled(recalled.sample, now_s) and wanted is not None:
            self.fetching.recalled(wanted, now_s)

    def _have_kept(self, copies: Sequence[e.Kept]) -> None:
        self._keeping.kept(copies)
        if self.warming.under_way:
            for kept in copies:
                self.warming.kept(kept.sample, kept.place)

    def _copies_found(self, found: e.CopiesFound, now_s: float) -> None:
        for sample in found.samples:
            if not self.table.held_by[sample]:
                self._keeping.found(sample, found.place)

    def _copy_lost(self, lost: e.CopyLost, now_s: float) -> None:
        if lost.sample < self.table.first_row:  # a row is kept by its blocks
            self._keeping.lost(lost.sample)

    def _dropped(self, dropped: e.Dropped, now_s: float) -> None:
        self.window.dropped(tuple(dropped.samples))
        for sample in dropped.samples:
            if sample in self._waiting.waiters:
                self._waiting.begin(sample, now_s)
        self._look = True

    def _pages_lost(self, lost: e.PagesLost, now_s: float) -> None:
        """Samples that will be read are staged again, before all others; one that is open now is left to its READs."""
        table = self.table
        gone = sum(map(table.footprint, lost.samples))
        for sample in reversed(lost.samples):  # the one needed soonest comes to stand first
            if table.state[sample] not in (State.STAGED, State.RECENT) or sample in table.readers:
                continue
            table.move(sample, Verb.LOSE)
            self._stage_again(sample, now_s)
        # Only now, as the kernel takes first what was staged first: in a window that is full of what is needed last,
        # what is needed soonest would find no room.
        if self._pressure.lost(len(lost.samples), gone, self.reads(), now_s):
            table.set_window_capacity(self._pressure.bytes)
        self._look = True

    def _read_aside(self, read: e.ReadAside, now_s: float) -> None:
        self._strangers_ahead.pages_gone(read.sample)
        self.fetching.keep_aside(read.sample)

    def _stage_again(self, sample: int, now_s: float) -> None:
        """A sample is ABSENT although a job may need it: then it is staged before anything else, if there is room."""
        predicted = self.table.pending[sample] > self._strangers_ahead.counted(sample)
        needs = self._following.who_needs(sample) if predicted else None
        if needs is not None and self.table.fits_window(sample) and not self.fetching.stopped:
            self.fetching.reserve(sample, *needs, now_s, first=True)

    def _outdated(self, outdated: e.Outdated, now_s: float) -> None:
        self.window.has_changed(outdated.sample)

    def _resized(self, resized: e.Resized, now_s: float) -> None:
        self.table.resize(*resized)
        for job in self._jobs.values():
            job.run.resized(resized.sample, resized.new_bytes - resized.old_bytes)
        if self.table.blocks.ever_of(resized.sample).start >= self.table.blocks.own_from:
            self._following.jobs_changed()  # a file that jobs read has grown, and has other blocks
        self._look = True

    # -- jobs, epochs, plans

    def _job_installed(self, installed: e.JobInstalled, now_s: float) -> None:
        self._following.install(installed.job)
        self._look = True

    def _job_ended(self, ended: e.JobEnded, now_s: float) -> None:
        self._following.end(ended.name)
        self._look = True

    def _epoch_known(self, known: e.EpochKnown, now_s: float) -> None:
        self._following.epoch_known(known)
        self._look = True

    def _epoch_unknown(self, unknown: e.EpochUnknown, now_s: float) -> None:
        self._following.epoch_unknown(unknown.job, unknown.epoch)

    def _source_hung(self, _: e.SourceHung, now_s: float) -> None:
        self._routing.come_back(now_s)

    def _planned(self, planned: e.Planned, now_s: float) -> None:
        self._keeping.adopt(planned.plan)
        if planned.plan is not None and planned.plan.owner is not None:
            self.fetching.reroute()

    def _held_by(self, held: e.HeldBy, now_s: float) -> None:
        self._keeping.held_by_node(held.node, held.samples)
        self.fetching.reroute(held.samples.tolist())

    # -- peers

    def _peers_joined(self, joined: e.PeersJoined, now_s: float) -> None:
        self._routing.joined(joined.places)
        self.fetching.joined(joined.places)

    def _peer_lost(self, lost: e.PeerLost, now_s: float) -> None:
        self._routing.peer_lost(lost.place, True)
        self.fetching.peer_lost(lost.place)
        self._out.append(Count("peer_lost"))

    def _peer_back(self, back: e.PeerBack, now_s: float) -> None:
        self._routing.peer_lost(back.place, False)

    def _stopped(self, stopped: e.Stopped, now_s: float) -> None:
        self.fetching.stop(stopped.stop)
        self._look = not stopped.stop
