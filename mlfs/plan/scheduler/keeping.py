"""Decides which fetched samples this node keeps, and in which of its places.

Pure. In: the plan (mlfs.plan.owners), the places' budgets, samples about to be fetched, copies that came or went. Out:
the places that shall keep a sample. Room is promised when a fetch begins, until the copy is kept, so that no budget is
promised twice.

Without a plan a node keeps what comes first: where no sample is read twice within an epoch, any copies that stay save
equally many reads (docs/model.md, "The bound"). With a plan it keeps what it reads most, and in a cluster only what it
owns or copies. Samples that no job reads are kept in room that no job can fill: a stranger who reads everything beside
a job takes no place from the job's samples. Copies that no job reads any more make room for those that one reads, on a
node without peers (`mlfs.plan.scheduler.evicting`): where nodes plan together, others may count on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.placement import DISK, MEMORY, NOWHERE, ClassRoom, preferred, slower_groups, spare
from mlfs.plan.scheduler.config import SOURCE, PlaceInfo
from mlfs.plan.scheduler.states import SampleTable
from mlfs.served.partition import PAGE_BYTES

# Samples that one step looks through for copies that no job reads: some milliseconds, on the loop.
LOOK_THROUGH = 1 << 18
# A sample that takes more of a place's room than this is not worth the copies that would go for it.
LARGEST_SHARE = 0.25
# Blocks that come part by part at a time: as many as `mlfs.places.pieces` remembers parts of.
MOST_IN_PARTS = 1 << 14
STORES = (PlaceKind.RAM, PlaceKind.SSD, PlaceKind.LMDB)


@dataclass(frozen=True, slots=True)
class Plan:
    """The samples that this node shall keep, and the owners of the rest.

    Attributes:
        classes: by sample, the class that keeps it here: MEMORY, DISK, a slower disk's (`placement.DISK` + n), or
            NOWHERE.
        owner: by sample, the node that owns it, below 0 for none; None for a node alone.
        about: what the plan is about, for `status`.
        takes_over: by node, the bytes of its samples that this one takes over, so that shares become even: of those
            that it reads anyway, the first ones. The node keeps its copies of them.
        evicts_by: where copies make room for others (`mlfs.plan.scheduler.evicting`): how often each sample is read.
    """

    classes: npt.NDArray[np.int8]
    owner: npt.NDArray[np.int16] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    evicts_by: npt.NDArray[np.integer[Any]] | None = None
    takes_over: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Unread:
    """Copies in a place that no job reads: `copies` are those of the samples before `looked_at`, not taken out yet."""

    looked_at: int = 0
    copies: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KeepingStatistics:
    """The copies of the node, and the room that is promised for more.

    Attributes:
        planned: whether there is a plan. about: what it is about.
        promised_bytes: room promised to fetches under way.
        held: samples that each place holds, by the place's number; at 0 those that no place of this node holds.
        no_room, no_room_bytes: samples that were fetched, and that no place had room for.
    """

    planned: bool
    about: Mapping[str, Any]
    promised_bytes: int
    held: tuple[int, ...]
    no_room: int = 0
    no_room_bytes: int = 0


class Keeping:
    """The node's places that store, the room in them, and the plan for them.

    Invariants: a place's used and promised bytes never exceed its capacity by a promise made here; `reserved_bytes` is
    what the samples planned for each class still need (sizes that change and copies that are lost count from the next
    plan on).
    """

    def __init__(self, places: Sequence[PlaceInfo], table: SampleTable) -> None:
        self._places = places
        self._table = table
        self._stores = [number for number, place in enumerate(places) if place.kind in STORES]
        self._only_store = self._stores[0] if len(self._stores) == 1 else 0
        self._used_bytes = [place.used_bytes for place in places]
        self._promised_bytes = [0] * len(places)
        self._promises: dict[int, tuple[int, int, int]] = {}  # sample -> fetch, place, bytes: one a sample
        self._in_parts: set[int] = set()  # blocks of those that come part by part, for rows: their room stays promised
        self._held = [len(table.held_by), *([0] * (len(places) - 1))]  # samples by place, as `held_by` has them
        self._slower = [0] * len(places)
        self._members: Sequence[bytearray] = ()  # of each job, by sample: whether it reads it
        self._spare_bytes: int | None = None  # what samples that no job reads may still take, None: not counted yet
        self._unread: dict[int, _Unread] = {}  # by place, since jobs came or went
        self._lacking_bytes = [0] * len(places)  # by place, what the largest sample takes that it had no room for
        self._no_room: bytearray | None = None  # by sample, whether no place had room for it; made when that happens
        self._plan: Plan | None = None
        self._by_plan: Mapping[int, int] = {}  # what this node takes over by the plan
        self._to_take: dict[int, int] = {}  # by node, the bytes of that which are left
        self._taking: set[int] = set()  # samples that come here for that
        self._taken: list[int] = []
        self.reserved_bytes: list[int] = []

    @property
    def plan(self) -> Plan | None:
        """The plan by which samples are kept, None without one."""
        return self._plan

    @property
    def promised_bytes(self) -> int:
        """The room that places keep free for samples under way."""
        return sum(self._promised_bytes)

    def statistics(self) -> KeepingStatistics:
        plan = self._plan
        lacking = np.flatnonzero(np.frombuffer(self._no_room or b"", dtype=np.uint8))
        return KeepingStatistics(
            plan is not None, plan.about if plan else {}, self.promised_bytes, tuple(self._held),
            len(lacking), int(np.asarray(self._table.sizes)[lacking].sum()),
        )  # fmt: skip

    def owner(self, sample: int) -> int:
        """The node that owns the sample, -1 for none, for this one or for a node alone; of a file in blocks one that
        owns some of them. It is asked by the sample's id: of what only this node calls by it, there is none."""
        if self._plan is None or self._plan.owner is None:
            return -1
        of_file = self._table.blocks.of(sample)
        if (of_file.start if of_file else sample) >= self._table.blocks.own_from:
            return -1
        return int(self._plan.owner[of_file.start : of_file.stop].max() if of_file else self._plan.owner[sample])

    def measured(self, bytes_per_s: Sequence[float]) -> None:
        """The bandwidths of places were measured anew: clearly slower disks are filled last."""
        slower = slower_groups(
            [self._places[number].kind for number in self._stores], [bytes_per_s[number] for number in self._stores]
        )
        for number, group in zip(self._stores, slower, strict=True):
            self._slower[number] = group

    @property
    def capacities_bytes(self) -> list[int]:
        """The capacities that a plan fills: memory, all disks together, and each group of clearly slower disks."""
        capacities = [0] * (DISK + 1 + max(self._slower))
        for number in self._stores:
            ram = self._places[number].kind is PlaceKind.RAM
            capacities[MEMORY if ram else DISK + self._slower[number]] += self._places[number].capacity_bytes
        return capacities

    @property
    def stores(self) -> Sequence[int]:
        """The places of this node that keep copies, by number."""
        return self._stores

    def unread(self, place: int) -> list[int] | None:
        """Some copies that a place holds and no job reads; the caller takes out of the list what it evicts.

        The list is empty where the part that was looked through has none, and more of the place is to be looked
        through. None stands for no such copies: there are none in the whole place, or there are no jobs, so that nobody
        knows what will be read, or other nodes count on what this one keeps.
        """
        if not self._members or (self._plan is not None and self._plan.owner is not None):
            return None
        unread = self._unread.setdefault(place, _Unread())
        if unread.copies:
            return unread.copies
        begin, end = unread.looked_at, min(unread.looked_at + LOOK_THROUGH, self._table.first_row)
        if begin == end:
            return None
        held = self._table.holders[begin:end] == place
        for member in self._members:
            held &= np.frombuffer(member, dtype=np.uint8)[begin:end] == 0
        unread.looked_at, unread.copies = end, (begin + np.flatnonzero(held)).tolist()
        return unread.copies

    @property
    def evicts_from(self) -> int:
        """The place whose copies make room for others, 0 for none: the plan has to say so, and to be about memory."""
        if self._plan is None or self._plan.evicts_by is None or len(self._stores) != 1:
            return 0
        return self._stores[0] if self._places[self._stores[0]].kind is PlaceKind.RAM else 0

    def capacity_bytes(self, place: int) -> int:
        """The most bytes that a place may hold."""
        return self._places[place].capacity_bytes

    def free_bytes(self, place: int) -> int:
        """The bytes of a place that are neither used nor promised."""
        return self._places[place].capacity_bytes - self._used_bytes[place] - self._promised_bytes[place]

    def lacking_bytes(self, place: int) -> int:
        """The bytes of the largest sample that the place had no room for since copies last made room in it."""
        return self._lacking_bytes[place]

    def footprint_bytes(self, place: int, sample: int) -> int:
        return self._places[place].footprint_bytes(self._table.sizes[sample])

    def uses(self, place: int, used_bytes: int) -> None:
        """Note how many bytes a place holds after it has given copies up."""
        self._used_bytes[place], self._lacking_bytes[place] = used_bytes, 0

    def holds(self) -> npt.NDArray[np.bool_]:
        """By sample, whether this node holds it or is about to: a fetch of it is under way that a place waits for."""
        holds: npt.NDArray[np.bool_] = self._table.holders != 0
        holds[list(self._promises)] = True
        return holds

    def held_by_node(self, node: int, samples: npt.NDArray[np.int64]) -> None:
        """A node owns samples that the plan gives to others, as it holds them. Args: node: -1 for this one.

        A sample that this node holds as well stays as it is planned: no node has a use for the other copy.
        """
        if self._plan is None or self._plan.owner is None:
            return
        owner, classes = self._plan.owner, self._plan.classes
        if node < 0:
            classes[samples] = np.where(classes[samples] == NOWHERE, MEMORY, classes[samples])
            owner[samples] = -1
            return
        here = np.frombuffer(self._table.held_by, dtype=np.uint8)[samples] != 0
        there = samples[~(here | np.isin(samples, list(self._promises)))]
        for sample in there[classes[there] != NOWHERE].tolist():
            self._need_no_more(sample, int(classes[sample]))
        owner[there], classes[there] = node, NOWHERE

    def take_over(self) -> npt.NDArray[np.int64]:
        """The samples that this node has taken over from others since it was last asked: they are not told of it."""
        taken, self._taken = self._taken, []
        return np.array(taken, dtype=np.int64)

    def _takes(self, sample: int) -> bool:
        """Whether this node takes a sample over that another one owns and that is about to come here."""
        if sample in self._taking:  # the fetch before was taken back
            return True
        owner, footprint = self.owner(sample), self._table.footprint(sample)
        if 2 * self._to_take.get(owner, 0) < footprint or not footprint:
            return False
        self._to_take[owner] -= footprint
        self._taking.add(sample)
        return True

    def adopt(self, plan: Plan | None) -> None:
        """Keep samples by this plan from now on."""
        takes_over = plan.takes_over if plan is not None else {}
        if takes_over is not self._by_plan:  # else the same plan begins again, as an epoch does
            self._by_plan, self._to_take = takes_over, dict(takes_over)
            self._taking.clear()
            self._taken.clear()
        self._plan = plan = self._by_block(plan)
        self.reserved_bytes = []
        if plan is None:
            return
        if plan.owner is not None:  # who owns what may change (`held_by_node`), and the plan is not ours to write to
            self._plan = replace(plan, classes=plan.classes.copy(), owner=plan.owner.copy())
        sizes = self._table.kept_sizes.astype(np.int64)
        sizes += -sizes % PAGE_BYTES
        missing = self._table.holders == 0
        levels = range(max(2, int(plan.classes.max(initial=NOWHERE)) + 1))
        self.reserved_bytes = [int(sizes[missing & (plan.classes == level)].sum()) for level in levels]

    def _by_block(self, plan: Plan | None) -> Plan | None:
        """The plan for blocks, where it is about files in blocks. None of their copies makes room for others."""
        blocks = self._table.blocks
        if plan is None or not len(blocks):
            return plan
        classes, owner = plan.classes.copy(), plan.owner.copy() if plan.owner is not None else None
        classes[blocks.first :] = np.where(
            classes[blocks.first :] == NOWHERE, blocks.of_files(classes), classes[blocks.first :]
        )
        classes[blocks.files_now()] = NOWHERE
        if owner is not None:
            owner[blocks.first :] = np.where(owner[blocks.first :] < 0, blocks.of_files(owner), owner[blocks.first :])
            owner[blocks.files_now()] = -1
        return replace(plan, classes=classes, owner=owner, evicts_by=None)

    def jobs_read(self, members: Sequence[bytearray]) -> None:
        """Jobs came or went: for each of them, by sample, whether it reads it. Without jobs all samples are alike."""
        self._members, self._spare_bytes = [self._table.by_block(member) for member in members], None
        self._unread.clear()
        for block in [one for one in self._in_parts if not any(member[one] for member in self._members)]:
            self._release(block)

    def _is_spare(self, sample: int) -> bool:
        """Whether there is room for a sample that no job reads, beyond what the jobs' samples can fill."""
        if self._spare_bytes is None:  # counted when it is first asked for: most mounts have no strangers
            sizes = self._table.kept_sizes.astype(np.int64)
            sizes += -sizes % PAGE_BYTES
            taken = self._table.holders != 0
            for member in self._members:
                taken |= np.frombuffer(member, dtype=np.uint8)[: len(taken)] != 0
            total = sum(self._places[number].capacity_bytes for number in self._stores)
            self._spare_bytes = total - int(sizes[taken].sum())
        footprint = self._table.footprint(sample)
        if footprint > self._spare_bytes:
            return False
        self._spare_bytes -= footprint
        return True

    def promise(self, fetch: int, sample: int, passed_over: Sequence[bool]) -> tuple[int, ...]:
        """The places that shall keep a sample about to be fetched, the best first; room in the first is promised.

        Args:
            passed_over: by place, whether it gets nothing new.
        """
        held_by = self._table.held_by[sample]
        if held_by:  # its room stays: if the copy is lost or outdated, the new one takes its place
            return () if passed_over[held_by] else (held_by,)
        if not self._stores:
            return ()
        if sample in self._promises:  # another fetch gets it, for a row maybe, or its copy is about to be kept
            place = self._promises[sample][1]
            is_block = sample >= self._table.blocks.first  # whoever gets a block first has it kept
            return (place,) if is_block and not passed_over[place] else ()
        if self._members and not any(member[sample] for member in self._members) and not self._is_spare(sample):
            return ()
        size, wanted = self._table.sizes[sample], MEMORY
        if self._plan is None and self._only_store:  # a shortcut: the rest gives the same
            return self._promise_only(fetch, sample, size, passed_over)
        if self._plan is not None:
            wanted = int(self._plan.classes[sample])
            if wanted == NOWHERE and self._plan.owner is not None:
                if not self._takes(sample):
                    return ()
                wanted = MEMORY
        numbers = [number for number in self._stores if not passed_over[number]]
        rooms = [self._room(number, size) for number in numbers]
        if self._plan is not None:
            rooms = spare(rooms, wanted, self.reserved_bytes)
        chosen = preferred(size, rooms, wanted)
        if not chosen:
            for number, room in zip(numbers, rooms, strict=True):
                self._lacks(number, sample, 0 if 0 < room.largest_bytes < size else room.footprint_bytes)
            return ()
        first = numbers[chosen[0]]
        bytes_ = rooms[chosen[0]].footprint_bytes
        self._promises[sample] = fetch, first, bytes_
        self._promised_bytes[first] += bytes_
        return tuple(numbers[index] for index in chosen)

    def is_promised(self, sample: int) -> bool:
        """Whether a fetch of the sample is under way, or just over, and a place is going to keep what it brings."""
        return sample in self._promises and sample not in self._in_parts

    def comes_in_parts(self, fetch: int, block: int) -> bool:
        """Whether a block that a fetch gets for a row, to be kept, may come part by part: in memory, as each part is
        written once more when the block is whole; and unless another fetch gets all of it."""
        by, place, _ = self._promises.get(block, (-1, SOURCE, 0))
        if self._places[place].kind is PlaceKind.RAM and by == fetch and len(self._in_parts) < MOST_IN_PARTS:
            self._in_parts.add(block)
        return block in self._in_parts

    def has_room(self, sample: int) -> bool:
        """Whether a place of this node has room for the sample, if that is for anybody."""
        size = self._table.sizes[sample]
        rooms = (self._room(number, size) for number in self._stores)
        return any(room.footprint_bytes <= room.free_bytes and not 0 < room.largest_bytes < size for room in rooms)

    def _promise_only(self, fetch: int, sample: int, size_bytes: int, passed_over: Sequence[bool]) -> tuple[int, ...]:
        """Promise room in the only place that stores; there is no plan."""
        number = self._only_store
        place = self._places[number]
        bytes_ = place.footprint_bytes(size_bytes)
        free = place.capacity_bytes - self._used_bytes[number] - self._promised_bytes[number]
        if passed_over[number]:
            return ()
        too_large = 0 < place.largest_bytes < size_bytes
        if too_large or bytes_ > free:
            self._lacks(number, sample, 0 if too_large else bytes_)
            return ()
        self._promises[sample] = fetch, number, bytes_
        self._promised_bytes[number] += bytes_
        return (number,)

    def _lacks(self, number: int, sample: int, bytes_: int) -> None:
        """A place has no room for a sample, however many copies go where `bytes_` is 0."""
        if self._no_room is None:
            self._no_room = bytearray(self._table.first_row)
        self._no_room[sample] = 1
        if bytes_ <= LARGEST_SHARE * self._places[number].capacity_bytes:
            self._lacking_bytes[number] = max(self._lacking_bytes[number], bytes_)

    def _room(self, number: int, size_bytes: int) -> ClassRoom:
        place = self._places[number]
        free = place.capacity_bytes - self._used_bytes[number] - self._promised_bytes[number]
        return ClassRoom(
            place.kind, free, place.footprint_bytes(size_bytes), place.largest_bytes, self._slower[number]
        )  # fmt: skip

    def release_promise(self, fetch: int, sample: int) -> None:
        """Take a promise back: the fetch keeps nothing, or its copy is there and counts as used."""
        promises = self._promises
        if sample in promises and promises[sample][0] == fetch:
            self._release(sample)

    def _release(self, sample: int) -> None:
        _, place, bytes_ = self._promises.pop(sample)
        self._promised_bytes[place] -= bytes_
        self._in_parts.discard(sample)

    def kept(self, copies: Iterable[tuple[int, int, int, int]]) -> None:
        """Fetches have ended, and places keep samples: (fetch, sample, place, what that holds now); 0: none does."""
        for fetch, sample, place, used_bytes in copies:
            self.release_promise(fetch, sample)
            if sample in self._in_parts and place:
                self._release(sample)
            if place:
                self._used_bytes[place] = used_bytes
                self.found(sample, place)
                if sample in self._taking:
                    self._taking.discard(sample)
                    self._taken.append(sample)

    def found(self, sample: int, place: int) -> None:
        """A place holds a copy."""
        if self._unread:
            self._note_unread(sample, place)
        if self._plan is not None and self.reserved_bytes and not self._table.held_by[sample]:
            planned = int(self._plan.classes[sample])
            if planned != NOWHERE:
                self._need_no_more(sample, planned)
        self._hold(sample, place)

    def _need_no_more(self, sample: int, planned: int) -> None:
        """No room of the class is needed for a sample any more that is planned for it."""
        self.reserved_bytes[planned] = max(0, self.reserved_bytes[planned] - self._table.footprint(sample))

    def _note_unread(self, sample: int, place: int) -> None:
        """A copy that no job reads came after its part was looked through: found late, or a stranger's."""
        unread = self._unread.get(place)
        if unread is None or sample >= unread.looked_at or self._table.held_by[sample] == place:
            return
        if not any(member[sample] for member in self._members):
            unread.copies.append(sample)

    def lost(self, sample: int) -> None:
        """No place of this node holds the sample any more."""
        self._hold(sample, 0)

    def _hold(self, sample: int, place: int) -> None:
        self._held[self._table.hold(sample, place)] -= 1
        self._held[place] += 1
        if self._no_room is not None:
            self._no_room[sample] = 0
