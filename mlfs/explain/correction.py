"""A registered job's reads don't come as it says: finds out what its script does, and has the job go on with it.

In: jobs whose opens were counted. Out: jobs in place of those, each with a sentence for `status` and the log. The
trials run in a worker thread, a long search at the lowest priority. Their finding is proposed to the job's list of
rivals, which rules on a variant by opens that it was not searched with. Part of `mlfs.explain.explainer`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from statistics import median_low
from typing import NamedTuple

import trio

from mlfs.explain.attempt import Attempt
from mlfs.explain.chance import FEWEST_FITTING
from mlfs.explain.data_sets import as_indices
from mlfs.explain.first_reads import MOST_FIRST_READS
from mlfs.explain.port import Jobs, load_epochs
from mlfs.explain.question import reads_needed
from mlfs.explain.screen import EpochBefore, find_correction, find_ranks, find_world
from mlfs.explain.search_stages import PlaceFound, WordsAsked
from mlfs.explain.statistics import CaseStatistics, Instead
from mlfs.explain.word_search import place_nearby
from mlfs.explain.words import drawing_of, moved, switched, whereabouts
from mlfs.follow.evidence import (
    HIT_WORTH,
    JUDGED_OPENS,
    JUDGED_SAMPLES,
    JUMPS,
    READS_BEFORE,
    SEARCHED_READS,
    SEARCHED_SHARE,
    SURE_SHARE,
    UNFIT_READS,
    Read,
    fits,
)
from mlfs.follow.families import Family, Key
from mlfs.follow.hypothesis import Hypothesis, Origin, Ruling
from mlfs.follow.job import JobRun, OtherJob
from mlfs.follow.matching import Open
from mlfs.follow.score import Cell
from mlfs.follow.sentences import in_words, register_flags
from mlfs.follow.shape import LearnedLoader
from mlfs.job.names import built_in
from mlfs.orders.composed import WordsDrawn

log = logging.getLogger("mlfs.explain")


# -- whether reads call for another hypothesis, and which reads it is about

# How far a jump is looked through for files that another worker reads: the next batch begins right there.
LONGEST_LOOK = 64


def disagreeing(opens: Iterable[Open]) -> list[Open]:
    """The last opens, from where the prediction began to fail: the suffix with most misses beyond its hits.

    All opens where hardly any had agreed before: how an epoch begins says most of what is read.
    """
    listed = list(opens)
    worth, best, at = 0.0, 0.0, len(listed)
    for number in range(len(listed) - 1, -1, -1):
        worth += -HIT_WORTH if listed[number].agrees else 1
        if worth > best:
            best, at = worth, number
    had_agreed = sum(seen.agrees for seen in listed[:at])
    return listed if best and had_agreed < READS_BEFORE else listed[at:]


def disagrees(job: JobRun) -> bool:
    """Whether so many of the last opens were not predicted that it is worth finding out why."""
    score, again = job.score, job.rivals.from_start
    if again is not None and again.is_likely and not again.by_run_under_way:
        return False  # other processes than those before seem to read the job from its start: it will be followed
    if len(score.history) < UNFIT_READS or job.matcher.stream.length < JUDGED_SAMPLES:
        return False
    if score.agreement_of_last(SEARCHED_READS) >= SEARCHED_SHARE:
        return False
    return len(disagreeing(score.history)) >= UNFIT_READS


class Unexplained(NamedTuple):
    """Opens that another registration has to explain, and the epochs that they may be of, the likeliest first.

    If several epochs have the same order, the first that is tried is taken.

    Attributes:
        before: the last epoch that was read as predicted; None for none.
    """

    opens: list[Open]
    epochs: list[int]
    before: EpochBefore | None = None


def unexplained(job: JobRun) -> list[Unexplained]:
    """The questions about a job whose reads disagree, one after the other.

    Opens of more than one epoch are cut to those of the last one: no epoch's order explains most of the others.
    """
    spec, opens = job.spec, disagreeing(job.score.history)
    before = [seen.cell.epoch for seen in list(job.score.history)[: -len(opens)] if seen.agrees]
    an_epoch = job.ranks.epoch_reads
    if len(before) < READS_BEFORE:  # nothing ever fitted: the script has just begun, or it began some epochs ago
        # It is the registered one, or the one that a run has begun anew.
        begun = job.begun_in
        asked = [Unexplained(opens, [begun])]
        passes = max(0, job.score.observed - UNFIT_READS) // an_epoch
        last = min(begun + passes, spec.epochs - 1)
        if last > begun:
            asked.append(Unexplained(opens[-(job.score.observed - passes * an_epoch) :], [last, last - 1]))
        return asked
    passes = max(0, len(opens) - UNFIT_READS) // an_epoch
    opens = opens[passes * an_epoch :]
    # Some of them may be another epoch's by chance: those of an epoch that was surely read are not.
    reads = Counter(before)
    sure = [epoch for epoch in before if reads[epoch] >= SEARCHED_READS]
    fitting = sure[-1] if sure else median_low(before[-READS_BEFORE:])
    last = fitting + passes
    epochs = list(range(min(last, spec.epochs - 1), min(last + 3, spec.epochs)))
    if len(epochs) > 1 and read_before(job, last, opens):
        epochs = [*epochs[1:], epochs[0]]
    return [Unexplained(opens, epochs, EpochBefore(fitting, passes) if sure else None)]


def read_before(job: JobRun, epoch: int, opens: list[Open]) -> bool:
    """Whether an epoch's samples that `opens` are about had been read already: they are of a later epoch then."""
    index, ranks = job.epochs.at_hand.get(epoch), job.matcher.ranks
    own = {(seen.rank_index, seen.position) for seen in opens}  # what they were taken for themselves is no sign
    places = [divmod(code, index.length) for seen in opens for code in index.codes(seen.sample)] if index else []
    if index is None or not places:
        return False
    read = [
        ranks[rank].is_done(index.base + offset) and (rank, index.base + offset) not in own for rank, offset in places
    ]
    return sum(read) >= SURE_SHARE * len(read)


