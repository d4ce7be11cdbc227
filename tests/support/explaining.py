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
from mlfs.explain.port import Jobs, Observer
from mlfs.follow.job import JobRun, nameless
from mlfs.follow.matching import Open
from mlfs.job import JobSpec, parse_job
from mlfs.orders.layouts import samples
from mlfs.orders.streams import build_streams
from mlfs.tree.manifest import Manifest
from mlfs.tree.scan import scan
from support.trees import make_classes

# So many that ten reads tell a seed.
FILES, BATCH = 600, 8


class Inline:
    """Runs blocking calls on the loop."""

    async def run(self, pool: str, call: Callable[..., Any], *args: Any) -> Any:
        await trio.sleep(0)
        return call(*args)

    def post(self, call: Callable[..., Any], *args: Any) -> None:
        call(*args)


class FakeJobs:
    """What explaining sees of an engine."""

    def __init__(self, manifest: Manifest, observer: Observer) -> None:
        self.manifest = manifest
        self.runner = Inline()
        self.clock = trio.current_time
        self.name_of = nameless
        self.running: dict[str, JobRun] = {}
        self.installed: list[tuple[JobRun, list[Open], str, str]] = []
        self.observer = observer

    @property
    def jobs(self) -> Mapping[str, JobRun]:
        return self.running

    async def install(self, job: JobRun, opens: Sequence[Open] = (), said: str = "", way_out: str = "") -> None:
        self.load(job)
        replaced = self.running.get(job.spec.name)
        if said and replaced is not None:
            job.take_counts(replaced, opens, said, way_out)
        self.running[job.spec.name] = job
        self.installed.append((job, list(opens), said, way_out))
        self.observer.jobs_changed()

    def end(self, name: str) -> bool:
        ended = self.running.pop(name, None) is not None
        self.observer.jobs_changed()
        return ended

    async def register(self, **fields: Any) -> JobRun:
        spec = parse_job({"epochs": 5, "batch_size": BATCH} | fields)
        job = JobRun(spec, build_streams(spec, self.manifest), self.manifest.size)
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
            if job.member[entry] and job.observe(entry, process, parent, others=others).restarted:
                if self.observer.explains_restart(job):
                    job.forget_restart()
                else:
                    job.restart()
        self.observer.opened(entry, process, parent)
        for job in list(self.running.values()):
            self.load(job)
            self.observer.digested(job)
        await trio.sleep(0.01)


@asynccontextmanager
async def explaining(directory: Path, infer: bool, images: Path | None = None) -> Any:
    """An explainer that runs, and the jobs it sees."""
    images = images or make_classes(directory / "images", FILES, 3, lambda index: b"x")
    fd = os.open(images, os.O_RDONLY | os.O_DIRECTORY)
    try:
        manifest = scan(fd)
    finally:
        os.close(fd)

    def make_samples(spec: JobSpec) -> np.ndarray:
        return samples(spec, manifest, os.fsencode(images))

    explainer = Explainer(Build(make_samples, lambda spec: build_streams(spec, manifest)) if infer else None)
    jobs = FakeJobs(manifest, explainer)
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
