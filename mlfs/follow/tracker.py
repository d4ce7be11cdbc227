"""Tracks what each process of a job reads, and how far each rank is, for a given shape of the loader.

Pure. In: opens (sample, process, its parent). Out: the position that each is matched to, whether it was predicted (to
the score), and the positions that are given up. Used by `mlfs.follow.matching`, which begins anew with another tracker
when it learns of another shape.

An open was predicted when it is the next one of a worker stream that its process reads, or when a process may begin
where it is. Which stream that is follows from where a process begins: one open can fit several (a sample occurs in each
epoch, and for several ranks where an order is padded), so a process keeps all candidates until a further open fits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from operator import eq
from typing import NamedTuple

from mlfs.follow.by_sample import NO_PID, SampleMatcher
from mlfs.follow.epoch_index import EpochIndex, Match, Occurrence, occurrences
from mlfs.follow.evidence import SURE_STREAK, Read
from mlfs.follow.progress import Given, RankProgress
from mlfs.follow.reach import Reach
from mlfs.follow.score import Cell, Open, Score
from mlfs.follow.shape import LearnedLoader, RankStream, worker_and_turn
from mlfs.follow.worker_stream import Stretch, WorkerStream

Followed = tuple[list[Stretch], list[tuple[int, Given]]]
"""Opens that came as predicted, by process; and what is given up by them: rank, positions."""

Observed = tuple[Match | None, list[tuple[int, Given]]]
"""The position that an open was matched to (None: none), and what is given up by it: rank, positions."""

REMEMBERED_PROCESSES = 4096
"""Processes that are remembered, and parents of processes. Loaders start new workers each epoch, so only the last ones
matter."""
STREAMS_OF_A_PROCESS = 6
"""Worker streams that a process may be reading: a sample occurs once in each epoch at hand, seldom for two ranks, and
the likeliest three epochs are the rank's own one and those beside it."""
FAR_STREAK = 6
"""Opens in order that a process must make before it is believed to be further ahead than its rank can have come: all
that lies between is given up then."""
MOST_BEGINNINGS = 4
"""Streams that one open may seem to begin: so few that a process keeps those that it may read by the opens before."""
MOST_ALIKE = 3
"""Reads of a process that leave out equally many samples each. Who goes on so reads for one of more ranks: samples that
a script leaves out lie anywhere."""
CHANCES_OF_UNTOLD = 16
"""Orders of which one at most seems by chance to have reads that were told with others: as many as for `MISS_BITS`."""
MOST_UNTOLD = 4096
"""Reads in a row that may have been told with others: some epochs of a data set that is read within milliseconds."""
MOST_STRAYS = 4
"""The same for streams in the middle of which an open lies, near its rank and far ahead of it."""


