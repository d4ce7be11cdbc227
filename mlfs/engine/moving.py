"""The part of a lane's batch that a mover has: which samples are plain enough, where copies go, what became of them.

In: a batch, in the lane's thread; from the loop, samples that readers wait for. Out: the end of each sample that the
mover has fetched; the others are left to the lane. Made by `mlfs.engine.lanes`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from mlfs.engine import moves
from mlfs.engine.fetch import Fetcher
from mlfs.engine.movers import MoverChannel, MoverTimes
from mlfs.engine.moves import Move
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
            pushed. places_of: where items are to be got from now.
    """

    def __init__(
        self, fetcher: Fetcher, mover: MoverChannel, fetch: int, items: Sequence[Item], stage: bool,
        places_of: Callable[[Sequence[Item]], list[int]],
    ) -> None:  # fmt: skip
        self._fetcher = fetcher
        self._mover = mover
        self._fetch = fetch
        self._shared = shared = fetcher.places.shared
        # By place, the longest copy that a mover can write to it.
        self._longest = longest = [-1] * (1 + len(fetcher.places.storing))
        for number, one in shared.items():
            longest[number] = one.place.most_bytes_from_elsewhere
        plain = [
            file
            for file in fetcher.to_move([*zip(items, places_of(items), strict=True)], stage)
            if file.place or not file.item.keep_in or file.known.size <= longest[file.item.keep_in[0]]
        ]
        self._given = plain[: moves.most_files(max([len(file.path) for file in plain], default=0))]
        # Samples of the batch are called by their numbers in it from here on.
        self._numbers = {one.item.sample: number for number, one in enumerate(self._given)}
        # Where copies lie: each at a spot of a place, which gives it or keeps it.
        self._spots: dict[int, tuple[int, Spot]] = {}
        self._told: set[int] = set()  # those of which the end is known
        self._taken_back: set[int] = set()
        self.left: list[Item] = []
        mover.begin()

    def take_back(self, sample: int) -> bool:
        """On the loop: somebody waits for a sample. Whether the mover was to fetch it, has not begun, and will not: if
        it has begun, the end is told as soon as the sample has come."""
        number = self._numbers.get(sample)
        if number is None or number in self._told or number in self._taken_back or not self._mover.take_back(number):
            return False
        self._taken_back.add(number)
        return True

    def run(
        self, claim: Callable[[Collection[int]], Collection[int]], ended: Callable[[list[Landed], list[Kept]], None]
    ) -> MoverTimes:
        """In the lane's thread: have the mover fetch them. Returns its times.

        Args:
            claim: takes the right to fetch samples, and says of which; somebody else has the others. From then on
                `take_back` is asked.
            ended: told of samples that have come, and of copies that are kept of them; at once of one that somebody
                waits for, else at the end.

        Raises: OSError, where the mover has died.
        """
        if not self._given:
            return MoverTimes()
        claimed = claim(self._numbers)
        for number, one in enumerate(self._given):
            if one.item.sample not in claimed:
                self._taken_back.add(number)
                self._mover.take_back(number)
        batch = self._prepared()
        try:
            return self._mover.move(
                batch, [one.entry for one in self._given], lambda number: ended(*self._ends((number,))),
                lambda number: self._fetcher.look_up(self._given[number].item.sample),
            )  # fmt: skip
        finally:
            ended(*self._ends(range(len(batch))))

    def _prepared(self) -> list[Move]:
        """The samples as the mover gets them, each with the place of a copy."""
        # Who has taken a sample back may have a copy kept by now, which room for another one would take the place of.
        to_fetch = [(number, one) for number, one in enumerate(self._given) if number not in self._taken_back]
        copied = {number: one.place for number, one in to_fetch if one.place}
        self._spots = spots = self._lent(copied)
        self._spots |= self._room({number: one.item.keep_in for number, one in to_fetch if number not in copied})
        longest, batch = self._longest, list[Move]()
        for number, file in enumerate(self._given):
            if number in spots:
                at, spot = spots[number]
                fd, name = self._shared[at].first_fd + spot.file, os.fsencode(spot.name) if spot.name else b""
                is_copied = bool(file.place)
                batch.append(Move(file.path, file.known, file.target, is_copied, fd, spot.offset, name, spot.head))
                continue
            batch.append(Move(file.path, file.known, file.target))
            if file.place or any(file.known.size > longest[other] for other in file.item.keep_in):
                self._mover.take_back(number)  # the copy is gone, or a place takes one to which only the lane writes
        return batch

    def _lent(self, places: Mapping[int, int]) -> dict[int, tuple[int, Spot]]:
        """The copies of this node that samples come from, at these places."""
        lent: dict[int, tuple[int, Spot]] = {}
        for place in dict.fromkeys(places.values()):
            numbers = [number for number, at in places.items() if at == place]
            spots = self._shared[place].tier.lend(self._copies(numbers))
            lent |= {number: (place, spot) for number, spot in zip(numbers, spots, strict=True) if spot is not None}
        return lent

    def _room(self, wanted: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, Spot]]:
        """Room for copies, in the first of the places that each wants which has it."""
        given, longest, room = self._given, self._longest, dict[int, tuple[int, Spot]]()
        left = {number: keep_in for number, keep_in in wanted.items() if keep_in}
        while left:
            for at in dict.fromkeys([keep_in[0] for keep_in in left.values()]):
                numbers = [
                    number
                    for number, keep_in in left.items()
                    if keep_in[0] == at and given[number].known.size <= longest[at]
                ]
                if not numbers:
                    continue
                place, tier, _ = self._shared[at]
                footprints = (place.footprint_bytes(given[number].known.size) for number in numbers)
                with self._fetcher.places.source.pieces.room_for(place, footprints):
                    spots = tier.begin_elsewhere(self._copies(numbers))
                room |= {number: (at, spot) for number, spot in zip(numbers, spots, strict=True) if spot is not None}
            left = {number: keep_in[1:] for number, keep_in in left.items() if number not in room and keep_in[1:]}
        return room

    def _copies(self, numbers: Iterable[int]) -> list[tuple[bytes, Version]]:
        """The copies of these samples as tiers call them."""
        given = self._given
        return [(given[number].path, Version(*given[number].known[:3])) for number in numbers]

    def _ends(self, numbers: Sequence[int]) -> tuple[list[Landed], list[Kept]]:
        """The ends of those of these samples that the mover has fetched and that were not told before, and of copies.
        The lane has the others again, but for those that were taken back."""
        given, outcomes, fetch, taken_back = self._given, self._mover.outcomes(), self._fetch, self._taken_back
        coming = [number for number in numbers if number not in self._told]
        self._told.update(coming)
        brought = [
            number
            for number in coming
            if outcomes[number] & (moves.READ | moves.COPIED)
            and not outcomes[number] & moves.LEFT
            and number not in taken_back
        ]
        are_current = self._fetcher.moved([given[number] for number in brought])
        came = {number: given[number] for number, is_current in zip(brought, are_current, strict=True) if is_current}
        kept_in = self._give_back(coming, came, outcomes)
        used_bytes = {0: 0} | {place: self._shared[place].place.used_bytes for place in set(kept_in.values())}
        self.left += [given[number].item for number in coming if number not in came and number not in taken_back]
        landed = [
            Landed(fetch, file.item.sample, file.place, file.known.size, bool(outcomes[number] & moves.STAGED))
            for number, file in came.items()
        ]
        kept = [
            Kept(fetch, file.item.sample, place := kept_in.get(number, 0), used_bytes[place])
            for number, file in came.items()
            if file.item.keep_in and file.place == SOURCE
        ]
        return landed, kept

    def _give_back(self, numbers: Iterable[int], came: Container[int], outcomes: bytes) -> dict[int, int]:
        """Tell the places of copies that those were written or read. Returns by number the place that keeps a copy."""
        given, failed, kept_in = self._given, self._mover.failed(), dict[int, int]()
        spots = [(number, *self._spots[number]) for number in numbers if number in self._spots]
        for place in dict.fromkeys([place for _, place, _ in spots]):
            tier = self._shared[place].tier
            here = [(number, spot) for number, at, spot in spots if at == place]
            tier.give_back([spot for number, spot in here if given[number].place])
            written = [(number, spot) for number, spot in here if not given[number].place]
            are_kept = tier.put_elsewhere(
                [
                    (spot, number in came and bool(outcomes[number] & moves.KEPT), failed[number])
                    for number, spot in written
                ]
            )
            kept_in |= {number: place for (number, _), is_kept in zip(written, are_kept, strict=True) if is_kept}
        return kept_in