def is_mere_walk(opens: Sequence[Open], first: int) -> bool:
    """Whether reads in the order of the directories may be those of `cp -r`, and not of a script that does not shuffle.

    A script shows itself by workers, each of which jumps over the batches of the others, or by a second pass of one
    process.

    Args:
        first: the file that a pass begins with.
    """
    owners: dict[int, int] = {}
    last: dict[int, int] = {}
    for seen in opens:
        before = last.get(seen.process, seen.sample)
        if seen.sample != before and (owners.get(seen.sample) == seen.process or seen.sample == first):
            return False
        owners[seen.sample], last[seen.process] = seen.process, seen.sample
    last.clear()
    jumps = 0
    for seen in opens:
        before = last.get(seen.process, seen.sample)
        last[seen.process] = seen.sample
        jumped = range(before + 1, min(seen.sample, before + 1 + LONGEST_LOOK))
        jumps += any(owners.get(entry, seen.process) != seen.process for entry in jumped)
    return jumps < JUMPS


# -- the epoch that begins with the reads that disagree, and what each process read first in it

# A process that idles, and many processes with few reads each, are waited for this many times as many reads.
_PATIENCE = 8


class Beginning(NamedTuple):
    """The epoch that begins with the reads that disagree, and what each process read first in it.

    Attributes:
        opens: none where the epoch began before all that is remembered.
        heads: the first reads of each process, as entries, in the order in which the processes began.
        passes: how many epochs went by since the last one that came as predicted.
    """

    epoch: int
    opens: list[Open]
    heads: list[list[int]]
    passes: int = 0


