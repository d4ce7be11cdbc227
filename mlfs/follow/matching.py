"""Which position of the predicted streams an observed open belongs to, and how far each rank is.

Pure: no I/O, no clock. In: the local ranks' predicted streams (entry ids per epoch), then observed opens (entry,
process, its parent). Out: matched positions, positions given up, the agreement. Called by the engine's job on the loop.

Linear position: an epoch's base (sum of the lengths of the epochs before) plus the index within the epoch.

An open agrees when it is what its process is to open next: `mlfs.follow.lanes` says what that is, once the shape of the
loader (batch, workers, slack) is known. The shape is learned from the opens themselves (`mlfs.follow.learning`); those
opens are then counted anew. What process, rank and worker go together follows from where a process begins.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from itertools import islice

from mlfs.follow.epoch_index import EpochIndex, Ids, Match
from mlfs.follow.lanes import Cell, Lane, Place, Shape, lane_of
from mlfs.follow.learning import Seen, learn
from mlfs.follow.progress import Given, RankProgress
from mlfs.follow.readers import Open, Reader, first_opens_of_late

__all__ = ["RECENT_OPENS", "EpochIndex", "Ids", "Match", "Open", "StreamMatcher"]

RECENT_OPENS = 256
FEWEST_OPENS = 48
REMEMBERED_READERS = 4096
REMEMBERED_OPENS = 2048
REMEMBERED_EPOCHS = 512
LANES_OF_A_PROCESS = 6
FAR_STREAK = 6
MOST_SKIPPED = 8
LEAST_UNFIT = 2
MOST_UNFIT = 512
LEAST_LAG = 256
BATCHES_OF_LAG = 16
GUESSED_WORKERS = 64
SURE_STREAK = 8


class StreamMatcher:
    """Matches opens to positions for one job.

    Args:
        n_ranks: local ranks.
        batch_size: positions of a rank's batch, as far as known: where to look first.
        start: linear position each rank starts at.
        stream_length: samples per rank in the first epoch (scales the tolerances).
        shape: what is known of the loader.
        starts: linear position of each rank, in place of `start`.
        single: whether a batch of 1 that workers share is credible (see `mlfs.follow.learning`).
        one_rank: whether a process reads for one rank only, as torch's do.

    Attributes:
        epochs: the loaded epochs. The caller adds and removes.
        history: the last opens; those of no consequence (repeated at once) left out.
    """

    def __init__(
        self,
        n_ranks: int,
        batch_size: int,
        start: int,
        stream_length: int,
        shape: Shape | None = None,
        starts: Iterable[int] | None = None,
        single: bool = True,
        one_rank: bool = False,
    ) -> None:
        self.shape, self.shape_known = shape or Shape(), shape is not None
        self.batch_size = batch_size
        self.single = single
        self.one_rank = one_rank
        self.stream_length = stream_length
        self.starts = list(starts) if starts is not None else [start] * n_ranks
        self.ranks = [RankProgress(at) for at in self.starts]
        self.skip = max(1, min(MOST_SKIPPED, stream_length // 16))
        self.lag = self._lag()
        self.epochs: dict[int, EpochIndex] = {}
        self.history: deque[Open] = deque(maxlen=REMEMBERED_OPENS)
        self.observed = self.agreed = 0
        self.cells: OrderedDict[tuple[int, int], Cell] = OrderedDict()
        self._readers: OrderedDict[int, Reader] = OrderedDict()
        self._ranks_below: OrderedDict[int, frozenset[int]] = OrderedDict()
        self._unfit, self._unfit_at_most = 0, LEAST_UNFIT
        self._in_a_row = 0  # the last opens, so many at least, were predicted: agreement is asked for all the time
        self._lost = False  # the history had been full before some of it was disowned

    # -- agreement

    def agreement_of_last(self, opens: int) -> float:
        """Share of the last opens that were predicted; 0.0 before any."""
        if self._in_a_row >= min(opens, len(self.history)) > 0:
            return 1.0
        agrees = [seen.agrees for seen in islice(reversed(self.history), opens)]
        return sum(agrees) / len(agrees) if agrees else 0.0

    @property
    def recent_opens(self) -> int:
        """How many opens `agreement` is about."""
        return min(RECENT_OPENS, len(self.history))

    @property
    def agreement(self) -> float | None:
        """Share of the last 256 opens that were predicted; None before any open."""
        return self.agreement_of_last(RECENT_OPENS) if self.history else None

    @property
    def drifting(self) -> bool:
        """Whether the prediction fails: under 50 % of the recent opens agreed."""
        return self.recent_opens >= FEWEST_OPENS and self.agreement_of_last(RECENT_OPENS) < 0.5

    # -- opens

    def observe(self, entry: int, process: int, parent: int = 0) -> tuple[Match | None, list[tuple[int, Given]]]:
        """Record an open. Returns the position it is matched to (None: none), and what is given up: rank, positions.

        Args:
            process: who opened; all threads of a process are one. parent: its parent process, 0 when unknown: the
                workers of a rank have one parent.

        A sample opened again by its last reader is no new evidence: (None, []) and nothing is counted.
        """
        reader = self._readers.get(process)
        if reader is None or not reader.lanes:
            return self._observe_other(entry, process, parent, reader)
        lane = reader.lanes[0]
        if lane.next_entry != entry or lane.far or lane.first >= 0 or reader.again:
            return self._observe_other(entry, process, parent, reader)
        # What comes 10,000 times a second: the next of the lane.
        reader.last_entry = entry
        reader.streak += 1
        rank, position, cell = lane.rank_index, lane.next_position, lane.cell
        lane.advance()
        self.observed += 1
        self.agreed += 1
        cell.observed += 1
        cell.agreed += 1
        self.history.append(Open(entry, process, parent, cell, True, rank, position))
        self._in_a_row += 1
        given = self.ranks[rank].take(position, self.lag)
        return Match(rank, position), [(rank, given)] if given else []

    def fits(self, entry: int, process: int) -> bool:
        """Whether the open would be predicted by what is loaded; nothing is recorded."""
        reader = self._readers.get(process)
        if reader is not None and (reader.last_entry == entry or any(x.next_entry == entry for x in reader.lanes)):
            return True
        places = self._places(entry)
        if reader is not None and any(self._ahead(lane, place) >= 0 for lane in reader.lanes for place in places):
            return True
        return any(self._begins(place) for place in places)

    def follows(self, process: int) -> bool:
        """Whether the last opens of a process, too many for chance, all came as predicted."""
        reader = self._readers.get(process)
        return reader is not None and reader.streak >= SURE_STREAK

    def disown(self, process: int) -> None:
        """The last opens of a process turned out to be of another job: those that disagreed are not counted."""
        self._lost = self._lost or len(self.history) == REMEMBERED_OPENS
        own = [at for at, seen in enumerate(self.history) if seen.process == process][-SURE_STREAK:]
        for at in reversed(own):
            seen = self.history[at]
            if not seen.agrees:
                del self.history[at]
                self.observed -= 1
                seen.cell.observed -= 1

    def forget(self, opens: Iterable[Open]) -> None:
        """These opens will be counted elsewhere: as they are counted by now, those that still are."""
        left = Counter((seen.entry, seen.process) for seen in opens)
        for seen in reversed(self.history):
            if left[seen.entry, seen.process] > 0:
                left[seen.entry, seen.process] -= 1
                seen.cell.observed -= 1
                seen.cell.agreed -= seen.agrees

    def _observe_other(
        self, entry: int, process: int, parent: int, reader: Reader | None
    ) -> tuple[Match | None, list[tuple[int, Given]]]:
        """An open that is not simply the next one of its process."""
        places = self._places(entry)
        if self.one_rank and reader is not None and reader.rank_index >= 0:
            places = [place for place in places if place.rank_index == reader.rank_index]
        if reader is None:
            reader = self._readers[process] = Reader()
            if len(self._readers) > REMEMBERED_READERS:
                self._readers.popitem(last=False)
        else:
            fits = self._in_lanes(reader, places)
            # The last entry once more is the next one only where nothing else can be.
            sure = fits and fits[0][0] == 0 and fits[0][1] is reader.lanes[0]
            if fits and (sure or reader.last_entry != entry):
                return self._follow(reader, fits, entry, process, parent)
            if reader.last_entry == entry:
                reader.again = True
                return None, []
            self._readers.move_to_end(process)
        reader.last_entry = entry
        return self._enter(reader, places, entry, process, parent)

    def _in_lanes(self, reader: Reader, places: list[Place]) -> list[tuple[int, Lane, Place]]:
        """The lanes of the process that the open fits, and where: the nearest first."""
        fits = [(self._ahead(lane, place), lane, place) for lane in reader.lanes for place in places]
        return sorted((fit for fit in fits if fit[0] >= 0), key=lambda fit: fit[0])

    def _ahead(self, lane: Lane, place: Place) -> int:
        """How far ahead in the lane, or in its continuation in the next epoch, -1 when in neither."""
        if place.epoch is lane.index:
            return lane.distance(place, self.skip)
        follows = place.epoch.epoch == lane.index.epoch + 1 and place.rank_index == lane.rank_index
        unsure = lane.first >= 0 and lane.index.base > self.ranks[lane.rank_index].frontier
        if not follows or unsure or lane.continued or not self.shape.workers:
            return -1
        worker, turn = lane_of(self.shape, place.offset - place.epoch.begin)
        if worker != lane.worker or not 0 <= turn < self.shape.slack + 1:  # the first may be this epoch's next as well
            return -1
        return turn if lane.ended else self.stream_length + turn

    def _follow(
        self, reader: Reader, fits: list[tuple[int, Lane, Place]], entry: int, process: int, parent: int
    ) -> tuple[Match | None, list[tuple[int, Given]]]:
        """The open fits lanes; the first is believed, and what it could be besides remembered."""
        reader.last_entry = entry
        ahead, lane, place = fits[0]
        others = [self._lane(place) for _, lane, place in fits[1:] if place.epoch is not lane.index] if ahead else []
        if place.epoch is lane.index:
            lane.open(place)
        else:  # a worker that lives on, or a process that reads by itself, in the next epoch
            ended, lane.continued = lane.ended, True
            lane.first, lane.far = -1, False
            lane = self._lane(place)
            lane.first = -1 if ended else lane.first
            reader.lanes.insert(0, lane)
            if not ended:  # left early, or nothing of the kind: the next open tells
                reader.lanes[1:1] = others
                return self._record(entry, process, parent, place, True, advance=False)
        reader.lanes[1:1] = others
        lane.streak += 1
        if lane.far and lane.streak < FAR_STREAK:
            return self._record(entry, process, parent, place, False, advance=None)
        if reader.lanes[0] is not lane:
            reader.lanes.remove(lane)
            reader.lanes.insert(0, lane)
        del reader.lanes[LANES_OF_A_PROCESS:]
        if lane.first >= 0 and not self._rivals(lane, fits):
            self._confirm(lane, parent)
            if self.shape_known and not reader.followed:
                self._count_late(process, lane)
            reader.rank_index, reader.followed = lane.rank_index, True
        return self._record(entry, process, parent, place, True, advance=True)

    def _rivals(self, lane: Lane, fits: list[tuple[int, Lane, Place]]) -> bool:
        """Whether another rank's lane fits as well; it goes along until one of the two is proved wrong."""
        rivals = [(of, place) for ahead, of, place in fits if not ahead and of.first >= 0 and place.epoch is of.index]
        rivals = [(of, place) for of, place in rivals if of.rank_index != lane.rank_index]
        for of, place in rivals:
            of.open(place)
        return bool(rivals)

    def _confirm(self, lane: Lane, parent: int) -> None:
        """The second open of a lane fits: it is the process's, and the process its rank's."""
        self.ranks[lane.rank_index].take(lane.first, self.lag)
        lane.first, lane.far = -1, False
        if parent:
            known = self._ranks_below.get(parent, frozenset())
            if lane.rank_index not in known:
                self._ranks_below[parent] = known | {lane.rank_index}
                if len(self._ranks_below) > REMEMBERED_READERS:
                    self._ranks_below.popitem(last=False)

    def _count_late(self, process: int, lane: Lane) -> None:
        """The first opens of a process that was under way before the job was registered came in its order after all."""
        for at, seen in first_opens_of_late(self.history, process, lane):
            self.agreed += 1
            seen.cell.observed -= 1
            lane.cell.observed += 1
            lane.cell.agreed += 1
            self.history[at] = seen._replace(cell=lane.cell, agrees=True)

    def _enter(
        self, reader: Reader, places: list[Place], entry: int, process: int, parent: int
    ) -> tuple[Match | None, list[tuple[int, Given]]]:
        """The open fits no lane of its process: it may begin one."""
        family = self._ranks_below.get(parent, frozenset())
        only_rank = next(iter(family)) if len(family) == 1 else -1

        def order(place: Place) -> tuple[bool, bool, int, int]:
            # An epoch is read to its end before the next begins: the earlier epoch wins.
            distance = abs(place.position - self.ranks[place.rank_index].frontier)
            done = self.ranks[place.rank_index].is_done(place.position)
            return only_rank not in (-1, place.rank_index), done, place.epoch.epoch, distance

        begins = sorted((place for place in places if self._begins(place)), key=order)
        if begins:
            entered = [self._lane(place) for place in begins[:4]]
            reader.lanes = [*entered, *reader.lanes][:LANES_OF_A_PROCESS]
            return self._record(entry, process, parent, begins[0], True, advance=self._under_way(begins[0]))
        near = sorted((place for place in places if self._near(place)), key=order)
        far = [place for place in places if not self._near(place) and self._beyond(place)]
        strays = [self._lane(place, far=place in far) for place in [*near[:2], *far[:2]]]
        reader.lanes = [*reader.lanes[: LANES_OF_A_PROCESS - len(strays)], *strays]
        self._unfit += 1
        place = near[0] if near else None
        result = self._record(entry, process, parent, place, False, advance=False if near else None)
        if self._unfit >= self._unfit_at_most:
            return result[0], [*result[1], *self.relearn()]
        return result

    def _lane(self, place: Place, far: bool = False) -> Lane:
        lane = Lane(self.shape, place, self._cell(place))
        lane.first, lane.far = place.position, far
        return lane

    def _record(
        self, entry: int, process: int, parent: int, place: Place | None, agrees: bool, advance: bool | None
    ) -> tuple[Match | None, list[tuple[int, Given]]]:
        """Count the open; take the position, moving the rank's frontier if `advance`, not at all if None."""
        cell = self._cell(place) if place else self._cell_of_nobody()
        reader = self._readers[process]
        again, reader.again = reader.again, False
        reader.streak = reader.streak + 1 if agrees else 0
        self.observed += 1
        self.agreed += agrees
        self._in_a_row = self._in_a_row + 1 if agrees else 0
        cell.observed += 1
        cell.agreed += agrees
        if place is None or advance is None:
            self.history.append(Open(entry, process, parent, cell, agrees, -1, -1, again))
            return None, []
        match = Match(place.rank_index, place.position)
        self.history.append(Open(entry, process, parent, cell, agrees, *match, again))
        given = self.ranks[match.rank_index].take(match.position, self.lag, advance)
        return match, [(match.rank_index, given)] if given else []

    # -- where an entry may be

    def _places(self, entry: int) -> list[Place]:
        """All places of the entry in the loaded epochs."""
        places = []
        for index in self.epochs.values():
            for code in index.codes(entry):
                places.append(Place(code // index.length, index, code % index.length))
        return places

    def _near(self, place: Place) -> bool:
        """Whether the place is unread and about where its rank is."""
        progress = self.ranks[place.rank_index]
        return abs(place.position - progress.frontier) <= self.lag and not progress.is_done(place.position)

    def _under_way(self, place: Place) -> bool:
        """Whether the rank reads the place's epoch, or has read the one before to its end."""
        return place.epoch.base <= self.ranks[place.rank_index].frontier

    def _beyond(self, place: Place) -> bool:
        """Whether the place lies further ahead than the rank can be, unless it was left to itself for a while."""
        return place.position > self.ranks[place.rank_index].frontier + self.lag

    def _begins(self, place: Place) -> bool:
        """Whether a process may begin at the place: unread, and the start of a lane of this epoch or the next."""
        progress = self.ranks[place.rank_index]
        position, x = place.position, place.offset - place.epoch.begin
        # Done is no obstacle while the epoch is read: an open that may be two ranks' may have been taken for this one.
        if x < 0 or place.epoch.base + place.epoch.length <= progress.floor:
            return False
        if not self.shape.workers:
            return (
                not progress.is_done(position)
                and x % self.shape.batch == 0
                and position < progress.floor + self.shape.slack
            )
        _, turn = lane_of(self.shape, x)
        follower = position + (1 if self.shape.batch > 1 else self.shape.workers)
        passed = progress.frontier > follower and self.stream_length > MOST_SKIPPED  # strays don't move the frontier
        if passed and progress.is_done(position) and progress.is_done(follower):
            return False  # another pass over what was read
        return turn < self.shape.slack and place.epoch.base <= progress.frontier + place.epoch.length

    # -- counts

    def _cell(self, place: Place) -> Cell:
        return self._cell_for(place.epoch.epoch, place.rank_index)

    def _cell_of_nobody(self) -> Cell:
        frontier = max((progress.frontier for progress in self.ranks), default=0)
        epoch = next((index.epoch for index in self.epochs.values() if index.contains(frontier)), 0)
        return self._cell_for(epoch, -1)

    def count(self, epoch: int, rank_index: int, observed: int, agreed: int) -> None:
        """Add opens that were counted elsewhere; rank_index -1: no rank of this matcher's."""
        cell = self._cell_for(epoch, rank_index)
        for counts in (cell, self):
            counts.observed += observed
            counts.agreed += agreed

    def _cell_for(self, epoch: int, rank_index: int) -> Cell:
        cell = self.cells.get((epoch, rank_index))
        if cell is None:
            cell = self.cells[epoch, rank_index] = Cell(epoch, rank_index)
            if len(self.cells) > REMEMBERED_EPOCHS * (1 + len(self.ranks)):
                self.cells.popitem(last=False)
        return cell

    # -- the loader's shape

    def _lag(self) -> int:
        guessed = GUESSED_WORKERS * self.batch_size
        known = BATCHES_OF_LAG * self.shape.workers * self.shape.batch + self.shape.slack
        return max(1, min(max(LEAST_LAG, guessed, known), self.stream_length))

    def relearn(self) -> list[tuple[int, Given]]:
        """Learn the loader's shape from the last opens, and count them anew. Returns positions that are over by that.

        Without a better shape it is tried again after twice as many opens that don't fit.
        """
        self._unfit = 0
        self._unfit_at_most = min(MOST_UNFIT, 2 * self._unfit_at_most)
        for seen in (self._seen_by_count(), self._seen_by_match()):
            shape = learn(seen, self.stream_length, self.batch_size, self.single)
            over = self._take_over(shape) if shape is not None and shape != self.shape else []
            if over:
                return over
        return []

    def _seen_by_match(self) -> list[Seen]:
        """The last opens where they were matched."""
        return [
            Seen(o.process, o.rank_index, o.cell.epoch, o.position - self._begin_of(o.cell.epoch))
            for o in self.history
            if o.position >= 0
        ]

    def _seen_by_count(self) -> list[Seen]:
        """The last opens, if they are all that ever were: an entry is read once an epoch, so its count is its epoch."""
        if self._lost or len(self.history) == REMEMBERED_OPENS:
            return []
        epochs = [self.epochs[epoch] for epoch in sorted(self.epochs)]
        counts: Counter[int] = Counter()
        seen = []
        for o in self.history:
            index = epochs[counts[o.entry]] if counts[o.entry] < len(epochs) else None
            counts[o.entry] += 1
            codes = index.codes(o.entry) if index else []
            if index and codes:
                rank, offset = divmod(codes[0], index.length)
                seen.append(Seen(o.process, rank, index.epoch, offset - index.begin))
        return seen

    def _begin_of(self, epoch: int) -> int:
        index = self.epochs.get(epoch)
        return index.base + index.begin if index else 0

    def _take_over(self, shape: Shape) -> list[tuple[int, Given]]:
        """Replay the last opens with another shape; take its state if it fits more of them."""
        starts = list(self.starts)
        if self._lost or len(self.history) == REMEMBERED_OPENS:  # else all that ever was
            starts = [progress.floor for progress in self.ranks]
            for seen in self.history:
                if seen.position >= 0:
                    starts[seen.rank_index] = min(starts[seen.rank_index], seen.position)
        fresh = StreamMatcher(0, self.batch_size, 0, self.stream_length, shape, starts, self.single, self.one_rank)
        fresh.epochs, fresh._unfit_at_most = self.epochs, 1 << 62
        over: list[tuple[int, Given]] = []
        for seen in self.history:
            reader = fresh._readers.get(seen.process)
            entries = [reader.last_entry, seen.entry] if seen.again and reader else [seen.entry]
            for entry in entries:
                match, given = fresh.observe(entry, seen.process, seen.parent)
                over += given
                if match is not None:
                    over.append((match.rank_index, (match.position, match.position + 1)))
        if fresh.agreed <= sum(seen.agrees for seen in self.history):
            return []
        self._count_anew(fresh)
        self.shape, self.ranks, self.lag = shape, fresh.ranks, fresh.lag
        self.shape_known = True
        self._readers, self._ranks_below = fresh._readers, fresh._ranks_below
        self._unfit_at_most = LEAST_UNFIT
        return over

    def _count_anew(self, fresh: StreamMatcher) -> None:
        """Replace how the last opens were counted by how `fresh` counted them."""
        for seen in self.history:
            for count in (seen.cell, self):
                count.observed -= 1
                count.agreed -= seen.agrees
        self.history.clear()
        self._in_a_row = 0
        for seen in fresh.history:
            cell = self._cell_for(seen.cell.epoch, seen.cell.rank_index)
            for count in (cell, self):
                count.observed += 1
                count.agreed += seen.agrees
            self.history.append(seen._replace(cell=cell))
        for reader in fresh._readers.values():
            for lane in reader.lanes:
                lane.cell = self._cell_for(lane.index.epoch, lane.rank_index)
