"""Explaining without an engine: jobs in a dict, opens as the test makes them, time that jumps."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio
import trio.testing

from mlfs.explain.explainer import Explainer
from mlfs.explain.inference import Build
from mlfs.explain.port import Jobs
from mlfs.explain.question import DataSet
from mlfs.explain.search import find
from mlfs.explain.search_stages import Event, SearchExtent, WordsAsked
from mlfs.explain.seed_search import extent_wanted
from mlfs.follow.evidence import Read
from mlfs.follow.hypothesis import SAME_JOB
from mlfs.follow.job import JobRun, no_name
from mlfs.follow.matching import Open
from mlfs.job import JobSpec, parse_job
from mlfs.orders.streams import build_streams, samples_of
from mlfs.tree.manifest import Manifest
from mlfs.tree.scan import scan
from support.trees import make_classes

# So many that ten reads tell a seed.
FILES, BATCH = 600, 8
READ_S = 0.01


class Inline:
    """Runs blocking calls on the loop, those of inferring after so many seconds."""

    def __init__(self, infer_s: float) -> None:
        self._infer_s = infer_s

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        await trio.sleep(self._infer_s if pool == "infer" else 0)
        return call(*args)

    def post(self, call: Callable[..., Any], *args: Any) -> None:
        call(*args)


class SearchHere:
    """In the place of `mlfs.explain.seed_search.SeedSearch`: no process of its own."""

    def __init__(
        self, data_sets: Sequence[DataSet], hints: Sequence[int], again: bool, words: WordsAsked | None
    ) -> None:
        self._data_sets = list(data_sets)
        self._extent = self.extent(hints, again, words)
        self._killed = False

    def extent(self, hints: Sequence[int], again: bool, words: WordsAsked | None) -> SearchExtent:
        """How far it searches: as far as the process would."""
        return extent_wanted(hints, again, words)

    def run(self, on_event: Callable[[Event], None]) -> int:
        for event in find(self._data_sets, self._extent):
            if self._killed:
                return 0
            on_event(event)
        return 0

    def kill(self) -> None:
        self._killed = True


class SearchInline(SearchHere):
    """One of few seeds."""

    SEEDS = 128

    def extent(self, hints: Sequence[int], again: bool, words: WordsAsked | None) -> SearchExtent:
        few = ((0, self.SEEDS),)
        return SearchExtent(few, self.SEEDS, latest=self.SEEDS, hints=tuple(hints), again=again, words=words)


class FakeJobs:
    """What explaining sees of an engine."""

    def __init__(self, manifest: Manifest, observer: Explainer, name_of: Callable[[int], str], infer_s: float) -> None:
        self.manifest = manifest
        self.runner = Inline(infer_s)
        self.clock = trio.current_time
        self.name_of = name_of
        self.running: dict[str, JobRun] = {}
        self.installed: list[tuple[JobRun, list[Open], str, str]] = []
        self.observer = observer

    @property
    def jobs(self) -> Mapping[str, JobRun]:
        return self.running

    async def install(self, job: JobRun) -> None:
        self.load(job)
        self._install(job)

    def _install(self, job: JobRun, opens: Sequence[Open] = (), said: str = "") -> None:
        self.running[job.spec.name] = job
        self.installed.append((job, list(opens), said, job.findings.way_out))
        self.observer.jobs_changed()

    def another_leads(self, job: JobRun) -> None:
        leading = job.rivals.leading
        if leading is None or self.running.get(job.name) is not job:
            return
        if leading.origin in SAME_JOB:
            if (followed := job.follow_leading()) is not job:
                self.load(followed)
                self._install(followed)
        else:
            followed = job.follow_leading(self.clock())
            self._install(followed, list(followed.score.history), leading.hypothesis.sentence)

    def end(self, name: str) -> bool:
        ended = self.running.pop(name, None) is not None
        self.observer.jobs_changed()
        return ended

    async def register(self, **fields: Any) -> JobRun:
        spec = parse_job({"epochs": 5, "batch_size": BATCH} | fields)
        job = JobRun(spec, build_streams(spec, self.manifest), self.manifest.size, name_of=self.name_of)
        await self.install(job)
        return job

    def load(self, job: JobRun) -> None:
        for epoch in job.missing_epochs():
            job.add_epoch(job.load_epoch(epoch))
            job.release_held()

    async def read(self, entry: int, process: int, parent: int = 1) -> None:
        """One open, as the engine digests it."""
        for job in list(self.running.values()):
            others = [other for other in self.running.values() if other is not job]
            if job.member[entry] and job.observe(entry, process, parent, others=others).another_leads:
                self.another_leads(job)
        self.observer.opened([Read(entry, process, parent, 0.0)])
        for job in list(self.running.values()):
            self.load(job)
            self.observer.digested(job)
        await pass_time(READ_S)


async def pass_time(seconds: float) -> None:
    """Sleep. Where nobody else has anything to do in that time the clock is put forward, which costs a tenth of it."""
    others, clock = trio.lowlevel.current_statistics(), trio.lowlevel.current_clock()
    if others.tasks_runnable or others.seconds_to_next_deadline <= seconds:
        await trio.sleep(seconds)
        # Whoever was woken together with us would not be seen at the next time, and not run before we sleep again.
        await trio.testing.wait_all_tasks_blocked()
    elif isinstance(clock, trio.testing.MockClock):
        clock.jump(seconds)


@asynccontextmanager
async def explaining(
    directory: Path,
    infer: bool,
    images: Path | None = None,
    validation: int = 0,
    name_of: Callable[[int], str] = no_name,
    infer_s: float = 0.0,
) -> Any:
    """An explainer that runs, and the jobs it sees.

    Args:
        images: the data set; None: one is made beside the directory, or is there already.
        validation: files of a data set to validate with, 0 for none; then the other one is in the directory `train`.
        name_of: the name of a process's program. infer_s: what a call of inferring takes.
    """
    if images is None:  # nobody changes them, so tests have them in common
        images = directory.parent / f"images-{validation}"
        if not images.exists():
            make_classes(images / "train" if validation else images, FILES, 3, lambda index: b"x")
            if validation:
                make_classes(images / "val", validation, 3, lambda index: b"x")
    fd = os.open(images, os.O_RDONLY | os.O_DIRECTORY)
    try:
        manifest = scan(fd)
    finally:
        os.close(fd)

    def make_samples(spec: JobSpec) -> np.ndarray:
        return samples_of(spec, manifest, os.fsencode(images))

    explainer = Explainer(Build(make_samples, lambda spec: build_streams(spec, manifest)) if infer else None)
    jobs = FakeJobs(manifest, explainer, name_of, infer_s)
    seen_by_mypy: Jobs = jobs
    async with trio.open_nursery() as nursery:
        nursery.start_soon(explainer.run, seen_by_mypy)
        await trio.testing.wait_all_tasks_blocked()
        yield jobs, explainer
        nursery.cancel_scope.cancel()


def simulate(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


def order_of(manifest: Manifest, epoch: int, rank: int = 0, **fields: Any) -> Iterator[int]:
    spec = parse_job({"epochs": 5, "batch_size": BATCH} | fields)
    yield from build_streams(spec, manifest).epoch_ids(epoch, rank).tolist()
