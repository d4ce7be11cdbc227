"""When reads don't come as registered: try what else the script may do, in the background, and adopt what proves right.

In: jobs whose opens don't fit. Out: jobs that go on with another specification, and a sentence about it for `status`
and the log. The trials run in a thread, a long search at the lowest priority; what they find must then be confirmed by
opens that they have not seen. Run by `mlfs.engine.engine`; the thinking is in `mlfs.explain.variants`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import trio

from mlfs.errors import MlfsError
from mlfs.explain.evidence import JUDGED_OPENS, LEAST_BITS, SURE_SHARE, beyond_chance, confirmed
from mlfs.explain.variants import Score, Variant, screen, variants
from mlfs.follow.epoch_index import EpochIndex
from mlfs.follow.job import JobRun
from mlfs.follow.matching import Open
from mlfs.follow.sentences import COUNTS_FROM_ONE, UNDER_WAY, flags_of
from mlfs.job import COMMON, JobSpec, parse_job
from mlfs.orders.registry import build_order, built_in
from mlfs.orders.streams import JobStreams

if TYPE_CHECKING:
    from mlfs.engine.engine import Engine

log = logging.getLogger("mlfs.engine")

POOL = "variants"
FEWEST_SAMPLES = 12
FEWEST_OPENS = 16
FEWEST_AGAIN = 8
LAST_OPENS = 24
MOST_FURTHER_OPENS = 96
WORTH_A_SEARCH = 0.75
HIT_WORTH = 0.4
FOUND_SHARE = 0.4
MOST_SEARCHES = 8
NEAR_THE_BEGINNING = 256
SEEN_BEGINNING = 16
SMALL_SEARCH = 5_000_000
MOST_ELEMENTS = 400_000_000
"""Samples whose order one search may compute: some 40 s of a core."""


class Found(NamedTuple):
    """A variant that explains the opens that were searched with. way_out: flags that register it."""

    spec: JobSpec
    streams: JobStreams
    sentence: str
    score: Score
    way_out: str


def disagreeing(opens: Iterable[Open]) -> list[Open]:
    """The last opens, from where the prediction began to fail: the suffix with most misses beyond its hits."""
    listed = list(opens)
    worth, best, at = 0.0, 0.0, len(listed)
    for number in range(len(listed) - 1, -1, -1):
        worth += -HIT_WORTH if listed[number].agrees else 1
        if worth > best:
            best, at = worth, number
    return listed[at:]


def started_again(job: JobRun) -> bool:
    """Whether processes that are no kin of those before seem to read the job from its start: it will be followed."""
    shadow = job.shadow
    if shadow is None or job.shadow_is_kin or shadow.observed < FEWEST_AGAIN:
        return False
    return shadow.agreement_of_last(shadow.observed) >= SURE_SHARE


def fits_again(job: JobRun, further: int, hits: int) -> bool:
    """Whether the job as it is predicts its last opens as well as what was found, and in their very order."""
    matcher = job.matcher
    return matcher.shape.slack == 1 and hits <= round(matcher.agreement_of_last(further) * further)


def read_before(job: JobRun, epoch: int, opens: list[Open]) -> bool:
    """Whether an epoch's samples that `opens` are about had been read already: they are of a later epoch then."""
    index, ranks = job.matcher.epochs.get(epoch), job.matcher.ranks
    own = {(seen.rank_index, seen.position) for seen in opens}  # what they were taken for themselves is no sign
    places = [divmod(code, index.length) for seen in opens for code in index.codes(seen.entry)] if index else []
    if index is None or not places:
        return False
    read = [
        ranks[rank].is_done(index.base + offset) and (rank, index.base + offset) not in own for rank, offset in places
    ]
    return sum(read) >= SURE_SHARE * len(read)


def lowest_priority() -> None:
    """This thread works when nobody else does (a thread's own niceness, on Linux)."""
    if threading.current_thread() is not threading.main_thread():
        os.nice(19)


