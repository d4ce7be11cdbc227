"""Fetches under way: at most one a sample, by lanes ahead of the readers, or for a reader who waits.

Pure. In: samples that the look-ahead wants, samples that readers wait for, ends of fetches. Out: `Fetch` commands, and
which of the ends count. A sample is fetched once at a time however many want it (single flight): `Flying` says by which
fetch, and an end that another fetch reports is ignored.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.commands import Command, Fetch, Item, KeepCopy, Recall
from mlfs.plan.scheduler.config import SOURCE, Limits, PlaceInfo
from mlfs.plan.scheduler.events import FetchEnded, Landed
from mlfs.plan.scheduler.keeping import Keeping
from mlfs.plan.scheduler.pool_queue import PoolQueue, Running, Wanted
from mlfs.plan.scheduler.routing import MeasuredRates, Routing
from mlfs.plan.scheduler.states import SampleTable, Verb

# A block comes for rows in so many parts at most, each as large as a row.
MOST_PARTS = 8
# Rows that lie in a part, at most, for it to come alone.
MOST_ROWS_A_PART = 8


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool of lanes, for the status: samples that wait, lanes at work, lanes that may work."""

    queued: int
    working: int
    allowed: int


class Flying(NamedTuple):
    """A sample that is being fetched.

    Attributes:
        fetch: by which fetch. item: as it was told the driver.
        wanted: for which job and epoch a lane fetches it; None for a reader's fetch.
    """

    fetch: int
    item: Item
    wanted: Wanted | None


