"""The part of a lane's batch that a mover has: which samples are plain enough, where copies go, what became of them.

In: a batch, in the lane's thread; from the loop, samples that readers wait for. Out: the end of each sample that the
mover has fetched; the others are left to the lane. Made by `mlfs.engine.lanes`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mlfs.engine import moves
from mlfs.engine.fetch import Fetched, Fetcher, ToMove
from mlfs.engine.movers import MoverChannel, MoverTimes
from mlfs.engine.moves import MOST_FILES, Move
from mlfs.places.tier import Spot
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
    """A sample that was given to the mover, its file as it was then, where the bytes come from, and where a copy lies:
    at `spot` of the place `at`, which gives it or keeps it; 0 for none."""

    item: Item
    file: ToMove
    place: int
    at: int
    spot: Spot | None
    move: Move


class Moving:
    """The samples of a lane's batch that a mover fetches.

    Attributes:
        left: what was given to the mover and is the lane's again, once it is over.

    Args:
        items: the batch; those that are not plain are left out. stage: whether they are pushed. place_of: where an
            item is to be got from now.
    """

    def __init__(
        self, fetcher: Fetcher, mover: MoverChannel, items: Sequence[Item], stage: bool, place_of: Callable[[Item], int]
    ) -> None:
        self._fetcher = fetcher
        self._mover = mover
        self._stage = stage
        self._shared = fetcher.places.shared
        self._sizes = fetcher.samples.sizes
        places = [(item, place_of(item)) for item in items]
        self._items = [one for one in places if self._is_plain(*one)][:MOST_FILES]
        self._numbers = {item.sample: number for number, (item, _) in enumerate(self._items)}
        self._told: set[int] = set()  # samples of which the end is known
        self._taken_back: set[int] = set()
        self.left: list[Item] = []
        mover.begin()

    def _is_plain(self, item: Item, place: int) -> bool:
        keeps = not place and item.keep_in
        return not (keeps and not self._takes(item.sample, item.keep_in[0])) and self._fetcher.is_plain(item, place)

    def _takes(self, sample: int, place: int) -> bool:
        """Whether a mover can write a copy to a place."""
        return place in self._shared and self._shared[place].place.takes_from_elsewhere(int(self._sizes[sample]))

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
        for number, (item, _) in enumerate(self._items):
            if not claim(item.sample):
                self._taken_back.add(item.sample)
                self._mover.take_back(number)
        given = self._prepared()

        def end(number: int) -> None:
            one = given[number]
            if one.item.sample not in self._told:
                self._told.add(one.item.sample)
                moved = self._end(one, number)
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
        return times

    def _prepared(self) -> list[_Given]:
        """The samples as the mover gets them."""
        files = [self._fetcher.before_move(item.sample, self._stage) for item, _ in self._items]
        spots = self._lent(files) | self._room(files)
        given = []
        for number, ((item, place), file) in enumerate(zip(self._items, files, strict=True)):
            at, spot = spots.get(number, (0, None))
            move = Move(file.path, file.known, file.target)
            if spot is not None:
                fd = self._shared[at].first_fd + spot.file
                move = Move(*move[:3], bool(place), fd, spot.offset, os.fsencode(spot.name), spot.head)
            elif place or any(not self._takes(item.sample, other) for other in item.keep_in):
                self._mover.take_back(number)  # the copy is gone, or a place takes one to which only the lane writes
            given.append(_Given(item, file, place, at, spot, move))
        return given

    def _to_fetch(self) -> Iterator[tuple[int, tuple[Item, int]]]:
        """By their numbers, the samples that nobody has taken back: who has may have a copy kept by now, which room for
        another one would take the place of."""
        return ((at, one) for at, one in enumerate(self._items) if one[0].sample not in self._taken_back)

    def _lent(self, files: Sequence[ToMove]) -> dict[int, tuple[int, Spot | None]]:
        """By the samples' numbers, the copies of this node that they come from, and the places that have them."""
        key = self._fetcher.samples.key
        return {
            number: (place, self._shared[place].tier.lend(key(item.sample), files[number].version))
            for number, (item, place) in self._to_fetch()
            if place
        }

    def _room(self, files: Sequence[ToMove]) -> dict[int, tuple[int, Spot | None]]:
        """By the samples' numbers, room for copies in the first of their places that has it."""
        room: dict[int, tuple[int, Spot | None]] = {}
        left = {number: item.keep_in for number, (item, place) in self._to_fetch() if not place and item.keep_in}
        samples = self._fetcher.samples
        while left:
            by_place: dict[int, list[int]] = {}
            for number, keep_in in left.items():
                if self._takes(self._items[number][0].sample, keep_in[0]):
                    by_place.setdefault(keep_in[0], []).append(number)
            left = {number: keep_in[1:] for number, keep_in in left.items() if len(keep_in) > 1}
            for at, numbers in by_place.items():
                place, tier, _ = self._shared[at]
                wanted = [(samples.key(self._items[number][0].sample), files[number].version) for number in numbers]
                size_bytes = sum(place.footprint_bytes(version.size_bytes) for _, version in wanted)
                with self._fetcher.places.source.pieces.room_for(place, size_bytes):
                    spots = tier.begin_elsewhere(wanted)
                for number, spot in zip(numbers, spots, strict=True):
                    if spot is not None:
                        room[number] = at, spot
                        left.pop(number, None)
        return room

    def _end(self, one: _Given, number: int) -> Moved | None:
        """The end of a sample that the mover has fetched; None of one that it has left, or that is of the past."""
        sample, outcome = one.item.sample, self._mover.outcome(number)
        came = bool(outcome & (moves.READ | moves.COPIED)) and not outcome & moves.LEFT
        came = came and sample not in self._taken_back
        came = came and self._fetcher.moved(sample, one.file.generation, one.place)
        kept_in = used_bytes = 0
        if one.spot is not None:
            place, tier, _ = self._shared[one.at]
            if one.place:
                tier.give_back(one.spot)
            elif tier.put_elsewhere(one.spot, came and bool(outcome & moves.KEPT), self._mover.failed(number)):
                kept_in = one.at
            used_bytes = place.used_bytes
        if not came:
            return None
        version, staged = one.file.version, bool(outcome & moves.STAGED)
        fetched = Fetched(sample, one.place, version.size_bytes, None, version, staged)
        return Moved(one.item, fetched, kept_in, used_bytes)