class VariantSearch:
    """Searches for jobs that need it, one at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.searching: set[str] = set()
        self._wanted, self._more = trio.Event(), trio.Event()

    def look_at(self, job: JobRun) -> None:
        """After opens were digested: whether the job needs a search."""
        if self._needs(job):
            self._wanted.set()
        self._more.set()
        self._more = trio.Event()

    def forgot_set_epoch(self, job: JobRun) -> bool:
        """Whether a job that reads its first epoch again may simply not call set_epoch: nobody else reads than before,
        and no later epoch was ever read as predicted."""
        if job.searches and job.spec.name not in self.searching:
            return False
        if job.searches >= MOST_SEARCHES or not isinstance(job.spec, JobSpec) or not job.spec.set_epoch:
            return False
        own = built_in(job.spec.sampler)
        if job.inferred or not job.shadow_is_kin or own is None or "set_epoch" not in own.fields:
            return False
        first = job.spec.start_epoch
        return not any(cell.agreed > FEWEST_OPENS for (epoch, _), cell in job.matcher.cells.items() if epoch > first)

    def _needs(self, job: JobRun) -> bool:
        matcher = job.matcher
        if job.inferred or job.finished or not isinstance(job.spec, JobSpec) or job.searches >= MOST_SEARCHES:
            return False
        if job.spec.name in self.searching or started_again(job):
            return False
        if matcher.observed < job.search_after or len(matcher.history) < FEWEST_OPENS:
            return False
        if matcher.stream_length < FEWEST_SAMPLES or matcher.agreement_of_last(LAST_OPENS) >= WORTH_A_SEARCH:
            return False
        return len(disagreeing(matcher.history)) >= FEWEST_OPENS

    async def run(self) -> None:
        """Search whenever a job needs it, for as long as the mount lives."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                for job in self.engine.jobs.values():
                    if self._needs(job):
                        self.searching.add(job.spec.name)
                        nursery.start_soon(self._search_for, job)

    async def _search_for(self, job: JobRun) -> None:
        try:
            await self._search(job)
        except Exception:  # whatever it is: the job goes on as it was
            log.exception("job %s: the search for what it does failed", job.spec.name)
        finally:
            self.searching.discard(job.spec.name)

    async def _search(self, job: JobRun) -> None:
        job.searches += 1
        opens = disagreeing(job.matcher.history)
        job.search_after = job.matcher.observed + 2 * len(opens)
        seen = job.matcher.observed
        before = [o.cell.epoch for o in list(job.matcher.history)[: -len(opens)] if o.agrees]
        epochs = [job.spec.start_epoch]  # nothing ever fitted: the script has just begun
        if before:
            epochs = list(range(before[-1], min(before[-1] + 3, job.spec.epochs)))
            if len(epochs) > 1 and read_before(job, before[-1], opens):
                epochs = [*epochs[1:], epochs[0]]  # where all have the same order, the first that is tried is taken
        log.info("job %s: reads don't come as registered; trying what else the script may do", job.spec.name)
        shape = job.matcher.shape
        found = await self.engine.runner.run(
            POOL, find, job.spec, job.streams, opens, epochs, job.n_entries, shape.batch * max(1, shape.workers)
        )
        if found is None:
            log.info("job %s: nothing that was tried explains the reads", job.spec.name)
            return
        await self._confirm(job, found, opens, seen)

    async def _confirm(self, job: JobRun, found: Found, opens: list[Open], seen: int) -> None:
        """Adopt what was found once opens that it was not searched with fit it."""
        new = JobRun(found.spec, found.streams, self.engine.manifest.size)
        new.matcher.shape, new.matcher.lag = job.matcher.shape, job.matcher.lag
        await self._load(new)
        await self.engine.runner.run(POOL, new.replay, opens)  # thousands, maybe: not on the loop
        further, hits, matcher = 0, 0, job.matcher
        while self.engine.jobs.get(job.spec.name) is job and job.matcher is matcher:  # else begun again
            count = min(job.matcher.observed - seen, len(job.matcher.history))
            if count <= 0:
                await self._more.wait()
                continue
            latest = list(islice(reversed(job.matcher.history), count))[::-1]
            seen = job.matcher.observed
            before = new.matcher.agreed
            new.replay(latest)
            further, hits = further + len(latest), hits + new.matcher.agreed - before
            opens += latest
            if new.missing_epochs():
                await self._load(new)
            elif further >= JUDGED_OPENS and fits_again(job, further, hits):
                log.info("job %s: reads come as registered again", job.spec.name)
                return
            elif confirmed(further, hits):
                self.engine.adopt(job, new, opens, found.sentence, found.way_out)
                return
            elif further >= MOST_FURTHER_OPENS:
                log.info("job %s: not confirmed by %d further opens: %s", job.spec.name, further, found.sentence)
                return

    async def _load(self, job: JobRun) -> None:
        for epoch in job.missing_epochs():
            job.add_epoch(await self.engine.runner.run("orders", job.load_epoch, epoch))


