"""The part of a lane's batch that a mover has: which samples are plain enough, where copies go, what became of them.

In: a batch, in the lane's thread; from the loop, samples that readers wait for. Out: the end of each sample that the
mover has fetched; the others are left to the lane. Made by `mlfs.engine.lanes`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from mlfs.engine import moves
from mlfs.engine.fetch import Fetcher, ToMove
from mlfs.engine.movers import MoverChannel, MoverTimes
from mlfs.engine.moves import MOST_FILES, Move
from mlfs.places.tier import Spot, Version
from mlfs.plan.scheduler.commands import Item
from mlfs.plan.scheduler.config import SOURCE
from mlfs.plan.scheduler.events import Kept, Landed


class Moving:
    """The samples of a lane's batch that a mover fetches.

    Attributes:
        left: what was given to the mover and is the lane's again, once it is over.

    Args:
        fetch: the batch's number. items: the batch; those that are not plain are left out. stage: whether they are
            pushed. place_of: where an item is to be got from now.
    """

    def __init__(
        self, fetcher: Fetcher, mover: MoverChannel, fetch: int, items: Sequence[Item], stage: bool,
        place_of: Callable[[Item], int],
    ) -> None:  # fmt: skip
        self._fetcher = fetcher
        self._mover = mover
        self._fetch = fetch
        self._shared = fetcher.places.shared
        self._most_bytes = {number: one.place.most_bytes_from_elsewhere for number, one in self._shared.items()}
        files = fetcher.to_move([(item, place_of(item)) for item in items], stage)
        self._given = [
            file for file in files if file.place or not file.item.keep_in or self._takes(file, file.item.keep_in[0])
        ][:MOST_FILES]
        self._numbers = {one.item.sample: number for number, one in enumerate(self._given)}
        # By number, where a copy lies: at a spot of a place, which gives it or keeps it.
        self._spots: dict[int, tuple[int, Spot]] = {}
        self._told: set[int] = set()  # samples of which the end is known
        self._taken_back: set[int] = set()
        self.left: list[Item] = []
        mover.begin()

    def _takes(self, file: ToMove, place: int) -> bool:
        """Whether a mover can write a copy to a place."""
        return file.known.size <= self._most_bytes.get(place, -1)

    def take_back(self, sample: int) -> bool:
        """On the loop: somebody waits for a sample. Whether the mover was to fetch it, has not begun, and will not: if
        it has begun, the end is told as soon as the sample has come."""
        number = self._numbers.get(sample)
        if number is None or sample in self._told or sample in self._taken_back or not self._mover.take_back(number):
            return False
        self._taken_back.add(sample)
        return True

    def run(self, claim: Callable[[int], bool], ended: Callable[[list[Landed], list[Kept]], None]) -> MoverTimes:
        """In the lane's thread: have the mover fetch them. Returns its times.

        Args:
            claim: takes the right to fetch a sample; False: somebody else has it. From then on `take_back` is asked.
            ended: told of samples that have come, and of copies that are kept of them; at once of one that somebody
                waits for, else at the end.

        Raises: OSError, where the mover has died.
        """
        for number, one in enumerate(self._given):
            if not claim(one.item.sample):
                self._taken_back.add(one.item.sample)
                self._mover.take_back(number)
        if not self._given:
            return MoverTimes()
        batch, file_of = self._prepared(), self._fetcher.samples.file_of
        try:
            return self._mover.move(
                batch, [file_of(one.item.sample) for one in self._given], lambda number: ended(*self._ends((number,))),
                lambda number: self._fetcher.look_up(self._given[number].item.sample),
            )  # fmt: skip
        finally:
            ended(*self._ends(range(len(batch))))

    def _prepared(self) -> list[Move]:
        """The samples as the mover gets them, each with the place of a copy."""
        batch = []
        self._spots = self._lent() | self._room()
        for number, file in enumerate(self._given):
            if number in self._spots:
                at, spot = self._spots[number]
                fd, name = self._shared[at].first_fd + spot.file, os.fsencode(spot.name) if spot.name else b""
                is_copied = bool(file.place)
                batch.append(Move(file.path, file.known, file.target, is_copied, fd, spot.offset, name, spot.head))
                continue
            batch.append(Move(file.path, file.known, file.target))
            if file.place or any(not self._takes(file, other) for other in file.item.keep_in):
                self._mover.take_back(number)  # the copy is gone, or a place takes one to which only the lane writes
        return batch

    def _to_fetch(self) -> Iterator[tuple[int, ToMove]]:
        """By their numbers, the samples that nobody has taken back: who has may have a copy kept by now, which room for
        another one would take the place of."""
        return ((at, one) for at, one in enumerate(self._given) if one.item.sample not in self._taken_back)

    def _lent(self) -> dict[int, tuple[int, Spot]]:
        """By the samples' numbers, the copies of this node that they come from, and the places that have them."""
        lent: dict[int, tuple[int, Spot]] = {}
        for place, numbers in _by_place((number, one.place) for number, one in self._to_fetch()).items():
            if place:
                spots = self._shared[place].tier.lend(self._copies(numbers))
                lent |= {number: (place, spot) for number, spot in zip(numbers, spots, strict=True) if spot is not None}
        return lent

    def _room(self) -> dict[int, tuple[int, Spot]]:
        """By the samples' numbers, room for copies in the first of their places that has it."""
        room: dict[int, tuple[int, Spot]] = {}
        left = {number: one.item.keep_in for number, one in self._to_fetch() if not one.place and one.item.keep_in}
        while left:
            by_place = _by_place((number, keep_in[0]) for number, keep_in in left.items())
            left = {number: keep_in[1:] for number, keep_in in left.items() if len(keep_in) > 1}
            for at, wanting in by_place.items():
                numbers = [number for number in wanting if self._takes(self._given[number], at)]
                if not numbers:
                    continue
                place, tier, _ = self._shared[at]
                wanted = self._copies(numbers)
                size_bytes = sum(map(place.footprint_bytes, (version.size_bytes for _, version in wanted)))
                with self._fetcher.places.source.pieces.room_for(place, size_bytes):
                    spots = tier.begin_elsewhere(wanted)
                for number, spot in zip(numbers, spots, strict=True):
                    if spot is not None:
                        room[number] = at, spot
                        left.pop(number, None)
        return room

    def _copies(self, numbers: Iterable[int]) -> list[tuple[bytes, Version]]:
        """The copies of these samples as tiers call them."""
        return [(one.path, one.version) for one in map(self._given.__getitem__, numbers)]

    def _ends(self, numbers: Sequence[int]) -> tuple[list[Landed], list[Kept]]:
        """The ends of those of these samples that the mover has fetched and that were not told before, and of copies.
        The lane has the others again, but for those that were taken back."""
        given, outcomes, fetch, taken_back = self._given, self._mover.outcomes(), self._fetch, self._taken_back
        coming = [number for number in numbers if given[number].item.sample not in self._told]
        self._told.update(given[number].item.sample for number in coming)
        brought = [
            number
            for number in coming
            if outcomes[number] & (moves.READ | moves.COPIED)
            and not outcomes[number] & moves.LEFT
            and given[number].item.sample not in taken_back
        ]
        are_current = self._fetcher.moved([given[number] for number in brought])
        came = {number for number, is_current in zip(brought, are_current, strict=True) if is_current}
        kept_in = self._give_back(coming, came, outcomes)
        used_bytes = {place: self._shared[place].place.used_bytes for place in set(kept_in.values())}
        landed, kept = list[Landed](), list[Kept]()
        for number in coming:
            file = given[number]
            item, place = file.item, file.place
            if number in came:
                is_staged = bool(outcomes[number] & moves.STAGED)
                landed.append(Landed(fetch, item.sample, place, file.known.size, is_staged))
                if item.keep_in and place == SOURCE:
                    at = kept_in.get(number, 0)
                    kept.append(Kept(fetch, item.sample, at, used_bytes.get(at, 0)))
            elif item.sample not in taken_back:
                self.left.append(item)
        return landed, kept

    def _give_back(self, numbers: Iterable[int], came: set[int], outcomes: bytes) -> dict[int, int]:
        """Tell the places of copies that those were written or read. Returns by number the place that keeps a copy."""
        failed, lent = self._mover.failed(), dict[int, list[Spot]]()
        written: dict[int, list[tuple[int, tuple[Spot, bool, int]]]] = {}
        for number in numbers:
            if number not in self._spots:
                continue
            place, spot = self._spots[number]
            if self._given[number].place:
                lent.setdefault(place, []).append(spot)
            else:
                is_whole = number in came and bool(outcomes[number] & moves.KEPT)
                written.setdefault(place, []).append((number, (spot, is_whole, failed[number])))
        for place, spots in lent.items():
            self._shared[place].tier.give_back(spots)
        kept_in: dict[int, int] = {}
        for place, those in written.items():
            are_kept = self._shared[place].tier.put_elsewhere([of for _, of in those])
            kept_in |= {number: place for (number, _), is_kept in zip(those, are_kept, strict=True) if is_kept}
        return kept_in


def _by_place(numbers: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Samples' numbers by place."""
    by_place: dict[int, list[int]] = {}
    for number, place in numbers:
        by_place.setdefault(place, []).append(number)
    return by_place