class Beginnings:
    """The beginnings of epochs whose order is not known: each as many opens after the other as an epoch has.

    Attributes:
        passes: of the last one that was asked for (`latest`).
    """

    def __init__(self) -> None:
        self.passes = 0
        self._first_unfit = (-1, 0)  # the first epoch that did not come as predicted, and how many opens were before it

    def latest(self, job: JobRun) -> Beginning:
        """The epoch that is being read, if the last one that came as predicted does not go on."""
        begun = self.peek(job)
        self.passes = begun.passes
        return begun

    def peek(self, job: JobRun) -> Beginning:
        """The same, which `another_began` does not take for asked."""
        epoch, opens = _after_last_fitting(job)
        if epoch != self._first_unfit[0]:
            self._first_unfit = epoch, job.score.observed - len(opens)
        passes, count = self._passed(job)
        if passes or count > len(job.score.history):
            opens = opens[-count:] if 0 < count <= len(opens) else []
        return Beginning(min(epoch + passes, job.spec.epochs - 1), opens, _heads(opens), passes)

    def another_began(self, job: JobRun, opens: int) -> bool:
        """Whether a later epoch than at the last time has so many opens by now. Asked for each few reads: cheap."""
        if self._first_unfit[0] < 0:
            return False
        passes, count = self._passed(job)
        return passes > self.passes and count >= opens

    def _passed(self, job: JobRun) -> tuple[int, int]:
        """Epochs that went by since the last one that came as predicted, and the opens of the one under way."""
        return divmod(job.score.observed - self._first_unfit[1], job.ranks.epoch_reads)


def _after_last_fitting(job: JobRun) -> tuple[int, list[Open]]:
    """The epoch after the last one that came as predicted, and what was read since that one's last open."""
    fitting = [
        epoch
        for (epoch, rank), cell in job.score.cells.items()
        if rank >= 0 and cell.agreed >= FEWEST_FITTING and fits(cell.observed, cell.agreed)
    ]
    history = list(job.score.history)
    if not fitting:
        return job.spec.start_epoch, history
    return min(max(fitting) + 1, job.spec.epochs - 1), history[_end_of(max(fitting), history) :]


def _heads(opens: list[Open]) -> list[list[int]]:
    heads: dict[int, list[int]] = {}
    for opened in opens:
        head = heads.setdefault(opened.process, [])
        if len(head) < MOST_FIRST_READS:
            head.append(opened.sample)
    return list(heads.values())


def _end_of(epoch: int, history: list[Open]) -> int:
    """The number of opens up to the last one of an epoch that came as predicted.

    One open of the next epoch may lie by chance where this one begins: so an open counts whose process had come as
    predicted just before, at an earlier position.
    """
    end = 0
    before: dict[int, Open] = {}
    for number, opened in enumerate(history, 1):
        last = before.get(opened.process)
        before[opened.process] = opened
        if last is None or not (opened.agrees and last.agrees and opened.cell.epoch == last.cell.epoch == epoch):
            continue
        if opened.position > last.position:
            end = number
    return end


def _nobodys(reads: Iterable[Read], epoch: int) -> list[Open]:
    """Reads that no job has counted, as opens."""
    cell = Cell(epoch, -1)
    return [Open(read.sample, read.process, read.parent, cell, False, -1, -1) for read in reads]


def processes_ready(beginning: Beginning, n_samples: int) -> int:
    """How many processes have read enough to tell where the epoch begins, if they read from its beginning."""
    needed = reads_needed(n_samples)
    return sum(len(head) >= needed for head in beginning.heads)


def enough(beginning: Beginning, n_samples: int) -> bool:
    """Whether a process has read enough to tell where its epoch begins, or so many have read that waiting is no use."""
    many = len(beginning.opens) >= _PATIENCE * reads_needed(n_samples)
    return many or processes_ready(beginning, n_samples) > 0


# -- one registered job


POOL = "variants"
# A job that eight searches could not explain is left alone.
MOST_SEARCHES = 8
# When nothing explained an epoch, so many searches are worth it for the next one, which may lie nearer.
SEARCHES_OF_A_LATER_EPOCH = 2
# Trying other registrations goes on, but a job must not wait longer for what an unregistered mount would find.
SET_ASIDE_AFTER_S = 3.0
# Reads of strangers that show for which rank they read: more than the two batches after which they are strangers.
READS_OF_A_RANK = 24

ExplainAnew = Callable[[Sequence[Open]], None]
"""Takes the first reads of an epoch to which a registration does not lead, as if there were no registration."""