class _Process:
    """The reads of one process.

    Attributes:
        streams: the worker streams that it may be reading, the likeliest first.
        last_sample: what it opened last, -1 before anything.
        rank_index: the rank that it reads for, -1 while that is not known.
        streak: how many of its last opens were predicted, without one between them that was not.
        alike: opens since the last one that left out none, which left out as many as the one before.
        has_read_unseen: some of its last opens may not be known.
    """

    __slots__ = ("_gap", "_opened_again", "alike", "has_read_unseen", "last_sample", "rank_index", "streak", "streams")

    def __init__(self) -> None:
        self.streams: list[WorkerStream] = []
        self.last_sample = -1
        self.rank_index = -1
        self.streak = 0
        self.alike = self._gap = 0
        self._opened_again = 0  # how often it has opened its last sample once more
        self.has_read_unseen = False

    def reads_next(self, sample: int) -> WorkerStream | None:
        """The likeliest stream, if an open of the sample is simply the next one of it, and beyond doubt. Else None."""
        if not self.streams or self._opened_again:
            return None
        stream = self.streams[0]
        return None if stream.next_sample != sample or stream.entered_at >= 0 else stream

    def goes_on(self, sample: int, position: int, count: int) -> None:
        """It opened what comes next in its likeliest stream, so many up to this one."""
        self.streams[0].advance(position)
        self.last_sample = sample
        self.streak += count
        self.alike = 0
        self.has_read_unseen = False

    def leaves_out(self, samples: int) -> None:
        """Its open lies so many samples beyond what comes next."""
        self.alike = self.alike + (samples == self._gap) if samples else 0
        self._gap = samples

    @property
    def opened_again(self) -> int:
        """How often it has opened its last sample once more since, which was not counted."""
        return self._opened_again

    def opens_again(self) -> None:
        """It opened its last sample once more, which is not counted."""
        self._opened_again += 1

    def opens(self, sample: int, agrees: bool) -> int:
        """It opened a sample, predicted or not. Returns how often it had opened the one before once more."""
        again, self._opened_again = self._opened_again, 0
        self.last_sample = sample
        self.streak = self.streak + 1 if agrees else 0
        self.has_read_unseen = False
        return again

    def reads_for(self, rank_index: int) -> bool:
        """It is now known for which rank it reads. Returns whether that was not known before."""
        first = self.rank_index < 0
        self.rank_index = rank_index
        return first

    # -- the streams that it may be reading

    def goes_on_at(self, stream: WorkerStream, at: Occurrence) -> None:
        """It surely reads this stream, and comes to that next, or has come past it."""
        stream.comes_to(at)
        self.streams, self.rank_index, self.streak = [stream], stream.rank_index, SURE_STREAK
        self.has_read_unseen = True

    def begins(self, streams: list[WorkerStream]) -> None:
        """It probably begins to read one of these."""
        self.streams = [*streams, *self.streams][:STREAMS_OF_A_PROCESS]

    def strays(self, streams: list[WorkerStream]) -> None:
        """It might be reading one of these, though nothing but its last open says so."""
        self.streams = [*self.streams[: STREAMS_OF_A_PROCESS - len(streams)], *streams]

    def put_first(self, stream: WorkerStream) -> None:
        """This stream is the likeliest from now on."""
        if not self.streams or self.streams[0] is not stream:
            self.streams = [stream, *(other for other in self.streams if other is not stream)]

    def put_second(self, streams: list[WorkerStream]) -> None:
        """These streams are the likeliest but for the first."""
        self.streams[1:1] = streams

    def drop_unlikely(self) -> None:
        """Keep as many streams as are worth a look."""
        del self.streams[STREAMS_OF_A_PROCESS:]


class _Hit(NamedTuple):
    """An occurrence of the opened sample, in a stream that the process may be reading, and how many turns ahead."""

    turns_ahead: int
    stream: WorkerStream
    occurrence: Occurrence

    @property
    def goes_on(self) -> bool:
        """Whether it lies in the same worker's stream of the next epoch."""
        return self.occurrence.epoch is not self.stream.index


class _Now(NamedTuple):
    """The open that is being observed."""

    sample: int
    process: int
    parent: int
    reader: _Process


class NotedReaders(NamedTuple):
    """The processes that go on reading while another process comes to follow them.

    Attributes:
        processes: of which it is known what they read next: process, rank, linear position. parents: those whose
            children read for one rank: process, rank. begun: processes that have probably begun to read a rank's
            stream, by their last read: process, rank, linear position of that.
    """

    processes: list[tuple[int, int, int]]
    parents: list[tuple[int, int]]
    begun: list[tuple[int, int, int]]