def find(
    spec: JobSpec, streams: JobStreams, opens: list[Open], epochs: list[int], n_entries: int, round_: int = 1
) -> Found | None:  # fmt: skip
    """The variant that explains the opens best, None when none does better than chance could (a thread's work).

    Args:
        epochs: which the opens may belong to.
        n_entries: how many entries the mount has. round_: positions that all workers of a rank read in one round.
    """
    entries = np.array([seen.entry for seen in opens], dtype=np.int64)
    processes = np.array([seen.process for seen in opens], dtype=np.int64)
    own = built_in(spec.sampler)
    fields = spec.model_dump()
    best: tuple[Score, Variant, int, JobSpec, JobStreams] | None = None
    tried = elements = 0
    for variant in variants(fields, own.fields if own else ()):
        other = _changed(spec, streams, variant)
        for epoch in epochs if variant.epoch is None else [variant.epoch]:
            if other is None or elements > MOST_ELEMENTS:
                continue
            ids = [other[1].epoch_ids(epoch, rank) for rank in other[0].ranks]
            elements += len(streams.sample_ids)
            if elements > SMALL_SEARCH >= elements - len(streams.sample_ids):
                lowest_priority()
            tried += 1
            score = screen(EpochIndex(epoch, 0, ids, n_entries), entries, processes)
            if score.share >= FOUND_SHARE and (best is None or score.bits > best[0].bits):
                best = (score, variant, epoch, *other)
        if best is not None and best[0].exact and best[0].bits > 2 * LEAST_BITS:
            break
    if best is None or not beyond_chance(best[0].bits, tried):
        return None
    return _found(spec, round_, *best)


def _changed(spec: JobSpec, streams: JobStreams, variant: Variant) -> tuple[JobSpec, JobStreams] | None:
    """The job with the variant's fields; None when there is no such job."""
    given = spec.model_dump(mode="json", exclude_unset=True, exclude_none=True) | {"name": spec.name}
    sampler = built_in(str(variant.changes.get("sampler", spec.sampler)))
    changes = {name: value for name, value in variant.changes.items() if value is not None}
    fields = {name: value for name, value in given.items() if name not in variant.changes} | changes
    if sampler is not None:
        fields = {name: value for name, value in fields.items() if name in COMMON or name in sampler.fields}
    fields.pop("preset", None)
    try:
        other = parse_job(fields)
        order = build_order(other, len(streams.sample_ids), None)
        made = JobStreams(other, streams.sample_ids, order)
        made.length(other.start_epoch)
        return other, made
    except (MlfsError, ValueError, OSError):
        return None


def _found(
    old: JobSpec, round_: int, score: Score, variant: Variant, epoch: int, spec: JobSpec, streams: JobStreams
) -> Found | None:
    """The specification to go on with: from where the opens are, for the ranks that read."""
    ranks = [spec.ranks[index] for index in score.ranks]
    # The batches count from where the loader began: from the epoch's beginning, unless that is far away.
    first = score.first - score.first % round_ if score.first > NEAR_THE_BEGINNING else 0
    changes: dict[str, object] = {"start_epoch": epoch, "start_step": first // streams.batch_files}
    sentence = variant.sentence
    told = {name: value for name, value in variant.changes.items() if name != "start_step" or old.start_step}
    if score.first >= max(round_, SEEN_BEGINNING) and not ("ranks" in variant.changes or old.start_step):
        if sentence == COUNTS_FROM_ONE and epoch + 1 < old.epochs:  # the same order by the seed as registered
            epoch, spec = epoch + 1, old
            changes["start_epoch"] = epoch
        if variant.epoch is not None or sentence == COUNTS_FROM_ONE:
            sentence, told = UNDER_WAY.format(epoch=epoch), {}
    if "ranks" in old.model_fields_set and "ranks" in variant.changes:
        changes["ranks"] = told["ranks"] = ranks
        if "world_size" not in variant.changes:
            sentence = f"this mount is read by {_named(ranks)}, not by {_named(old.ranks)}"
    made = _changed(spec, streams, Variant(changes, sentence))
    return None if made is None else Found(*made, sentence, score, flags_of(told))


def _named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank) for rank in ranks[:8])