class Correction:
    """One job: whether its reads come as registered, and the searches for what its script does when they don't. A job
    that was inferred never calls for one.

    Args:
        explain_anew: None where guessing is forbidden.

    Attributes:
        job: the job in force: as it was registered, or as it was found to be.
        is_searched: whether a search is under way.
    """

    def __init__(self, jobs: Jobs, job: JobRun, explain_anew: ExplainAnew | None) -> None:
        self.job = job
        self.is_searched = False
        job.rivals.await_search(not job.inferred)
        self._jobs = jobs
        self._explain_anew = explain_anew
        self._registered = job.spec
        self._attempt: Attempt | None = None  # the search in a process of its own, while it is under way
        # Shape and lag by which the last reads were predicted that came as predicted; None before any. The matcher
        # learns something wrong of a loader from reads in another order than it expects.
        self._loader: LearnedLoader | None = None
        self._beginnings = Beginnings()
        self._searches = self._in_vain = 0  # how many there were, and how many of the last ones found nothing
        self._seen = self._not_before = 0  # how many opens the job had seen at the last search, and must for the next
        self._asked_at: dict[Key, int] = {}  # reads at which a family of strangers is looked at again
        self._more_opens = trio.Event()

    # -- whether there is a need

    def digested(self) -> None:
        """Opens were counted, perhaps some of the job."""
        self.wake()
        if self.job.score.agreement_of_last(SEARCHED_READS) == 1.0:  # what the matcher knows of the loader is right
            self._loader = LearnedLoader(self.job.matcher.shape, self.job.matcher.lag)
            enough = len(self.job.score.history) >= SEARCHED_READS  # a few hits say nothing against what was found
            if enough and self.job.is_set_aside and self._explain_anew is not None:
                self.job.set_aside(False)
                self._explain_anew([])

    def wake(self) -> None:
        """Have a search that waits look whether there is more to go by, or the job is gone."""
        self._more_opens.set()
        self._more_opens = trio.Event()

    def needs_search(self) -> bool:
        """Whether the job's reads call for one now."""
        if self.is_searched or self.job.inferred or self.job.finished:
            return False
        # Opens that turned out to be a stranger's are not counted any more: the next search does not wait for them.
        back = max(0, self._seen - self.job.score.observed)
        self._seen, self._not_before = self._seen - back, self._not_before - back
        if not disagrees(self.job):
            return bool(self._unknown_ranks())
        waits = self._in_vain >= MOST_SEARCHES or self.job.score.observed < self._not_before
        return not waits or self._beginnings.another_began(self.job, UNFIT_READS)

    def _is_followed(self, job: JobRun) -> bool:
        """Whether the job still runs, and no other hypothesis is in its place."""
        return self.job is job and self._jobs.jobs.get(job.name) is job

    # -- the search

    async def search(self) -> None:
        """From the opens that disagree to a hypothesis that explains them; if there is none, set the job aside."""
        self.job.rivals.await_search(self._in_vain < MOST_SEARCHES)
        try:
            await self._search()
        except Exception:  # whatever it is: the job goes on as it was
            log.exception("job %s: the search for what it does failed", self.job.name)
        finally:
            self.is_searched = False
            self.job.rivals.await_search(not self._searches)

    async def _search(self) -> None:
        job, score = self.job, self.job.score
        if not disagrees(job):
            await self._find_ranks()
            return
        self._count_search(len(disagreeing(score.history)), score.observed)
        log.info("job %s: reads don't come as registered; trying what else the script may do", job.name)
        drawing = drawing_of(job.streams.order) if job.streams.sample_ids.ndim == 1 else None
        looked_near = trio.Event()  # near places are likelier than any variant, and take tenths of a second
        async with trio.open_nursery() as nursery:

            async def find_place() -> None:
                if drawing is not None and await self._find_place(drawing, looked_near):
                    nursery.cancel_scope.cancel()
                looked_near.set()

            nursery.start_soon(find_place)
            with trio.move_on_after(SET_ASIDE_AFTER_S) as in_time:
                await looked_near.wait()
            # Far places take seconds, and variants up to a minute: they are looked at side by side.
            async with trio.open_nursery() as trying:
                trying.start_soon(self._set_aside_later, in_time.deadline)
                explained = self._is_followed(job) and disagrees(job) and await self._find_variant()
                trying.cancel_scope.cancel()
            if explained:
                nursery.cancel_scope.cancel()
            else:
                self._set_aside()

    def _count_search(self, opens: int, seen: int) -> None:
        """The search has so many opens to go by, the last of `seen`. The next search waits for twice as many more."""
        self._searches += 1
        passes = self._beginnings.passes
        self._beginnings.latest(self.job)
        if self._beginnings.passes > passes:  # what earlier epochs did not show says nothing of this one
            self._in_vain = min(self._in_vain, MOST_SEARCHES - SEARCHES_OF_A_LATER_EPOCH)
        self._in_vain += 1
        self._seen, self._not_before = seen, seen + 2 * opens

    # -- nothing explains the reads

    async def _set_aside_later(self, at_s: float) -> None:
        """Trying all variants with millions of samples takes most of a minute: without the job it would not."""
        await trio.sleep_until(at_s)
        self._set_aside()

    def _set_aside(self) -> None:
        """Have the reads explained as if nobody had registered the job."""
        if self._explain_anew is None or self.job.is_set_aside or not self._is_followed(self.job):
            return
        if disagrees(self.job):
            self.job.set_aside(True)
            self._explain_anew(self._beginnings.latest(self.job).opens)

    # -- another registration

    async def _find_variant(self, moved_job: Hypothesis | None = None) -> bool:
        """Try other registrations. Returns whether one of them explains the reads, or the registered one does again.

        Args:
            moved_job: in place of the job as it is: with the beginning of an epoch that its reads have shown.
        """
        job, shape, seen = self.job, self.job.matcher.shape, self.job.score.observed
        spec, streams = job.spec, job.streams
        if moved_job is not None and moved_job.streams is not None:
            spec, streams = moved_job.spec, moved_job.streams
        found, opens = None, list[Open]()
        for opens, epochs, before in unexplained(job):
            found = await self._jobs.runner.run(
                POOL, find_correction, spec, streams, opens, epochs, len(job.member),
                shape.batch * max(1, shape.workers), [job.readers.key_of(*of[1:3]) for of in opens],
                before if moved_job is None else None,
            )  # fmt: skip
            if found is not None:
                break
        if found is None:
            log.info("job %s: no other registration that was tried explains the reads", job.name)
            return False
        walk, ids = explained_by(found, job, job.score.history), job.streams.sample_ids
        in_order = found.changes.get("shuffle") is False or found.changes.get("sampler") == "sequential"
        if in_order and is_mere_walk(walk, int(ids[ids >= 0].min())):
            log.info("job %s: somebody walks the directories, which a script that does not shuffle does", job.name)
            return False
        if moved_job is not None:
            sentence = f"{moved_job.sentence}; {found.sentence}"
            found = replace(found, sentence=sentence, changes={**moved_job.changes, **found.changes})
        return await self._await_ruling(found, opens, seen)

    # -- ranks that nobody registered

    def _unknown_ranks(self) -> list[Family]:
        """Strangers that may read for ranks of the job's world, or of another one where nobody else reads; of these,
        those that have read enough since they were looked at."""
        job, asked = self.job, self._asked_at
        if job.is_set_aside:
            return []
        strangers = job.readers.strangers_in_an_order()
        ready = [family for family in strangers if family.reads >= asked.get(family.key, READS_OF_A_RANK)]
        if len(job.spec.ranks) < job.spec.world_size:
            return ready
        return [family for family in ready if job.readers.reads_alone(family, job.matcher)]

    async def _find_ranks(self) -> None:
        """Have the job go on with the ranks besides for which strangers read, or with those of another world."""
        job, families = self.job, self._unknown_ranks()
        known = {family.key for family in job.readers.strangers_in_an_order()}
        self._asked_at = {key: at for key, at in self._asked_at.items() if key in known}
        self._asked_at |= {family.key: 2 * family.reads for family in families}
        slowest, fastest = job.ranks.current_epochs()
        epochs = range(slowest, min(fastest + 2, job.spec.epochs))
        if not families or not epochs:
            return  # they have ended, or the job has, since this search was called for
        first = min(progress.floor for progress in job.matcher.ranks) - job.epochs.timeline.base(slowest)
        reads = [family.last_reads() for family in families]
        found = await self._jobs.runner.run(
            POOL, find_ranks, job.spec, job.streams, reads, epochs, max(0, first), len(job.member),
        )  # fmt: skip
        if not self._is_followed(job):
            return
        if found is None:
            await self._find_world(families, reads, slowest)
            return
        seen, opens = job.score.observed, [seen for seen in job.score.history if seen.cell.epoch >= slowest]
        opens += _nobodys((read for family in families for read in family.waiting), slowest)
        await self._await_ruling(found, opens, seen)

    async def _find_world(self, families: Sequence[Family], reads: Sequence[Sequence[Read]], slowest: int) -> None:
        """Have the job go on with another number of ranks, where strangers read for these and nobody else reads.

        Args:
            reads: of each family. slowest: the epoch that the run before has not left.
        """
        job = self.job
        pairs = zip(families, reads, strict=True)
        alone = [(family, own) for family, own in pairs if job.readers.reads_alone(family, job.matcher)]
        if not alone:
            return
        passed = max(family.reads for family, _ in alone) // job.streams.length(slowest)
        found = await self._jobs.runner.run(
            POOL, find_world, job.spec, job.streams, [own for _, own in alone],
            range(slowest, min(slowest + passed + 2, job.spec.epochs)), len(job.member),
        )  # fmt: skip
        if found is None or not self._is_followed(job):
            return
        world, of_families = found
        by_time = sorted((read for at in of_families for read in alone[at][1]), key=lambda read: read.at_s)
        await self._await_ruling(world, _nobodys(by_time, world.spec.start_epoch), job.score.observed)

    # -- another place in the words of its generator

    async def _find_place(self, drawing: WordsDrawn, looked_near: trio.Event) -> bool:
        """Look for the epoch in the words of the registered seed's generator.

        Only one of a loader's workers reads from where the epoch begins, and it need not be the first that has read
        enough. So if the reads say nothing, the search looks once more when more processes have read enough by then.

        Args:
            looked_near: is set once it is known that no place nearby explains them.
        """
        job, n_samples = self.job, len(self.job.streams.sample_ids)
        begun = self._beginnings.latest(job)
        while begun.opens and self._is_followed(job) and disagrees(job):
            if not enough(begun, n_samples):
                await self._more_opens.wait()
                begun = self._beginnings.latest(job)
                continue
            ready, seen = processes_ready(begun, n_samples), job.score.observed
            found = await self._place_of(drawing, begun, ready, looked_near)
            if found is not None:
                return await self._go_on_at(drawing, begun, found.words, seen)
            before, begun = begun, self._beginnings.peek(job)
            if begun.passes != before.passes or processes_ready(begun, n_samples) <= ready:
                break  # an epoch that has begun meanwhile calls for a search of its own
        return False

    async def _place_of(
        self, drawing: WordsDrawn, begun: Beginning, ready: int, looked_near: trio.Event
    ) -> PlaceFound | None:
        """The place at which the epoch begins, by its reads: looked for near where it should be, then far.

        Args:
            ready: how many processes have read enough. The far search, of tens of millions of words in a process of its
                own, is ended once more have, as long as what they have read first is remembered: what that shows may
                lie near.
        """
        job, runner = self.job, self._jobs.runner
        near, far = whereabouts(job, drawing, begun.epoch)
        data_set = await runner.run(POOL, as_indices, begun.heads, job.streams.sample_ids)
        asked = WordsAsked(drawing.seed, drawing.seeded, drawing.ahead, near, job.spec.weights_file or "")
        found = await runner.run(POOL, place_nearby, data_set, asked)
        if found is not None:
            return found
        looked_near.set()
        attempt = self._attempt = Attempt(runner, self._jobs.clock, set())

        async def end_once_more_are_ready() -> None:
            now = self._beginnings.peek(job)
            while now.opens and now.passes == begun.passes:
                if processes_ready(now, len(job.streams.sample_ids)) > ready:
                    attempt.end()
                    return
                await self._more_opens.wait()
                now = self._beginnings.peek(job)

        try:
            searching = attempt.searching([data_set], words=asked._replace(spans=far))
            async with searching as events, trio.open_nursery() as nursery:
                nursery.start_soon(end_once_more_are_ready)
                async for event in events:
                    if event is None or isinstance(event, PlaceFound):
                        found = event
                        break
                nursery.cancel_scope.cancel()
        finally:
            self._attempt = None
        return found

    async def _go_on_at(self, drawing: WordsDrawn, begun: Beginning, words: int, seen: int) -> bool:
        """Have the job go on with an epoch that begins after so many words.

        Args:
            seen: how many opens the job had counted up to the last of those that the epoch has begun with.
        """
        job = self.job
        moved_job = switched(job, drawing, begun.epoch, words)
        if moved_job is None:
            moved_job = moved(job, drawing, begun.epoch, words, self._registered)
        if moved_job is None or not self._is_followed(job):
            return False
        if await self._await_ruling(moved_job, list(begun.opens), seen):
            return True
        # The words are those, but they are dealt to other ranks than was registered.
        return self._is_followed(job) and await self._find_variant(moved_job)

    # -- further reads bear it out, or not

    async def _await_ruling(self, found: Hypothesis, opens: list[Open], seen: int) -> bool:
        """Propose a hypothesis to the job, which shows it the reads that come, until these rule on it.

        If several families of processes read, only those count whose opens it was found to explain.

        Args:
            opens: that it was searched with. seen: how many opens the job had counted up to the last of them.

        Returns:
            whether it is in force, or the job is right after all.
        """
        job, matcher, seen_now = self.job, self.job.matcher, seen
        new = await self._shown(found, opens)
        if found.origin is Origin.PLACE and (fitting_ones := fitting_families(job, new.score.history)):
            found = replace(found, families=fitting_ones)
            new = await self._shown(found, opens)
        rival = OtherJob(found, new, job, seen - len(opens))
        while self._is_followed(job) and job.matcher is matcher:  # it is shown what came meanwhile, and all that comes
            for opened in explained_by(found, job, matcher.score.since(seen_now)):
                rival.read(opened.read)
            seen_now = max(seen_now, matcher.score.observed)
            if not new.missing_epochs():
                if job.propose(rival):
                    self._jobs.another_leads(job)
                break
            await load_epochs(self._jobs.runner, new)
        while self._is_followed(job) and job.rivals.by_origin.get(rival.origin) is rival:
            gone = self._is_gone(rival)
            if gone:
                log.info("job %s: %s: %s", job.name, gone, found.sentence)
                job.rivals.withdraw(rival)
                break
            await self._more_opens.wait()
            if new.missing_epochs():
                await load_epochs(self._jobs.runner, new)
        if rival.ruled is Ruling.OTHER_STANDS:
            log.info("job %s: reads come as registered again", job.name)
        if rival.ruled is Ruling.REFUTED and rival.further.opens:
            log.info("job %s: not confirmed by %d further opens: %s", job.name, rival.further.opens, found.sentence)
        return rival.ruled is Ruling.INSTALL or rival.ruled is Ruling.OTHER_STANDS

    def _is_gone(self, rival: OtherJob) -> str:
        """Why no further reads are to be waited for, in words; "" while they are."""
        job = self.job
        if job.is_set_aside and job.shared.are_read_for_another(seen.process for seen in rival.matcher.score.history):
            return "another job explains the reads by now"
        last = islice(reversed(job.score.history), SEARCHED_READS)
        return "only strangers read so" if not disagrees(job) and not any(map(rival.is_about, last)) else ""

    async def _shown(self, found: Hypothesis, opens: list[Open]) -> JobRun:
        """The hypothesis as a job that has seen those of these opens that it explains."""
        job, matcher = self.job, self.job.matcher
        like = self._loader
        if like is None and found.origin is not Origin.PLACE:
            like = LearnedLoader(matcher.shape, matcher.lag)
        streams = job.streams if found.streams is None else found.streams
        new = JobRun(found.spec, streams, self._jobs.manifest.sample_sizes, found, like, job.readers.name_of)
        await load_epochs(self._jobs.runner, new)
        own = explained_by(found, job, opens)
        await self._jobs.runner.run(POOL, new.match_again, own)  # thousands, maybe: not on the loop
        return new

    def goes_on_with(self, job: JobRun) -> bool:
        """Whether a job in the place of this one is what was found to be true of it. If so, it is known from now on."""
        if job.registered is None or job.registered is not (self.job.registered or self.job):
            return False
        self.job = job
        self._in_vain = self._seen = self._not_before = 0
        self._beginnings = Beginnings()
        return True

    # -- for the status

    def statistics(self, explains: Callable[[JobRun], JobRun | None]) -> CaseStatistics:
        true = explains(self.job) if self.job.is_set_aside else None
        registered, instead = self.job.spec, None
        if true is not None:
            named = true.spec.model_copy(update={"name": registered.name, "epochs": registered.epochs})
            instead = Instead(in_words(registered), in_words(true.spec), register_flags(named, ""))
        return CaseStatistics(
            self.is_searched,
            self._searches,
            None if self._attempt is None else self._attempt.statistics(),
            likely_causes(self.job, in_vain=self._in_vain > (1 if self.is_searched else 0)),
            instead,
        )