class Tracker:
    """Follows the processes of one job through the ranks' streams.

    Args:
        stream: of each rank.
        loader: its shape, and how far behind its rank's frontier a position may be read (see `mlfs.follow.reach`).
        starts: linear position at which each rank starts.
        epochs: the loaded epochs. Their owner adds and removes as the ranks move on; here they are only read.
        score: where opens are counted.
        trusts_shape: whether the shape is told or learned, not assumed: then a process that is found in the middle of
            its stream was there before the job was registered, and its first opens are counted as predicted.

    Attributes:
        ranks: how far each rank is.
        unfit: opens so far that fitted nothing, or only if their process has left others out.
        by_sample: matches those of readers that cannot be told apart.

    The processes in `_readers` are in the order in which they began, or were last lost: the first is forgotten first.
    """

    def __init__(
        self,
        stream: RankStream,
        loader: LearnedLoader,
        starts: list[int],
        epochs: Mapping[int, EpochIndex],
        score: Score,
        trusts_shape: bool,
    ) -> None:
        self.shape, self.lag = loader
        self.ranks = [RankProgress(at) for at in starts]
        self.unfit = 0
        self._one_rank, self._shows_ranks = stream.one_rank, stream.shows_ranks
        self.trusts_shape = trusts_shape
        self._epochs = epochs
        self._score = score
        self._reach = Reach(self.ranks, self.shape, self.lag, stream.length)
        self.by_sample = SampleMatcher(self.ranks, stream.batch, self.lag, stream.length, epochs)
        self._readers: OrderedDict[int, _Process] = OrderedDict()
        self._ranks_of_children: OrderedDict[int, frozenset[int]] = OrderedDict()  # by parent
        self._known: OrderedDict[tuple[int, int, int], None] = OrderedDict()  # epoch, rank, worker: somebody reads it

    def follow(self, reads: Sequence[Read], own: Container[int]) -> Followed:
        """Follow the first of these reads, and count them: as far as each is simply the next one of its process.

        It is what 20,000 reads a second come to, and changes what `observe` would change by each of them.

        Args:
            own: the processes whose reads may be followed so.
        """
        samples, processes, _, times = zip(*reads, strict=True)
        places: dict[int, list[int]] = {}  # by process, of its reads
        for at, process in enumerate(processes):
            if process in places:
                places[process].append(at)
            else:
                places[process] = [at]
        begun: list[Stretch] = []
        end = len(reads)  # before the first read that is not the next one of its process
        for process, mine in places.items():
            if mine[0] > end:
                continue
            reader = self._readers.get(process)
            stream = reader.reads_next(samples[mine[0]]) if reader is not None and process in own else None
            if stream is None:
                end = mine[0]
                continue
            stretch = stream.stretch(process, len(mine))
            begun.append(stretch)
            opened = [samples[at] for at in mine]
            if opened != stretch.samples:
                agree = map(eq, opened, stretch.samples)
                first = next((at for at, agrees in zip(mine, agree, strict=False) if not agrees), -1)
                end = min(end, first if first >= 0 else mine[len(stretch.samples)])
        stretches: list[Stretch] = []
        positions: dict[int, list[int]] = {}  # by rank
        for stretch in begun:
            mine = places[stretch.process]
            count = len(mine) if mine[-1] < end else bisect_left(mine, end)
            if not count:
                continue
            del stretch.samples[count:], stretch.positions[count:]
            stretch.times.extend([times[at] for at in mine[:count]])
            self._readers[stretch.process].goes_on(stretch.samples[-1], stretch.positions[-1], count)
            positions.setdefault(stretch.rank_index, []).extend(stretch.positions)
            stretches.append(stretch)
        matched = {one.process: (one.cell, one.rank_index, one.positions) for one in stretches}
        self._score.count_predicted(reads[:end], matched)
        taken = ((rank_index, self.ranks[rank_index].take(read, self.lag)) for rank_index, read in positions.items())
        return stretches, [(rank_index, given) for rank_index, given in taken if given is not None]

    def observe(self, sample: int, process: int, parent: int) -> Observed:
        """Follow an open, and count it. A sample that its process opens again at once counts for nothing."""
        reader = self._readers.get(process)
        stream = reader.reads_next(sample) if reader is not None else None
        if reader is None or stream is None:
            return self._observe_other(reader, sample, process, parent)
        rank_index, position = stream.rank_index, stream.next_position
        reader.goes_on(sample, position, 1)
        opened = (sample, process, parent, stream.cell, True, rank_index, position, 0)
        self._score.count(tuple.__new__(Open, opened))
        return Match(rank_index, position), self._take(rank_index, position)

    def fits(self, sample: int, process: int) -> bool:
        if process == NO_PID:
            return self.by_sample.fits(sample)
        reader = self._readers.get(process)
        if reader is not None:
            if reader.last_sample == sample:
                return True
            for stream in reader.streams:  # no generator: each read of a job asks
                if stream.next_sample == sample:
                    return True
        found = occurrences(self._epochs, sample)
        if reader is not None and self._fits(reader, found):
            return True
        return any(self._may_begin(at) for at in found)

    def is_next(self, sample: int, process: int) -> bool:
        reader = self._readers.get(process)
        return reader is not None and any(stream.next_sample == sample for stream in reader.streams)

    def coming(self, process: int, most: int) -> list[int]:
        reader = self._readers.get(process)
        if reader is None or not reader.streams:
            return []
        stream = reader.streams[0]
        if reader.reads_next(stream.next_sample) is None:
            return []
        return stream.stretch(process, most).samples

    def untold_before(self, sample: int, process: int, told: Collection[int]) -> list[int]:
        """The samples that a process has read before this one, by its order, each told of with an earlier open.

        Args:
            told: the samples that it has opened a moment before, some of them more than once.

        None where that is in doubt: what comes next was not told a moment before, or this sample does not follow.
        """
        reader = self._readers.get(process)
        if (
            reader is None
            or not reader.streams
            or reader.opened_again
            or self.shape.slack > 1
            or not self.shape.workers
        ):
            return []
        stream, untold = reader.streams[0], list[int]()
        while stream.entered_at < 0:
            for expected in stream.stretch(process, len(told) + 1).samples:
                if expected == sample:
                    return untold if self._is_no_chance(len(untold), len(told), stream.index.length) else []
                if expected not in told:
                    return []
                untold.append(expected)
            index = self._epochs.get(stream.index.epoch + 1)
            if index is None or len(untold) > MOST_UNTOLD:
                break
            first = self.shape.batch * stream.worker if self.shape.workers > 1 else 0
            at = Occurrence(stream.rank_index, index, index.begin + first)
            stream = WorkerStream(self.shape, at, stream.cell, confirmed=True)
            stream.comes_to(at)
        return []

    @staticmethod
    def _is_no_chance(untold: int, told: int, length: int) -> bool:
        """Whether it is none that a sample follows so many that were told: in another order than the predicted one each
        of these is one of `told` by chance, and the sample is any of `length`."""
        others = length - told
        in_reach = min(untold + 1, length / others) if others > 0 else untold + 1
        return in_reach * CHANCES_OF_UNTOLD <= length

    def follows(self, process: int) -> bool:
        reader = self._readers.get(process)
        return reader is not None and reader.streak >= SURE_STREAK

    def knows(self, process: int) -> bool:
        return process in self._readers

    def has_strayed(self, process: int) -> bool:
        return process in self._readers and not self.follows(process)

    def rank_of(self, process: int) -> int:
        reader = self._readers.get(process)
        return reader.rank_index if reader is not None else -1

    def opened_again(self) -> list[tuple[int, int]]:
        return [(process, reader.opened_again) for process, reader in self._readers.items() if reader.opened_again]

    def widen_to(self, epochs: Mapping[int, EpochIndex]) -> None:
        self._epochs = epochs
        self.by_sample.widen_to(epochs)

    # -- processes that go on reading while another process follows them

    def noted(self) -> NotedReaders:
        """The processes of which it is known, or likely, what they read next."""
        known = [(process, reader.streams[0]) for process, reader in self._readers.items() if reader.streams]
        parents = [(parent, next(iter(ranks))) for parent, ranks in self._ranks_of_children.items() if len(ranks) == 1]
        return NotedReaders(
            [
                (process, stream.rank_index, stream.next_position)
                for process, stream in known
                if stream.entered_at < 0 and not stream.ended
            ],
            parents,
            [
                (process, stream.rank_index, stream.entered_at)
                for process, stream in known
                if stream.entered_at >= 0 and not stream.far
            ],
        )

    def go_on(
        self, processes: Iterable[Sequence[int]], parents: Iterable[Sequence[int]], begun: Iterable[Sequence[int]]
    ) -> None:
        """Expect what was noted, see `NotedReaders`; nothing of processes whose threads overtake each other, or that
        take the next batch when they are free."""
        for parent, rank_index in parents:
            self._note_rank(parent, rank_index)
        if self.shape.slack > 1 or not self.shape.workers:
            return
        for process, at in self._noted_at(processes):
            self._readers[process] = _Process()
            self._readers[process].goes_on_at(self._stream(at, confirmed=True), at)
            self._known[self._worker_of(at)] = None
        for process, at in self._noted_at(begun):
            self._readers[process] = _Process()
            self._readers[process].begins([self._stream(at)])

    def _noted_at(self, noted: Iterable[Sequence[int]]) -> Iterator[tuple[int, Occurrence]]:
        for process, rank_index, position in noted:
            index = next((index for index in self._epochs.values() if index.contains(position)), None)
            if index is not None and position >= index.base + index.begin:
                yield process, Occurrence(rank_index, index, position - index.base)

    # -- an open that is not simply the next one of its process

    def _observe_by_sample(self, sample: int) -> Observed:
        """An open of a reader that cannot be told from others."""
        seen = self.by_sample.observe(sample)
        if seen is None:
            return None, []
        at, agrees = seen
        cell = self._nobodys_cell() if at is None else self._score.cell(at.epoch.epoch, at.rank_index)
        match = None if at is None else Match(at.rank_index, at.position)
        self._score.count(Open(sample, NO_PID, 0, cell, agrees, *(match or (-1, -1))))
        lag = self.by_sample.lag
        given = [] if match is None else self._take(*match, agrees, lag)
        begun: set[int] = set()
        for lost, found in () if agrees else self.by_sample.find_ranks():
            rank_index, position = found.rank_index, found.position
            self._score.agrees_after_all(lost, NO_PID, self._score.cell(found.epoch.epoch, rank_index))
            given.append((rank_index, (position, position + 1)))
            given += self._take(rank_index, position, lag=lag if rank_index in begun else 1)  # all before is given up
            begun.add(rank_index)
        return match, given

    def _observe_other(self, reader: _Process | None, sample: int, process: int, parent: int) -> Observed:
        if process == NO_PID:
            return self._observe_by_sample(sample)
        found = occurrences(self._epochs, sample)
        if reader is None:
            reader = self._readers[process] = _Process()
            if len(self._readers) > REMEMBERED_PROCESSES:
                self._readers.popitem(last=False)
            return self._begin(_Now(sample, process, parent, reader), found)
        now = _Now(sample, process, parent, reader)
        if self._one_rank and reader.rank_index >= 0:
            found = [at for at in found if at.rank_index == reader.rank_index]
        fits = self._fits(reader, found)
        repeats = reader.last_sample == sample
        if repeats:  # once more is the next one only where the order has it there, in whichever of the streams
            fits = [fit for fit in fits if fit.turns_ahead == 0]
        if fits:
            return self._follow(now, fits)
        if repeats:
            reader.opens_again()
            return None, []
        self._readers.move_to_end(process)
        return self._begin(now, found)

    def _fits(self, reader: _Process, found: list[Occurrence]) -> list[_Hit]:
        """Which of the occurrences the process can be at in the streams that it may be reading: the likeliest first.

        The place where it surely reads comes first, as far as its threads overtake each other; then the nearest. A
        process with many threads seems to go on in the next epoch now and then, nearer than where it is.
        """
        ahead_of = self._turns_ahead_of_lost if reader.has_read_unseen else self._reach.turns_ahead
        fits = []
        for stream in reader.streams:
            for at in found:
                turns_ahead = ahead_of(stream, at)
                if turns_ahead >= 0:
                    fits.append(_Hit(turns_ahead, stream, at))

        def order(fit: _Hit) -> tuple[bool, int]:
            surely = fit.stream.entered_at < 0 and fit.turns_ahead < fit.stream.slack
            return not surely, fit.turns_ahead

        return sorted(fits, key=order) if len(fits) > 1 else fits

    def _turns_ahead_of_lost(self, stream: WorkerStream, at: Occurrence) -> int:
        """As `Reach.turns_ahead`, of a process whose reads nobody has seen for a while."""
        ahead = stream.turns_ahead(at, self.lag)
        return ahead if ahead >= 0 else self._reach.turns_ahead(stream, at)

    def _follow(self, now: _Now, fits: list[_Hit]) -> Observed:
        """The open fits streams that the process may be reading: believe the nearest, and keep the others in mind."""
        reader = now.reader
        turns_ahead, stream, at = fits[0]
        others = fits[1:] if turns_ahead else []  # what is simply the next one is hardly anything else
        candidates = [self._stream(fit.occurrence) for fit in others if fit.goes_on]
        if not fits[0].goes_on:
            reader.leaves_out(turns_ahead if turns_ahead >= self.shape.slack else 0)
            self.unfit += turns_ahead >= self.shape.slack and len(self._readers) > 1  # one may be several threads
            stream.opened(at)
            stream.fitted()
            reader.put_second(candidates)
        else:  # the process, a worker that lives on or one that reads by itself, has gone on to the next epoch
            in_order = stream.ended
            stream.leave()
            stream = self._stream(at, confirmed=in_order)
            reader.put_first(stream)
            reader.put_second(candidates)
            if not in_order:  # it left the epoch early, or this is only a coincidence: the next open tells
                return self._count(now, stream.cell, True, at, moves_frontier=False)
        if stream.far and stream.streak < FAR_STREAK:
            return self._count(now, stream.cell, False)
        reader.put_first(stream)
        reader.drop_unlikely()
        given: list[tuple[int, Given]] = []
        if stream.entered_at >= 0 and not self._move_doubles(stream, fits):
            given = self._take_beginning(stream.rank_index, stream.confirm())
            self._note_rank(now.parent, stream.rank_index)
            self._known[self._worker_of(at)] = None
            if len(self._known) > REMEMBERED_PROCESSES:
                self._known.popitem(last=False)
            if reader.reads_for(stream.rank_index) and self.trusts_shape:
                self._score.count_late(now.process, stream.streak, stream.cell)
        of_more_ranks = self._shows_ranks and reader.alike > MOST_ALIKE
        match, given_now = self._count(now, stream.cell, not of_more_ranks, at, moves_frontier=not of_more_ranks)
        return match, [*given, *given_now]

    def _move_doubles(self, stream: WorkerStream, fits: list[_Hit]) -> bool:
        """Move on the streams of other ranks in which the open is the next one too. Returns whether there are any.

        They go along with the stream that is believed until an open fits only one of them.
        """
        doubles = [
            fit
            for fit in fits
            if fit.turns_ahead == 0
            and fit.stream.entered_at >= 0
            and not fit.goes_on
            and fit.stream.rank_index != stream.rank_index
        ]
        for double in doubles:
            double.stream.opened(double.occurrence)
        return bool(doubles)

    def _may_begin(self, at: Occurrence) -> bool:
        """Whether a process may begin there.

        A process that begins may seem to read for another rank for some opens where ranks have samples in common.
        Samples that it took of that rank's stream do not keep the rank's own process from beginning.
        """
        epoch = at.epoch
        is_vacant = (
            bool(epoch.more)
            and len(epoch.ids) > 1
            and len(epoch.codes(epoch.ids[at.rank_index].item(at.offset))) > 1
            and self._worker_of(at) not in self._known
        )
        return self._reach.may_begin(at, is_vacant)

    def _note_rank(self, parent: int, rank_index: int) -> None:
        """A child of the parent reads for the rank: the workers of a rank are children of the rank's process."""
        known = self._ranks_of_children.get(parent, frozenset())
        if parent and rank_index not in known:
            self._ranks_of_children[parent] = known | {rank_index}
            if len(self._ranks_of_children) > REMEMBERED_PROCESSES:
                self._ranks_of_children.popitem(last=False)

    def _worker_of(self, at: Occurrence) -> tuple[int, int, int]:
        return at.epoch.epoch, at.rank_index, worker_and_turn(self.shape, at.x)[0]

    def _begin(self, now: _Now, found: list[Occurrence]) -> Observed:
        """The open fits no stream that the process may be reading: it may begin one."""
        reach, ranks = self._reach, self._ranks_of_children.get(now.parent, frozenset())
        family_rank = next(iter(ranks)) if len(ranks) == 1 else -1

        def order(at: Occurrence) -> tuple[bool, tuple[bool, int, int]]:
            return family_rank not in (-1, at.rank_index), reach.preference(at)

        beginnings = sorted([at for at in found if self._may_begin(at)], key=order)
        if beginnings:
            begun = [self._stream(at) for at in beginnings[:MOST_BEGINNINGS]]
            now.reader.begins(begun)
            in_current_epoch = reach.is_in_current_epoch(beginnings[0])
            return self._count(now, begun[0].cell, True, beginnings[0], moves_frontier=in_current_epoch)
        self.unfit += 1
        near = sorted([at for at in found if reach.is_near(at)], key=order)
        far = [at for at in found if reach.is_far_ahead(at)]
        strays = [self._stream(at) for at in near[:MOST_STRAYS]]
        now.reader.strays([*strays, *(self._stream(at, far=True) for at in far[:MOST_STRAYS])])
        if not near:
            return self._count(now, self._nobodys_cell(), False)
        return self._count(now, strays[0].cell, False, near[0], moves_frontier=False)

    def _stream(self, begun_at: Occurrence, far: bool = False, confirmed: bool = False) -> WorkerStream:
        cell = self._score.cell(begun_at.epoch.epoch, begun_at.rank_index)
        return WorkerStream(self.shape, begun_at, cell, far, confirmed)

    def _nobodys_cell(self) -> Cell:
        """An open that is no rank's is counted in the epoch of the rank that is furthest."""
        frontier = max((progress.frontier for progress in self.ranks), default=0)
        epoch = next((index.epoch for index in self._epochs.values() if index.contains(frontier)), 0)
        return self._score.cell(epoch, -1)

    def _count(
        self, now: _Now, cell: Cell, agrees: bool, at: Occurrence | None = None, moves_frontier: bool = True
    ) -> Observed:
        """Count the open, and mark the position as read that it is matched to, if there is one."""
        again = now.reader.opens(now.sample, agrees)
        match = Match(at.rank_index, at.position) if at is not None else None
        self._score.count(Open(now.sample, now.process, now.parent, cell, agrees, *(match or (-1, -1)), again))
        if match is None:
            return None, []
        return match, self._take(*match, moves_frontier)

    def _take_beginning(self, rank_index: int, position: int) -> list[tuple[int, Given]]:
        """Mark the position as read at which a process began a stream, now that this is known.

        Its open may have been matched to another position, or to none. Then this one's use is over without
        a match: it is given up.
        """
        was_done = self.ranks[rank_index].is_done(position)
        given = self._take(rank_index, position)
        return given if was_done else [(rank_index, (position, position + 1)), *given]

    def _take(
        self, rank_index: int, position: int, moves_frontier: bool = True, lag: int | None = None
    ) -> list[tuple[int, Given]]:
        """Mark a position as read. Returns what is given up by it."""
        given = self.ranks[rank_index].take((position,), self.lag if lag is None else lag, moves_frontier)
        return [(rank_index, given)] if given else []
