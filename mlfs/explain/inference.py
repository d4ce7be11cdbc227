"""Finds out in what order an unregistered mount is read, and has the engine fetch ahead by it.

In: every open, after the engine has digested it; registrations. Out: an inferred job in the engine, words for the
status. Lives on the daemon's loop; what takes longer runs in worker threads and in a process of its own
(`mlfs.explain.seed_search`). The thinking is done in `mlfs.explain`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np
import trio

from mlfs.engine.engine import Engine
from mlfs.errors import JobError
from mlfs.explain.choice import chosen
from mlfs.explain.command_lines import seeds_on_command_lines
from mlfs.explain.confirm import Finding, confirm_sequential, refine
from mlfs.explain.data_sets import Candidate, MakeSamples, as_indices, candidates
from mlfs.explain.explanations import JOB_NAME, Fields, continued, explanations, in_words
from mlfs.explain.first_reads import Reads
from mlfs.explain.inferred import Lock
from mlfs.explain.question import FEWEST_SAMPLES, MOST_HEADS, reads_needed
from mlfs.explain.recipes import Recipe, kin
from mlfs.explain.resume import Begin, where
from mlfs.explain.search_stages import Draw, Event, Found, Generators, Progress, has_numba
from mlfs.explain.seed_search import SeedSearch
from mlfs.job import JobSpec, parse_job
from mlfs.orders.streams import JobStreams

log = logging.getLogger("mlfs.explain")

POOL = "infer"
MOST_IN_VAIN = 16
TRY_AGAIN_AFTER = (20, 40, 80)
MOST_EVENTS = 64  # findings, the generators with each that is found, the end
MOST_JOBS = 4

MakeStreams = Callable[[JobSpec], JobStreams]


class InferenceState(StrEnum):
    """What inferring does, as `status` says it."""

    OFF = "off"
    IDLE = "a job is registered"
    WATCHING = "watching the first reads"
    SEARCHING = "searching"
    LOCKED = "locked on"
    UNKNOWN = "no order that mlfs knows explains the reads"


class Inference:
    """See the module.

    Args:
        make_samples, make_streams: the data set and the streams of a job; called in worker threads.
        allowed: `--infer`.
    """

    def __init__(
        self, engine: Engine, make_samples: MakeSamples, make_streams: MakeStreams, allowed: bool = True
    ) -> None:
        self.engine = engine
        self.allowed = allowed
        self.locks: dict[str, Lock] = {}
        self.progress: Progress | None = None
        self.searches = self._in_vain = 0
        self._idle = False
        self._busy = False
        self._failed_for: frozenset[int] = frozenset()
        self._stage_began_s = 0.0
        self._make_samples = make_samples
        self._make_streams = make_streams
        self._needed = reads_needed(max(engine.manifest.n_files, FEWEST_SAMPLES))
        self._reads = Reads()
        self._lost: Lock | None = None
        self._hoped_for: Lock | None = None
        self._asked: set[int] = set()
        self._again = self._found = False
        self._wanted = trio.Event()
        self._scope: trio.CancelScope | None = None
        self._search: SeedSearch | None = None
        if allowed:
            engine.watchers.append(self.opened)
            engine.jobs_changed.append(self._jobs_changed)

    @property
    def state(self) -> InferenceState:
        """In one word."""
        if not self.allowed:
            return InferenceState.OFF
        if self._idle:
            return InferenceState.IDLE
        if self.locks:
            return InferenceState.LOCKED
        if self._busy:
            return InferenceState.SEARCHING
        return InferenceState.UNKNOWN if self._failed_for else InferenceState.WATCHING

    # -- what the engine tells

    def opened(self, entry: int, process: int, parent: int) -> None:
        """An open, digested."""
        if self._idle:
            return
        for lock in self.locks.values():
            if lock.job.member[entry]:
                if lock.follow(entry, process, parent):
                    self._lose(lock)
                return
        self._reads.add(entry, process, parent)
        if self._busy:
            hope = self._hoped_for is not None and self._reads.total in TRY_AGAIN_AFTER
            self._ask_again_for(process, hope and not self._found)
        elif self._reads.enough(self._needed) and len(self.locks) < MOST_JOBS:
            if self._failed_for.issuperset(self._reads.firsts):
                return  # a search for these has failed; other processes may be another matter
            self._busy = True
            self._wanted.set()

    def _ask_again_for(self, process: int, hope: bool) -> None:
        """A search has begun without the reads of this process, which may be the one that begins a rank's epoch.

        With `hope` that by now there are enough reads to choose an explanation that is known, begin again as well.
        """
        first = [] if self._found else self._reads.firsts.get(process, [])
        new = len(first) >= self._needed and process not in self._asked and len(self._asked) < MOST_HEADS
        if new:
            self._asked.add(process)
        if new or hope:
            self._again = True
            if self._search is not None:
                self._search.kill()

    def _lose(self, lock: Lock) -> None:
        """The reads no longer come as explained: find out anew, beginning with the other explanations."""
        log.info("the reads no longer come in the inferred order: %s", in_words(lock.fields))
        self._reads, self._lost = lock.unfit, lock
        lock.epoch = lock.last_epoch()
        self._busy = True
        self._wanted.set()
        self.engine.unregister(lock.job.spec.name)

    def _jobs_changed(self) -> None:
        """A job came or went."""
        jobs = self.engine.jobs
        self.locks = {name: lock for name, lock in self.locks.items() if jobs.get(name) is lock.job}
        was_idle, self._idle = self._idle, any(not job.inferred for job in jobs.values())
        if self._idle and not was_idle:
            self._cancel()
            self._busy, self._lost = False, None
            for name in list(self.locks):
                self.engine.unregister(name)
        elif was_idle and not self._idle:
            self._reads, self.progress, self._failed_for = Reads(), None, frozenset()

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        if self._search is not None:
            self._search.kill()

    # -- the search

    async def run(self) -> None:
        """Infer whenever there is enough to infer from, for as long as the mount lives."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                with trio.CancelScope() as self._scope:
                    try:
                        await self._infer()
                    except Exception:  # whatever it is: the mount serves on without
                        log.exception("inferring failed")
                self._scope = None
                self._busy = self._wanted.is_set()
        finally:
            self._cancel()

    async def _infer(self) -> None:
        """From reads to a job."""
        if self._idle:
            return
        self.progress = None
        self._asked, self._again, self._found = self._reads.processes(self._needed), False, False
        processes, heads = frozenset(self._reads.firsts), self._reads.heads(self._needed)
        lost, self._lost = self._lost, None
        if lost is not None and await self._adopt_alternative(lost):
            return
        found = await self.engine.runner.run(POOL, candidates, self.engine.manifest, heads, self._make_samples)
        finding = confirm_sequential([candidate.data_set for candidate in found])
        if finding is not None:
            await self._adopt(found[finding.data_set], finding, (), None)
            return
        locked = False
        if found and self._in_vain < MOST_IN_VAIN and not self._again:
            self._hoped_for = lost
            locked = await self._search_seeds(found, lost)
            self._hoped_for = None
            self.searches += locked or not self._again
            self._in_vain += not locked and not self._again
        if self._again and not locked:
            self._lost = self._lost or lost
            self._wanted.set()
        elif not locked:
            self._failed_for |= processes
            self._reads = Reads()
            log.info("%s", InferenceState.UNKNOWN)

    async def _search_seeds(self, found: list[Candidate], lost: Lock | None) -> bool:
        """Have the other process search; adopt what it finds, and what it learns later of the epochs to come."""
        told = await self.engine.runner.run(POOL, seeds_on_command_lines, self._reads.pids())
        again = lost is not None and lost.drawn
        search = SeedSearch(
            [candidate.data_set for candidate in found], (*(lost.generators if lost else ()), *told), again
        )
        self._search = search
        events, results = trio.open_memory_channel[Event | None](MOST_EVENTS)

        def tell(event: Event | None) -> None:
            if isinstance(event, Progress):
                if self.progress is None or self.progress.stage != event.stage:
                    self._stage_began_s = self.engine.clock()
                self.progress = event
                if self._found and self.locks and all(lock.decided for lock in self.locks.values()):
                    search.kill()  # the second epoch has told what the rest of the search would tell
            else:
                self._found = self._found or event is not None
                events.send_nowait(event)

        def search_in_thread() -> None:
            try:
                search.run(lambda event: self.engine.runner.post(tell, event))
            except OSError as error:
                log.warning("the search for the seed cannot run: %s", error)
            self.engine.runner.post(tell, None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.engine.runner.run, POOL, search_in_thread)
            try:
                return await self._listen(results, found, lost)
            finally:
                search.kill()
                self._search = None

    async def _listen(
        self, events: trio.MemoryReceiveChannel[Event | None], found: list[Candidate], lost: Lock | None
    ) -> bool:
        """Take what the search tells into use. Returns whether it told anything."""
        last: Found | None = None
        locked = False
        async for event in events:
            if isinstance(event, Recipe):
                same_start = [event.fields, *(fields for fields in kin(event.fields) if fields != event.fields)]
                ranked = [found[event.data_set].fields | fields for fields in same_start]
                locked = await self._adopt_first([fields for fields in ranked if _is_job(fields)])
            elif isinstance(event, Found):
                last = event
                await self._adopt(found[event.finding.data_set], event.finding, event.draws, lost)
            elif isinstance(event, Generators) and last is not None:
                await self._learn_more(found[last.finding.data_set], last.finding, event.draws)
            elif event is None:
                break
        return locked or last is not None

    # -- taking an explanation into use

    async def _adopt(self, candidate: Candidate, finding: Finding, draws: tuple[Draw, ...], lost: Lock | None) -> None:
        """Use the best explanation, keep the others for the second epoch's first reads to choose from."""
        data_set = await self.engine.runner.run(POOL, as_indices, self._reads.heads(self._needed), candidate.ids)
        finding = refine(finding, data_set)
        going_on = [] if lost is None else continued(lost.drawings, lost.epoch, draws)
        await self._adopt_first(_ranked(candidate, finding, draws, going_on))

    async def _adopt_first(self, alternatives: list[Fields]) -> bool:
        """Use the first that can be used."""
        for fields in alternatives:
            streams = await self.engine.runner.run(POOL, self._streams_of, fields)
            if streams is not None:
                recent, total = list(self._reads.recent), self._reads.total
                begin = await self.engine.runner.run(POOL, where, streams, 0, recent, total)
                await self._lock(fields, alternatives, streams, begin)
                return True
        return False

    async def _learn_more(self, candidate: Candidate, finding: Finding, draws: tuple[Draw, ...]) -> None:
        """Where the seed was drawn is known now: what comes after the first epoch may be another order."""
        lock = next((lock for lock in self.locks.values() if _same_seed(lock.fields, finding)), None)
        alternatives = _ranked(candidate, finding, draws)
        if lock is None:
            if self._lost is not None:  # meanwhile another epoch has begun
                self._lost.alternatives = alternatives
                await self._adopt_alternative(self._lost)
            return
        known = {key: lock.fields[key] for key in ("batch_size",) if key in lock.fields}
        lock.alternatives = alternatives = [fields | known for fields in alternatives]
        if lock.job.current_epochs()[1] > 0 or not alternatives or alternatives[0] == lock.fields:
            return  # the first reads of the next epoch choose
        streams = await self.engine.runner.run(POOL, self._streams_of, alternatives[0])
        if streams is not None and lock in self.locks.values():
            low = min(progress.frontier for progress in lock.job.matcher.ranks)
            begin = Begin(0, low // max(1, lock.job.spec.batch_size))
            await self._lock(alternatives[0], alternatives, streams, begin, lock.job.spec.name)

    async def _adopt_alternative(self, lost: Lock) -> bool:
        """Whether another explanation of what was read before explains the new reads as well."""
        ids, heads = lost.job.streams.sample_ids, self._reads.heads(self._needed)
        data_set = await self.engine.runner.run(POOL, as_indices, heads, ids.astype(np.int32))
        epochs = (lost.epoch + 1, lost.epoch, 0)
        found = await self.engine.runner.run(POOL, chosen, lost.alternatives, data_set, epochs)
        if found is None:
            return False
        fields, epoch = found
        streams = await self.engine.runner.run(POOL, self._streams_of, fields)
        if streams is None:
            return False
        recent, total = list(self._reads.recent), self._reads.total
        begin = await self.engine.runner.run(POOL, where, streams, epoch, recent, total)
        lock = await self._lock(fields, lost.alternatives, streams, begin)
        lock.was_chosen = True
        return True

    def _streams_of(self, fields: Fields) -> JobStreams | None:
        try:
            return self._make_streams(parse_job(fields))
        except JobError as error:
            log.info("not usable: %s: %s", in_words(fields), error)
            return None

    async def _lock(
        self, fields: Fields, alternatives: list[Fields], streams: JobStreams, begin: Begin, name: str | None = None
    ) -> Lock:
        """Register the job where the readers are, and let it catch up with the reads that were seen."""
        names = (JOB_NAME, *(f"{JOB_NAME}-{number}" for number in range(2, MOST_JOBS + 1)))
        name = name or next(name for name in names if name not in self.locks)
        told = {"name": name, "start_epoch": begin.epoch, "start_step": begin.step}
        streams.spec = spec = streams.spec.model_copy(update=told)
        job = await self.engine.register(spec, streams, inferred=True)
        self.engine.catch_up(job, self._reads.recent)
        lock = self.locks[name] = Lock(job, fields, alternatives)
        self._reads, self._lost, self._wanted = Reads(), None, trio.Event()
        log.info("inferred from the reads: %s", in_words(fields))
        return lock

    # -- for the status

    def status(self) -> dict[str, object]:
        """Its part of the status."""
        if not self.allowed:
            return {"state": str(self.state)}
        said: dict[str, object] = {"state": str(self.state), "searches": self.searches}
        progress = self.progress
        if progress is not None and self._busy and progress.done < progress.of:
            passed_s = self.engine.clock() - self._stage_began_s
            said |= {
                "stage": progress.stage,
                "seeds_tried": progress.done,
                "seeds": progress.of,
                "share": round(progress.done / progress.of, 6),
                "remaining_s": round(passed_s * (progress.of / progress.done - 1)) if progress.done else None,
                "with": "numba" if has_numba() else "numpy (pip install 'mlfs[fast]' makes it eight times as fast)",
            }
        if self.locks:
            said["explanation"] = "; ".join(in_words(lock.fields) for lock in self.locks.values())
            said["other_explanations"] = max(lock.others for lock in self.locks.values())
        return said


def _ranked(
    candidate: Candidate, finding: Finding, draws: tuple[Draw, ...], going_on: Sequence[Fields] = ()
) -> list[Fields]:
    """The explanations that are jobs, best first."""
    told = explanations(finding, draws)
    ranked = [candidate.fields | fields for fields in (*(told[0] | more for more in going_on), *told)]
    return [fields for fields in ranked if _is_job(fields)]


def _same_seed(fields: Fields, finding: Finding) -> bool:
    """Whether the explanation is one for the finding, made before its draws were known."""
    return fields.get("seed") == finding.seed or fields.get("generator") == "default"


def _is_job(fields: Fields) -> bool:
    try:
        parse_job(fields)
    except JobError:
        return False
    return True