class Corrections:
    """The corrections of a mount, one for each job. `run` must be running.

    Args:
        explain_anew: None where guessing is forbidden.
    """

    def __init__(self, jobs: Jobs, explain_anew: ExplainAnew | None) -> None:
        self._jobs = jobs
        self._explain_anew = explain_anew
        self._known: dict[str, Correction] = {}
        self._wanted = trio.Event()

    def _of(self, job: JobRun) -> Correction | None:
        known = self._known.get(job.name)
        return known if known is not None and (known.job is job or known.goes_on_with(job)) else None

    def jobs_changed(self) -> None:
        """Forget jobs that are no more, and know those that are new."""
        before, jobs = self._known, self._jobs.jobs
        self._known = {
            name: self._of(job) or Correction(self._jobs, job, self._explain_anew) for name, job in jobs.items()
        }
        for correction in before.values():
            correction.wake()

    def digested(self, job: JobRun) -> None:
        """Opens were counted: whether the job needs a search."""
        correction = self._of(job)
        if correction is None or job.matcher.lacks_pids:  # who reads what is not known: nothing is concluded from it
            return
        correction.digested()
        if correction.needs_search():
            self._wanted.set()

    async def run(self) -> None:
        """Search whenever a job needs it, for as long as the mount lives."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                for correction in self._known.values():
                    if correction.needs_search():
                        correction.is_searched = True
                        nursery.start_soon(correction.search)

    def statistics(self, explains: Callable[[JobRun], JobRun | None]) -> dict[str, CaseStatistics]:
        """Frozen figures by the job's name.

        Args:
            explains: the job that explains the reads of one that was set aside, if there is one.
        """
        return {name: correction.statistics(explains) for name, correction in self._known.items()}


# -- whose opens they are, while nobody has proved to read for the job


def explained_by(found: Hypothesis, job: JobRun, opens: Iterable[Open]) -> list[Open]:
    """Those of these opens that families made whose opens a hypothesis explains."""
    families, key_of = found.families, job.readers.key_of
    return [seen for seen in opens if families is None or key_of(seen.process, seen.parent) in families]


def fitting_families(job: JobRun, history: Iterable[Open]) -> frozenset[Key] | None:
    """The families most of whose opens came as predicted; None where that is true of all."""
    opens: dict[Key, list[bool]] = {}
    for opened in history:
        opens.setdefault(job.readers.key_of(opened.process, opened.parent), []).append(opened.agrees)
    fewest = JUDGED_OPENS // 2
    found = frozenset(one for one, agrees in opens.items() if len(agrees) >= fewest and fits(len(agrees), sum(agrees)))
    return None if len(found) == len(opens) else found


# -- why a registered job's reads do not come as it says, in words


def likely_causes(job: JobRun, in_vain: bool) -> str:
    """The likeliest causes, the likeliest first. Args: in_vain: whether a search has looked for those that it finds."""
    own = built_in(job.spec.sampler)
    fields = own.fields if own is not None else frozenset()
    drawn = (
        "random numbers drawn before the first epoch, by a model that was made for one, or between two epochs"
        " (--words-before, --words-between)"
    )
    found_by_searches = (
        (drawing_of(job.streams.order) is not None, drawn),
        ("seed" in fields, "another seed"),
        ("set_epoch" in fields, "set_epoch not called"),
        (True, "another world size, shuffle off"),
    )
    causes = [cause for applies, cause in found_by_searches if applies and not in_vain]
    return ", ".join([*causes, "another sampler, data set or layout than registered", "an order that no seed gives"])
