"""The part of a lane's batch that a mover has: which samples are plain enough, where copies go, what became of them.

In: a batch, in the lane's thread; from the loop, samples that readers wait for. Out: the end of each sample that the
mover has fetched; the others are left to the lane. Made by `mlfs.engine.lanes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mlfs.engine import moves
from mlfs.engine.fetch import Fetched, Fetcher, ToMove
from mlfs.engine.movers import MoverChannel, MoverTimes
from mlfs.engine.moves import MOST_FILES, Move
from mlfs.places.place import SOURCE, Places, TierPlace
from mlfs.places.ram import RamTier
from mlfs.places.ram_records import Extent
from mlfs.plan.scheduler.commands import Item


class Moved(NamedTuple):
    """The end of a sample that a mover has fetched.

    Attributes:
        kept_in: the place that keeps a copy, 0 for none. used_bytes: what that place holds now.
    """

    item: Item
    fetched: Fetched
    kept_in: int
    used_bytes: int


class _Given(NamedTuple):
    """A sample that was given to the mover, its file as it was then, and where a copy goes."""

    item: Item
    file: ToMove
    extent: Extent | None
    move: Move


class _Memory(NamedTuple):
    """The place whose memory movers write to, its number and its tier."""

    number: int
    place: TierPlace
    tier: RamTier


def _memory_of(places: Places) -> _Memory | None:
    for number, place in enumerate(places.storing, 1):
        if isinstance(place, TierPlace) and (tier := place.for_movers()) is not None:
            return _Memory(number, place, tier)
    return None


class Moving:
    """The samples of a lane's batch that a mover fetches.

    Attributes:
        left: what was given to the mover and is the lane's again, once it is over.

    Args:
        items: the batch; those that are not plain are left out. stage: whether they are pushed.
    """

    def __init__(self, fetcher: Fetcher, mover: MoverChannel, items: Sequence[Item], stage: bool) -> None:
        self._fetcher = fetcher
        self._mover = mover
        self._stage = stage
        self._memory = _memory_of(fetcher.places)
        self._items = [item for item in items if self._is_plain(item)][:MOST_FILES]
        self._numbers = {item.sample: number for number, item in enumerate(self._items)}
        self._told: set[int] = set()  # samples of which the end is known
        self._taken_back: set[int] = set()
        self.left: list[Item] = []
        mover.begin()

    def _is_plain(self, item: Item) -> bool:
        keeps = item.keep_in and (self._memory is None or item.keep_in[0] != self._memory.number)
        return not keeps and self._fetcher.is_plain(item)

    def take_back(self, sample: int) -> bool:
        """On the loop: somebody waits for a sample. Whether the mover was to fetch it, has not begun, and will not: if
        it has begun, the end is told as soon as the sample has come."""
        number = self._numbers.get(sample)
        if number is None or sample in self._told or sample in self._taken_back or not self._mover.take_back(number):
            return False
        self._taken_back.add(sample)
        return True

    def run(self, claim: Callable[[int], bool], ended: Callable[[Moved], None]) -> MoverTimes:
        """In the lane's thread: have the mover fetch them. Returns its times.

        Args:
            claim: takes the right to fetch a sample; False: somebody else has it. From then on `take_back` is asked.
            ended: told of each sample that has come; at once where somebody waits for it, else at the end.

        Raises: OSError, where the mover has died.
        """
        for number, item in enumerate(self._items):
            if not claim(item.sample):
                self._taken_back.add(item.sample)
                self._mover.take_back(number)
        memory, given = self._prepared()

        def end(number: int) -> None:
            one = given[number]
            if one.item.sample not in self._told:
                self._told.add(one.item.sample)
                moved = self._end(one, self._mover.outcome(number))
                if moved is not None:
                    ended(moved)
                elif one.item.sample not in self._taken_back:
                    self.left.append(one.item)

        times = MoverTimes()
        try:
            if given:
                times = self._mover.move(
                    [one.move for one in given], [self._fetcher.samples.file_of(one.item.sample) for one in given], end,
                    lambda number: self._fetcher.look_up(given[number].item.sample),
                )  # fmt: skip
        finally:
            for number in range(len(given)):
                end(number)
            if self._memory is not None and memory >= 0:
                self._memory.tier.end_elsewhere(memory)
        return times

    def _prepared(self) -> tuple[int, list[_Given]]:
        """The samples as the mover gets them, and the file of the memory where copies go, -1 for none."""
        files = [self._fetcher.before_move(item.sample, self._stage) for item in self._items]
        memory, extents = self._extents(files)
        given = []
        for number, (item, file) in enumerate(zip(self._items, files, strict=True)):
            extent = extents.get(number)
            if extent is None and len(item.keep_in) > 1:
                self._mover.take_back(number)  # another place takes it, to which the lane writes
            where = (-1, 0) if extent is None else (extent.file, extent.offset)
            given.append(_Given(item, file, extent, Move(file.path, file.known, file.target, *where)))
        return memory, given

    def _extents(self, files: Sequence[ToMove]) -> tuple[int, dict[int, Extent | None]]:
        """Room for copies in memory: its file, and by the samples' numbers where."""
        kept = [number for number, item in enumerate(self._items) if item.keep_in]
        if self._memory is None or not kept:
            return -1, {}
        place, tier, samples = self._memory.place, self._memory.tier, self._fetcher.samples
        wanted = [(samples.key(self._items[number].sample), files[number].version) for number in kept]
        size_bytes = sum(tier.footprint_bytes(version.size_bytes) for _, version in wanted)
        with self._fetcher.places.source.pieces.room_for(place, size_bytes):
            memory, extents = tier.begin_elsewhere(wanted)
        return memory, dict(zip(kept, extents, strict=True))

    def _end(self, one: _Given, outcome: int) -> Moved | None:
        """The end of a sample that the mover has fetched; None of one that it has left, or that is of the past."""
        sample = one.item.sample
        came = bool(outcome & moves.READ) and not outcome & moves.LEFT and sample not in self._taken_back
        came = came and self._fetcher.moved(sample, one.file.generation)
        kept_in = used_bytes = 0
        if self._memory is not None and one.extent is not None:
            if self._memory.tier.put_elsewhere(one.extent, came and bool(outcome & moves.KEPT)):
                kept_in = self._memory.number
            used_bytes = self._memory.tier.used_bytes
        if not came:
            return None
        version, staged = one.file.version, bool(outcome & moves.STAGED)
        return Moved(one.item, Fetched(sample, SOURCE, version.size_bytes, None, version, staged), kept_in, used_bytes)
