"""Finds out in what order an unregistered mount is read, and has the engine fetch ahead by it.

In: every open, after the engine has digested it; registrations. Out: an inferred job in the engine, words for the
status. Lives on the daemon's loop; what takes longer runs in worker threads and in a process of its own
(`mlfs.engine.seed_search`). The thinking is done in `mlfs.infer`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import trio

from mlfs.engine.data_sets import Candidate, MakeSamples, as_indices, candidates
from mlfs.engine.engine import Engine
from mlfs.engine.seed_search import SeedSearch
from mlfs.errors import JobError
from mlfs.infer.confirm import Finding, confirm_sequential, refine
from mlfs.infer.explain import JOB_NAME, Fields, explanations, in_words
from mlfs.infer.question import FEWEST_SAMPLES, reads_needed
from mlfs.infer.reads import Reads
from mlfs.infer.resume import Begin, fits_start, where
from mlfs.infer.search import Draw, Event, Found, Generators, Progress, has_numba
from mlfs.job import JobSpec, parse_job
from mlfs.orders.streams import JobStreams

log = logging.getLogger("mlfs.infer")

POOL = "infer"
JUDGED_OPENS = 12
LOST_OPENS = 10
MOST_SEARCHES = 16
MOST_EVENTS = 8  # a finding, the generators, the end

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
        self.state = InferenceState.WATCHING if allowed else InferenceState.OFF
        self.progress: Progress | None = None
        self.explanation: Fields | None = None
        self.searches = 0
        self._began_s = 0.0
        self._make_samples = make_samples
        self._make_streams = make_streams
        self._needed = reads_needed(max(engine.manifest.n_files, FEWEST_SAMPLES))
        self._reads = Reads()
        self._alternatives: list[Fields] = []
        self._judged: deque[bool] = deque(maxlen=JUDGED_OPENS)
        self._counted = (0, 0)
        self._wanted = trio.Event()
        self._scope: trio.CancelScope | None = None
        self._search: SeedSearch | None = None
        self._locked_epoch = 0
        if allowed:
            engine.watchers.append(self.opened)
            engine.jobs_changed.append(self._jobs_changed)

    # -- what the engine tells

    def opened(self, entry: int, pid: int, parent: int) -> None:
        """An open, digested."""
        if self.state == InferenceState.LOCKED:
            self._follow(entry, pid, parent)
        elif self.state in (InferenceState.WATCHING, InferenceState.SEARCHING, InferenceState.UNKNOWN):
            self._reads.add(entry, pid, parent)
            if self.state == InferenceState.WATCHING and self._reads.enough(self._needed):
                self.state = InferenceState.SEARCHING
                self._wanted.set()

    def _jobs_changed(self) -> None:
        """A job came or went."""
        names = set(self.engine.jobs)
        if names - {JOB_NAME}:
            self._cancel()
            self.state = InferenceState.IDLE
            self._alternatives = []
            if JOB_NAME in names:
                self.engine.unregister(JOB_NAME)
        elif not names and self.state in (InferenceState.IDLE, InferenceState.LOCKED):
            self._watch(Reads())

    def _watch(self, reads: Reads) -> None:
        self._reads = reads
        self.progress = self.explanation = None
        enough = reads.enough(self._needed)
        self.state = InferenceState.SEARCHING if enough else InferenceState.WATCHING
        if enough:
            self._wanted.set()

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
        if self._search is not None:
            self._search.kill()

    # -- after an order was found

    def _follow(self, entry: int, pid: int, parent: int) -> None:
        """Whether the reads still come as explained; if not, the reads that do not are the first of a new search."""
        job = self.engine.jobs.get(JOB_NAME)
        if job is None or not job.member[entry]:
            return
        counted = (job.matcher.observed, job.matcher.agreed)
        observed, agreed = counted[0] - self._counted[0], counted[1] - self._counted[1]
        self._counted = counted
        if observed == 1:
            self._judged.append(agreed > 0)
        if all(self._judged):
            self._reads = Reads()
            return
        self._reads.add(entry, pid, parent)
        if len(self._judged) == JUDGED_OPENS and sum(self._judged) <= JUDGED_OPENS - LOST_OPENS:
            self._locked_epoch = job.current_epochs()[1]
            log.info("the reads no longer come in the inferred order")
            reads, self._reads = self._reads, Reads()
            self._judged.clear()
            self.state = InferenceState.SEARCHING  # so that the end of the job is not taken for the user's wish
            self.engine.unregister(JOB_NAME)
            self._watch(reads)

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
                        self.state = InferenceState.UNKNOWN
                self._scope = None
        finally:
            self._cancel()

    async def _infer(self) -> None:
        """From reads to a job."""
        self._began_s = self.engine.clock()
        heads = self._reads.heads(self._needed)
        found = await self.engine.runner.run(POOL, candidates, self.engine.manifest, heads, self._make_samples)
        if await self._adopt_alternative(found):
            return
        finding = confirm_sequential([candidate.data_set for candidate in found])
        if finding is not None:
            await self._adopt(found[finding.data_set], finding, ())
        elif found and self.searches < MOST_SEARCHES:
            self.searches += 1
            await self._search_seeds(found)
        if self.state == InferenceState.SEARCHING:
            self.state = InferenceState.UNKNOWN
            log.info("%s", self.state)

    async def _search_seeds(self, found: list[Candidate]) -> None:
        """Have the other process search; adopt what it finds, and what it learns later of the epochs to come."""
        search = self._search = SeedSearch([candidate.data_set for candidate in found])
        events, results = trio.open_memory_channel[Event | None](MOST_EVENTS)

        def tell(event: Event | None) -> None:
            if isinstance(event, Progress):
                self.progress = event
            else:
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
                last: Found | None = None
                async for event in results:
                    if isinstance(event, Found):
                        last = event
                        await self._adopt(found[event.finding.data_set], event.finding, event.draws)
                    elif isinstance(event, Generators) and last is not None:
                        await self._learn_more(found[last.finding.data_set], last.finding, event.draws)
                    elif event is None:
                        break
            finally:
                search.kill()

    # -- taking an explanation into use

    async def _adopt(self, candidate: Candidate, finding: Finding, draws: tuple[Draw, ...]) -> None:
        """Use the best explanation, keep the others for the second epoch's first reads to choose from."""
        data_set = await self.engine.runner.run(POOL, as_indices, self._reads.heads(self._needed), candidate.ids)
        finding = refine(finding, data_set)
        ranked = [candidate.fields | fields for fields in explanations(finding, draws)]
        self._alternatives = [fields for fields in ranked if _is_job(fields)]
        for fields in self._alternatives:
            streams = await self.engine.runner.run(POOL, self._streams_of, fields)
            if streams is not None:
                begin = await self.engine.runner.run(
                    POOL, where, streams, 0, list(self._reads.recent), self._reads.total
                )
                await self._lock(fields, streams, begin)
                return

    async def _learn_more(self, candidate: Candidate, finding: Finding, draws: tuple[Draw, ...]) -> None:
        """Where the seed was drawn is known now: what comes after the first epoch may be another order."""
        job = self.engine.jobs.get(JOB_NAME)
        batch = {} if job is None else {"batch_size": job.spec.batch_size}
        ranked = [candidate.fields | fields | batch for fields in explanations(finding, draws)]
        self._alternatives = [fields for fields in ranked if _is_job(fields)]
        if job is None or self.state != InferenceState.LOCKED or job.current_epochs()[1] > 0 or not self._alternatives:
            return  # the first reads of the next epoch choose
        streams = await self.engine.runner.run(POOL, self._streams_of, self._alternatives[0])
        if streams is not None and self.engine.jobs.get(JOB_NAME) is job:
            low = min(progress.frontier for progress in job.matcher.ranks)
            await self._lock(self._alternatives[0], streams, Begin(0, low // job.spec.batch_size))

    async def _adopt_alternative(self, found: list[Candidate]) -> bool:
        """Whether another explanation of what was read before explains the new reads as well."""
        for fields in self._alternatives:
            streams = await self.engine.runner.run(POOL, self._streams_of, fields)
            for epoch in dict.fromkeys((self._locked_epoch + 1, self._locked_epoch, 0)):
                heads = self._reads.heads(self._needed)
                if streams is not None and await self.engine.runner.run(POOL, fits_start, streams, epoch, heads):
                    begin = await self.engine.runner.run(
                        POOL, where, streams, epoch, list(self._reads.recent), self._reads.total
                    )
                    await self._lock(fields, streams, begin)
                    return True
        return False

    def _streams_of(self, fields: Fields) -> JobStreams | None:
        try:
            return self._make_streams(parse_job(fields))
        except JobError as error:
            log.info("not usable: %s: %s", in_words(fields), error)
            return None

    async def _lock(self, fields: Fields, streams: JobStreams, begin: Begin) -> None:
        """Register the job where the readers are, and let it catch up with the reads that were seen."""
        spec = streams.spec.model_copy(update={"start_epoch": begin.epoch, "start_step": begin.step})
        streams.spec = spec
        self.state = InferenceState.LOCKED
        job = await self.engine.register(spec, streams, inferred=True)
        for entry, pid, parent in self._reads.recent:
            if job.member[entry]:
                job.observe(entry, pid, parent)
        self._counted = (job.matcher.observed, job.matcher.agreed)
        self._judged.clear()
        self._reads = Reads()
        self.explanation = fields
        log.info("inferred from the reads: %s", in_words(fields))

    # -- for the status

    def status(self) -> dict[str, object]:
        """Its part of the status."""
        said: dict[str, object] = {"state": str(self.state), "searches": self.searches}
        if self.state == InferenceState.OFF:
            return {"state": str(self.state)}
        progress = self.progress
        searching = self._search is not None and progress is not None and progress.done < progress.of
        if progress is not None and searching:
            passed_s = self.engine.clock() - self._began_s
            said |= {
                "stage": progress.stage,
                "seeds_tried": progress.done,
                "seeds": progress.of,
                "share": round(progress.done / progress.of, 6),
                "remaining_s": round(passed_s * (progress.of / progress.done - 1)) if progress.done else None,
                "with": "numba" if has_numba() else "numpy: about 30 minutes (pip install 'mlfs[fast]': 3 minutes)",
            }
        if self.explanation is not None:
            said["explanation"] = in_words(self.explanation)
        return said


def _is_job(fields: Fields) -> bool:
    try:
        parse_job(fields)
    except JobError:
        return False
    return True