class Fetching:
    """The fetches under way, and the queues of samples that wait for a lane.

    Attributes:
        peers_missed: samples that were asked of peers and had to come from somewhere else.
    """

    def __init__(
        self,
        table: SampleTable,
        places: Sequence[PlaceInfo],
        limits: Limits,
        routing: Routing,
        keeping: Keeping,
        rates: MeasuredRates,
        out: list[Command],
    ) -> None:
        self._table = table
        self._routing = routing
        self._keeping = keeping
        self._rates = rates
        self._out = out
        self._pool_of: list[int] = []
        self._is_peer: list[bool] = []
        self._queues: dict[int, PoolQueue] = {}
        self.joined(places)
        self._queues[SOURCE].governor.begin_with(limits.source_lanes_at_first)
        self._queued: dict[int, Wanted] = {}  # by sample; anything else in a queue is outdated
        self._flying: dict[int, Flying] = {}
        self._running: dict[int, Running] = {}
        self._fetches = 0
        self.peers_missed = 0
        self._urgent = False
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether nothing is fetched ahead any more."""
        return self._stopped

    def stop(self, stop: bool) -> None:
        """Fetch nothing ahead any more; or go on after all."""
        self._stopped = stop

    def joined(self, places: Sequence[PlaceInfo]) -> None:
        """Places are there from now on: each has a pool of lanes, and all peers one together."""
        of_peers = self._pool_of[self._is_peer.index(True)] if True in self._is_peer else -1
        for number, place in enumerate(places, len(self._pool_of)):
            peer = place.kind is PlaceKind.PEER
            if peer and of_peers < 0:
                of_peers = number
            pool = of_peers if peer else number
            self._pool_of.append(pool)
            self._is_peer.append(peer)
            if pool == number:
                self._queues[pool] = PoolQueue(pool, place.lanes, peer)

    def helped_by(self, movers: int) -> None:
        """So many lanes of each pool may have other processes do their work; peers' answer without it."""
        for queue in self._queues.values():
            if not queue.of_peers:
                queue.helped_by(movers)

    def statistics(self) -> dict[int, PoolStatistics]:
        """Frozen figures of each pool, by its number."""
        return {
            pool: PoolStatistics(len(queue.items), queue.working, queue.governor.allowed)
            for pool, queue in self._queues.items()
        }

    @property
    def under_way(self) -> int:
        """Samples that are queued or handed to a thread."""
        return len(self._queued) + len(self._flying)

    # -- ahead of the readers

    def reserve_beside(self, sample: int, now_s: float) -> bool:
        """Queue a sample that is ABSENT for a stranger; False where a job's sample waits for a lane of its place."""
        place = self._routing.ahead(sample, self._table.held_by[sample], self._keeping.owner(sample), now_s)
        items = self._queues[self._pool_of[place]].items
        if any(wanted.job for wanted in items):
            return False
        self._table.move(sample, Verb.RESERVE)
        self._queue(Wanted(sample, place))
        return True

    def reserve(self, sample: int, job: int, epoch: int, now_s: float, first: bool = False) -> None:
        """Queue a sample that is ABSENT, at the place where it is got fastest. `first`: before all others there."""
        self._table.move(sample, Verb.RESERVE)
        held_by = self._table.holder(sample)
        place = self._routing.ahead(sample, held_by, self._keeping.owner(sample), now_s)
        self._queue(Wanted(sample, place, job, epoch), first)

    def _queue(self, wanted: Wanted, first: bool = False) -> None:
        self._queued[wanted.sample] = wanted
        items = self._queues[self._pool_of[wanted.place]].items
        if first:
            items.appendleft(wanted)
        else:
            items.append(wanted)

    def dispatch(self, urgent: bool) -> None:
        """Give free lanes their next batches. Args: urgent: readers of this node wait, or did a moment ago."""
        self._urgent = urgent
        for queue in self._queues.values():
            while queue.items and queue.has_lane(urgent):
                batch = queue.take(self._may_begin)
                if not batch:
                    break
                self._fetches += 1
                samples = [of.sample for of in batch]
                self._running[self._fetches] = Running(self._fetches, queue, samples, queue.lane_begins())
                items = [self._begin(self._fetches, of.sample, of.place, of) for of in batch]
                self._out.append(Fetch(self._fetches, queue.pool, items))

    def _may_begin(self, wanted: Wanted) -> bool:
        """Whether a queued sample is still to be fetched. If so, its fetch has begun."""
        queued, table = self._queued, self._table
        if wanted.sample not in queued or queued[wanted.sample] is not wanted:
            return False  # a reader's fetch took it over, and it may have been queued again since
        held_by = table.holder(wanted.sample)
        if (
            held_by
            and wanted.place != held_by
            and self._routing.is_nearest(wanted.sample, held_by, self._keeping.owner(wanted.sample))
        ):
            self._queue(wanted._replace(place=held_by), first=True)  # a copy came to this node after it was queued
            return False
        del queued[wanted.sample]
        is_gone = wanted.sample >= table.blocks.first and not table.has_part(wanted.sample)
        if self._stopped or not table.pending[wanted.sample] or is_gone:
            table.move(wanted.sample, Verb.CANCEL)
            return False
        table.move(wanted.sample, Verb.BEGIN)
        return True

    def _begin(self, fetch: int, sample: int, place: int, wanted: Wanted | None = None) -> Item:
        blocks = self._table.blocks.of(sample)
        if blocks:
            item = Item(sample, place, blocks=tuple(self._block_item(fetch, block, place) for block in blocks))
            item = self._in_parts(fetch, item) if sample >= self._table.first_row else item
        else:
            item = self._item(fetch, sample, place)
        self._flying[sample] = Flying(fetch, item, wanted)
        return item

    def _item(self, fetch: int, sample: int, place: int) -> Item:
        held_by = self._table.held_by[sample]
        elsewhere = held_by and self._is_peer[place]  # a copy is here, and the owner's is got sooner
        keep_in = () if elsewhere else self._keeping.promise(fetch, sample, self._routing.passed_over)
        return Item(sample, place, held_by if held_by != place else 0, keep_in)

    def _block_item(self, fetch: int, block: int, place: int) -> Item:
        """A block of a file that is got from a place: from this node's copy or the owner's, if they are nearer."""
        nearest = self._routing.nearest(block, self._table.held_by[block], self._keeping.owner(block))
        return self._item(fetch, block, SOURCE if self._is_peer[nearest] and not self._is_peer[place] else nearest)

    def _in_parts(self, fetch: int, row: Item) -> Item:
        """The same row, whose blocks come part by part where that gains something.

        Rows are read in a random order: when all blocks have come for their first rows, the reader has had four tenths
        of the rows of 100 kB, and the rest takes what the reader and this process compute. When all eighths have come
        he has had nearly all. Rows that are far smaller, or larger than half a block, gain nothing. A source for which
        more lanes were worth it until all are at work takes its time for each request, and is asked for whole blocks;
        and so is one for which lanes do not wait, and any where other nodes may want them.
        """
        size_bytes, block_bytes = self._table.sizes[row.sample], self._table.blocks.block_bytes
        part_bytes = max(block_bytes // MOST_PARTS, 1 << (size_bytes - 1).bit_length())
        fits = part_bytes < block_bytes and part_bytes <= MOST_ROWS_A_PART * size_bytes
        governor = self._queues[SOURCE].governor
        if not (fits and governor.waits) or governor.allowed == governor.most or any(self._is_peer):
            return row
        parts = [
            block._replace(part_bytes=part_bytes)
            if block.keep_in and not block.place and self._keeping.comes_in_parts(fetch, block.sample)
            else block
            for block in row.blocks
        ]
        return row._replace(blocks=tuple(parts))

    # -- ahead of everybody, for this node's places

    def idle_lane_takes(self) -> int:
        """How many samples a lane of the source can take that nobody else wants now; 0 for no such lane."""
        queue = self._queues[SOURCE]
        return 0 if self._stopped or queue.items or not queue.has_lane(self._urgent) else queue.batch_samples

    def fill(self, samples: Sequence[int]) -> list[int]:
        """Have a lane of the source fetch samples that are ABSENT, for the places of this node that have room.

        Returns those that no place takes: they are not fetched.
        """
        fetch, queue, passed_over = self._fetches + 1, self._queues[SOURCE], self._routing.passed_over
        promised = {sample: self._keeping.promise(fetch, sample, passed_over) for sample in samples}
        items = [Item(sample, SOURCE, 0, keep_in) for sample, keep_in in promised.items() if keep_in]
        if items:
            self._fetches = fetch
            self._running[fetch] = Running(
                fetch, queue, [item.sample for item in items], queue.lane_begins(), fills=True
            )  # fmt: skip
            for item in items:
                self._table.move(item.sample, Verb.FILL)
                self._flying[item.sample] = Flying(fetch, item, Wanted(item.sample, SOURCE))
            self._out.append(Fetch(fetch, SOURCE, items, stage=False))
        return [sample for sample, keep_in in promised.items() if not keep_in]

    def hangs(self, sample: int) -> None:
        """A reader has waited too long for a lane's fetch of the sample: another lane may work in its place.

        The samples behind it in the lane's batch are asked back, the last one first: see `recalled`.
        """
        flying = self._flying
        running = self._running.get(flying[sample].fetch) if sample in flying else None
        if running is not None and not running.hangs:
            running.hang()
            behind = [
                other
                for other in running.samples
                if other != sample and other in flying and flying[other].fetch == running.fetch
            ]
            self._out.extend(Recall(running.fetch, other) for other in reversed(behind))

    def recalled(self, wanted: Wanted, now_s: float) -> None:
        """A lane that hangs gave a sample back, for which nobody waits: queue it anew, first, if it will be read."""
        if self._table.pending[wanted.sample]:
            self.reserve(wanted.sample, wanted.job, wanted.epoch, now_s, first=True)

    def reroute(self, samples: Sequence[int] | None = None) -> None:
        """Queue samples where they are got fastest by now, as their owners have changed. Args: None for all."""
        moved: dict[int, list[Wanted]] = {}
        for sample in list(self._queued) if samples is None else [s for s in samples if s in self._queued]:
            wanted, held_by = self._queued[sample], self._table.holder(sample)
            if held_by and wanted.place == held_by:
                continue
            place = self._routing.nearest(sample, held_by, self._keeping.owner(sample))
            if place != wanted.place:
                self._queued[sample] = wanted._replace(place=place)  # the one that is in line is passed over
                moved.setdefault(self._pool_of[place], []).append(self._queued[sample])
        turn = {sample: number for number, sample in enumerate(self._queued)} if moved else {}
        for pool, wants in moved.items():
            items = self._queues[pool].items
            wants += [wanted for wanted in items if self._queued.get(wanted.sample) is wanted]
            wants.sort(key=lambda wanted: turn[wanted.sample])
            items.clear()
            items.extend(wants)

    def peer_lost(self, place: int) -> None:
        """Queue elsewhere what was to come from a peer that does not answer."""
        self.reroute([wanted.sample for wanted in self._queued.values() if wanted.place == place])

    # -- for a reader who waits

    def for_reader(self, sample: int, place: int) -> int:
        """Fetch a sample at once, in a thread for readers who wait; returns the fetch's number."""
        self._queued.pop(sample, None)
        self._fetches += 1
        self._out.append(Fetch(self._fetches, place, (self._begin(self._fetches, sample, place),), waited_for=True))
        return self._fetches

    def keep_aside(self, sample: int) -> None:
        """Have a place keep what was got without a fetch, if a copy is wanted here and there is none."""
        if self._table.held_by[sample] or sample in self._flying:
            return
        keep_in = self._keeping.promise(self._fetches + 1, sample, self._routing.passed_over)
        if keep_in:
            self._fetches += 1
            self._out.append(KeepCopy(self._fetches, sample, keep_in))

    def fetch_of(self, sample: int) -> int:
        """The fetch that a sample is in, 0 for none."""
        return self._flying[sample].fetch if sample in self._flying else 0

    def forget(self, fetch: int, sample: int) -> Wanted | None:
        """Ignore what a fetch still reports of a sample. Returns for whom a lane had it."""
        if self.fetch_of(sample) != fetch:
            return None
        _, item, wanted = self._flying.pop(sample)
        for part in item.blocks or (item,):
            self._keeping.release_promise(fetch, part.sample)
        return wanted

    # -- ends

    def missed_by_peers(self, ends: Sequence[Landed]) -> list[Wanted]:
        """Those of a batch's samples that a peer was to give, and has not given. Before `landed` of them."""
        missed = [self._flying[end.sample] for end in ends if end.error and self.fetch_of(end.sample) == end.fetch]
        return [of.wanted for of in missed if of.wanted is not None and self._is_peer[of.item.place]]

    def asked_peer(self, flying: Flying) -> bool:
        """Whether the sample was to come from a peer."""
        return self._is_peer[flying.item.place]

    def landed(self, landed: Landed) -> Flying | None:
        """Take in the end of a sample's fetch, and say what it was; None where it does not count, as only the first
        report of it does."""
        sample, flights = landed.sample, self._flying
        if sample not in flights or flights[sample].fetch != landed.fetch:
            return None
        flying = flights[sample]
        del flights[sample]
        item = flying.item
        if item.keep_in and not (item.place or landed.place or landed.error or item.blocks):
            return flying  # most samples: the source has given it, and the promise stays until a place keeps it
        self.peers_missed += self._is_peer[item.place] and (bool(landed.error) or landed.place != item.place)
        if item.blocks:
            ends = {end.sample: end for end in landed.blocks}
            for part in item.blocks:
                self._got(part, ends.get(part.sample, Landed(landed.fetch, part.sample, error=errno.EIO)))
        else:
            self._got(item, landed)
        return flying

    def _got(self, item: Item, landed: Landed) -> None:
        """A sample, or a block of a file, was got or not: whether a copy of it is to be kept, and which there are."""
        sample = item.sample
        if landed.error or not item.keep_in or not (landed.place == SOURCE or self._is_peer[landed.place]):
            self._keeping.release_promise(landed.fetch, sample)
        if not landed.error and item.place and landed.place != item.place and self._table.held_by[sample] == item.place:
            self._keeping.lost(sample)  # the tier turned out not to hold it
        if not landed.error and landed.place and not self._is_peer[landed.place] and not self._table.held_by[sample]:
            self._keeping.found(sample, landed.place)  # a copy from an earlier mount, or one that is about to be kept

    def again_from_source(self, wanted: Wanted) -> None:
        """A peer did not have the sample: queue it first, at the source."""
        self._table.move(wanted.sample, Verb.RESERVE)
        self._queue(wanted._replace(place=SOURCE), first=True)

    def ended(self, ended: FetchEnded, now_s: float) -> None:
        """A lane is free again. Its batch shows how fast the pool is."""
        running = self._running.pop(ended.fetch, None)
        if running is None:
            return
        queue, more = running.queue, bool(running.queue.items) or running.fills
        pool_of, pool = self._pool_of, queue.pool
        done = [
            one.size_bytes - one.read_before_bytes
            for one in ended.landed
            if not one.error and pool_of[one.place] == pool
        ]
        if sum(done) and len(done) == len(ended.landed):
            lanes = running.lanes if more and not queue.holds_back(self._urgent) else 0
            if self._routing.is_probed(queue.pool):  # a probe's few samples count as if all lanes worked like this
                lanes = queue.governor.allowed
            wall_s = ended.wall_s - ended.keeping_s
            self._rates.batch(queue.pool, running.lanes, sum(done), wall_s, len(done), lanes)
        running.give_back()
        queue.ended(
            len(ended.landed), self._work(ended.landed, pool), ended.wall_s, ended.cpu_s, now_s, more, self._urgent
        )

    def _work(self, ends: Sequence[Landed], pool: int) -> float:
        """Counts what a pool has done, in samples. A row counts by the bytes that the place gave for it, which may be
        none, or a block."""
        first_row, sizes, pool_of = self._table.first_row, self._table.sizes, self._pool_of
        work = 0.0
        for one in ends:
            if one.sample < first_row or one.error:
                work += 1
            elif pool_of[one.place] == pool:
                work += (one.size_bytes - one.read_before_bytes) / max(1, sizes[one.sample])
        return work
