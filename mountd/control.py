"""The control directory: jobs in, answers, status, metrics, specifications and orders out.

In: lines written to MOUNT/.mlfs/control, reads of the files beside it. Out: calls on the engine, text. A line is one
JSON object: {"op": "register", ...fields of the job}, {"op": "unregister", "name": ...}; "op" may be left out of a
registration, and {"register": {...}}, {"unregister": NAME} say the same. `warmup` fills the tiers; `drain` and `resume`
are for `mlfs unmount` (through the file `lifecycle`), `record` is for `mlfs record`, and `give-up` ends a registration
that is still being computed, as whoever asked for it has gone.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import trio

import mlfs
from mlfs.audit.report import Audit
from mlfs.engine import warm_up
from mlfs.engine.auditor import Auditor
from mlfs.engine.engine import Engine
from mlfs.engine.peering import PeeringStatistics
from mlfs.engine.recorder import Recorders
from mlfs.errors import ExitCode, JobError, MlfsError
from mlfs.follow.job import JobRun
from mlfs.follow.job_statistics import JobState
from mlfs.follow.sentences import told_flags
from mlfs.job import JobSpec, parse_job
from mlfs.job.refusals import nearest
from mlfs.job.resume import RESUME, words_of_resume
from mlfs.orders.layouts.layout import NOTHING, Outside
from mlfs.orders.served import ServedOrder
from mlfs.orders.stopping import StoppedError, stoppable
from mlfs.orders.streams import JobStreams, build_streams, check_reach
from mlfs.tree.manifest import ROOT, Manifest
from mountd.holder import TABLES
from mountd.left_behind import JobPlaces, LeftBehind
from mountd.metrics import metrics
from mountd.onlookers import HIDDEN, PATH_FIELDS, UNTOLD, Onlookers, Reader, masked
from mountd.prime_inodes import InodePrimer
from mountd.runtime import LifeNote
from mountd.statistics import MountParts, MountStatistics, SharedTexts
from mountd.status import status
from mountd.virtual import WRITABLE, CommandAnswer, Path

log = logging.getLogger("mlfs.control")

Json = dict[str, object]
TOP = [b"audit", b"control", b"jobs", b"metrics", b"order", b"status"]
CHANGES: Path = (b"changes",)
FIRST_PATHS = 5
INDICES = b".indices"
MOUNT_AGAIN = (
    "wait until it is, and mount it again; if its readers do not end, mlfs unmount gives up and the mount goes on"
)
# A warm-up for a job that goes on from another server waits for that, and looks this often.
TAKEN_UP_S = 0.05
OPS = ("register", "unregister", "warmup", "drain", "resume", "record", "refresh", "upgrade")


class _ComingJob:
    """A job that is being registered: who waits for it, and the thread that computes."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.stopped = threading.Event()

    def stop(self) -> None:
        """Note that the job is not wanted any more."""
        self.stopped.set()
        self.scope.cancel()


class Control:
    """Implements mountd.virtual.Contents over an engine.

    Args:
        parts: the running parts of the mount, of which status and metrics are made, too. outside: files that links in
            the source lead to. reports: the directory for reports of jobs that end. life: notes what is registered.
            onlookers: who of other users may see which names; None: there are none. told: hears of all jobs that are
            registered, by name, as JSON, whenever that changes. changes: how often something of the source was noticed.

    Attributes:
        answer: to the last command. job_reports: written when jobs end, which have their reads judged.
    """

    def __init__(
        self,
        parts: MountParts,
        recorders: Recorders,
        auditor: Auditor,
        outside: Outside | None = None,
        reports: str | None = None,
        life: LifeNote | None = None,
        onlookers: Onlookers | None = None,
        told: Callable[[Mapping[str, str]], None] = lambda _: None,
        changes: Callable[[], int] = int,
    ) -> None:
        self._tell_jobs, self._changes = told, changes
        left = parts.holding.left
        self._to_go_on = dict(left.jobs) if left is not None else {}  # by name, those that `take_up` has still to do
        self._told: dict[str, JobSpec] = {}  # by name, of the jobs that go on from another server, as they were told
        self.engine = engine = parts.engine
        self.source = parts.about.source
        self.parts = parts
        self.recorders = recorders
        self._auditor = auditor
        self._ending = Ending(engine, parts.primer)
        self._refreshing = parts.refreshing
        self.outside = outside
        self._life = life
        self._onlookers = onlookers
        self.answer: Json = {"ok": True}
        self.job_reports = JobReports(
            reports, lambda: _line(status(parts.statistics())), lambda: engine.jobs, self._judge_at_end
        )
        self._coming: dict[str, _ComingJob] = {}
        self._texts = SharedTexts(parts)

    async def run(self) -> None:
        """The tasks beside the requests, for as long as the mount lives."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.recorders.run)
            nursery.start_soon(self._ending.run)
            nursery.start_soon(self.job_reports.run)

    def end_for_good(self) -> None:
        """The daemon is told to end: fetch nothing ahead and take no job any more."""
        self._ending.begin(math.inf)

    # -- jobs that go on when another server serves the mount

    async def keep_places(self, places: JobPlaces) -> None:
        """Keep where each job is, what it was found to be, and what was counted, for as long as the mount lives."""
        specifications: dict[str, tuple[JobSpec, str]] = {}  # and as JSON
        counters, reached, past = self.engine.counters, [("", (0, 0))], ""
        while True:
            await places.moved()
            jobs = self.engine.jobs.values()
            for job in jobs:
                if specifications.get(job.name, (None, ""))[0] is not job.spec:
                    specifications[job.name] = job.spec, job.spec.to_json()
            now = {
                job.name: {
                    "at": job.place(),
                    "spec": specifications[job.name][1],
                    "inferred": job.inferred,
                    "noted": job.noted(job.ranks.current_epochs()[0] - 1),
                }
                for job in jobs
            }
            if reached != (reached := [(job.name, job.ranks.current_epochs()) for job in jobs]):
                epochs = [span.noted() for span in counters.past]
                past = json.dumps({"jobs": {job.name: job.noted() for job in jobs}, "epochs": epochs})
            if not self._to_go_on:
                audited, noted = self._auditor.noted(), self.engine.digest.noted
                last = {"jobs": now, "counters": counters.noted(), "audited": audited, "noted": noted}
                places.write(last | {"beside": self.parts.counted()}, past)

    async def take_up(self, left: LeftBehind) -> None:
        """Register jobs again that were registered with the server before this one, where they are by now; and expect
        those again that it had found."""
        jobs, places = left.jobs, dict(left.places)
        for place in places.values():
            if place["inferred"] and place["at"] is not None:
                epoch, step = place["at"]
                self.engine.offer(json.loads(place["spec"]) | {"start_epoch": epoch, "start_step": step})
        for name, told in jobs.items():
            place = places.get(name, {"at": (), "spec": told})
            if place["at"] is None:
                log.info("job %s had ended before the server did", name)
            else:
                where = dict(zip(("start_epoch", "start_step"), place["at"], strict=False))
                try:
                    self._told[name] = parse_job(told)
                    await self._register(parse_job(json.loads(place["spec"]) | where))
                except MlfsError as error:
                    log.warning("job %s does not go on: %s", name, error)
                except Exception:  # of another package's sampler, perhaps: each server that comes would end of it
                    log.exception("job %s does not go on", name)
            self._to_go_on.pop(name, None)

    # -- the tree

    def is_directory(self, path: Path) -> bool:
        """Whether there is such a directory: of jobs, of orders, and of each job's orders by epoch."""
        if path in ((), (b"jobs",), (b"order",)):
            return True
        job = self._job(path[1]) if path[0] == b"order" and len(path) in (2, 3) else None
        return job is not None and (len(path) == 2 or self._number(path[2], job.spec.epochs) is not None)

    def listing(self, path: Path) -> list[bytes]:
        """The names in a directory."""
        if path == ():
            return TOP
        if path == (b"jobs",):
            return sorted(name.encode() + b".json" for name in self.engine.jobs)
        if path == (b"order",):
            return sorted(name.encode() for name in self.engine.jobs)
        job = self._job(path[1]) if self.is_directory(path) else None
        if job is None:  # it has just ended
            return []
        if len(path) == 2:
            return [str(epoch).encode() for epoch in range(job.spec.epochs)]
        return [name for rank in range(job.spec.world_size) for name in (b"%d" % rank, b"%d%s" % (rank, INDICES))]

    def has_file(self, path: Path) -> bool:
        if path in WRITABLE or path in ((b"status",), (b"metrics",), (b"audit",), CHANGES):
            return True
        if len(path) == 2 and path[0] == b"jobs" and path[1].endswith(b".json"):
            return self._job(path[1].removesuffix(b".json")) is not None
        return len(path) == 4 and self._order_of(path) is not None

    async def text(self, path: Path, reader: Reader | None) -> bytes:
        """A file's content for a reader, without the names that the reader may not list."""
        onlooker = (self._onlookers, reader) if self._onlookers is not None and reader is not None else None
        if path in WRITABLE or path == CHANGES:
            return self._short_text(path, onlooker is None)
        if path in ((b"status",), (b"metrics",)):
            if path == (b"status",) and onlooker is not None:
                return await self._texts.text((path, reader), lambda now: self._status_without_hidden(now, *onlooker))
            return await self._texts.text(path, _status_line if path == (b"status",) else metrics)
        if path == (b"audit",):
            return _line(asdict(await self._judged()) | {"strict_order": self._auditor.is_strict})
        if path[0] == b"jobs":
            job = self._job(path[1].removesuffix(b".json"))
            if job is None:
                return b""
            about = self._about(job)
            if onlooker is not None:
                return await self.engine.runner.run("orders", self._about_without_hidden, about, *onlooker)
            return _line(about)
        found = self._order_of(path)
        if found is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        job, epoch, rank = found
        as_indices = path[3].endswith(INDICES)
        text = self._indices_text if as_indices else partial(self._order_text, onlooker=onlooker)
        return await self.engine.runner.run("orders", text, job.streams, epoch, rank)

    def _short_text(self, path: Path, sees_all: bool) -> bytes:
        if path == CHANGES:
            return b"%d %d\n" % (self.parts.holding.restarts, self._changes())
        return _line(self.answer if sees_all else {"ok": self.answer["ok"]})

    async def _judged(self) -> Audit:
        """The auditor's words on all reads so far."""
        await self.engine.digest.taken_in()
        return await self._auditor.judge()

    async def _judge_at_end(self) -> None:
        """The jobs have finished: status and reports say what is found, where no read is too old."""
        if not self._auditor.keeps_all:
            return
        try:
            await self._judged()
        except Exception:
            log.exception("what the finished jobs have read is not judged")  # nobody has asked for it

    def _about(self, job: JobRun) -> Json:
        about = job.spec.understood() | {"state": str(job.state), "samples": len(job.streams.sample_ids)}
        order = job.streams.order
        return about | ({"tree": order.tree} if isinstance(order, ServedOrder) else {})

    def _job(self, name: bytes) -> JobRun | None:
        """The job that is shown under a name. A served order stays what was registered, whatever somebody reads."""
        job = self.engine.jobs.get(name.decode(errors="replace"))
        registered = job.registered if job is not None else None
        return registered if registered is not None and registered.spec.serve is not None else job

    def _number(self, text: bytes, below: int) -> int | None:
        return int(text) if text.isdigit() and str(int(text)).encode() == text and int(text) < below else None

    def _order_of(self, path: Path) -> tuple[JobRun, int, int] | None:
        job = self._job(path[1]) if path[0] == b"order" else None
        if job is None:
            return None
        epoch = self._number(path[2], job.spec.epochs)
        rank = self._number(path[3].removesuffix(INDICES), job.spec.world_size)
        return None if epoch is None or rank is None else (job, epoch, rank)

    @staticmethod
    def _status_without_hidden(now: MountStatistics, onlookers: Onlookers, reader: Reader) -> bytes:
        """In a thread: the status, without the paths that a reader may not list."""
        specifications = [job.specification for job in now.engine.jobs]
        paths = [about.get(field) for about in specifications for field in PATH_FIELDS]
        paths += [now.about.first_unreadable, now.source.hanging_path, now.source.first_unsized]
        paths += [now.read_failures.path, now.crashes.path, now.refresh.path]
        paths += now.misses.first_added
        # Sentences that name jobs' files, links and what could not be read are for whoever mounted.
        about = replace(now.about, died=None, links="")
        outdated = tuple(replace(job, why=UNTOLD if job.why else "") for job in now.refresh.outdated)
        refresh = replace(now.refresh, remark=UNTOLD if now.refresh.remark else "", outdated=outdated)
        now = replace(now, about=about, refresh=refresh)
        roots = about.source, about.mountpoint
        return _line(masked(status(now), onlookers.hidden(reader, paths, ask=False), roots))

    @staticmethod
    def _about_without_hidden(about: Json, onlookers: Onlookers, reader: Reader) -> bytes:
        """In a thread: a job, without the paths that a reader may not list."""
        return _line(masked(about, onlookers.hidden(reader, map(about.get, PATH_FIELDS), ask=True)))

    def _order_text(
        self, streams: JobStreams, epoch: int, rank: int, onlooker: tuple[Onlookers, Reader] | None
    ) -> bytes:
        paths = self._paths(streams, epoch, rank, slice(None), onlooker)
        return b"".join(path + b"\n" for path in paths)

    @staticmethod
    def _indices_text(streams: JobStreams, epoch: int, rank: int) -> bytes:
        indices = streams.dataset_indices(epoch, rank).tolist()
        return ("\n".join(map(str, indices)) + "\n" * bool(indices)).encode()

    def _paths(
        self, streams: JobStreams, epoch: int, rank: int, part: slice,
        onlooker: tuple[Onlookers, Reader] | None = None,
    ) -> list[bytes]:  # fmt: skip
        found = streams.epoch_ids(epoch, rank)[part]
        ids = found.tolist()
        inside = map(self.engine.samples.name, (entry for entry in ids if entry >= 0))
        paths = [next(inside) if entry >= 0 else b"(outside of the mount)" for entry in ids if entry != NOTHING]
        if onlooker is not None:
            onlookers, reader = onlooker
            shown = found[found != NOTHING]
            files = np.array([self.engine.samples.file_of(one) if one >= 0 else 0 for one in shown.tolist()], np.int64)
            may_see = (shown < 0) | onlookers.may_see(reader, files)
            paths = [path if seen else os.fsencode(HIDDEN) for path, seen in zip(paths, may_see.tolist(), strict=True)]
        return paths

    # -- commands

    async def command(self, line: bytes) -> CommandAnswer:
        """Carry out a line of the control file."""
        try:
            answer = {"ok": True} | await self._carry_out(line)
        except MlfsError as error:
            field = error.field if isinstance(error, JobError) else ""
            message = error.message if field in error.message else f"{field}: {error.message}"
            answer = {"ok": False, "error": message, "hint": error.hint, "field": field}
            if not isinstance(error, JobError):
                answer["exit_code"] = int(error.exit_code)
            log.info("refused: %s", error)
        except Exception as error:  # of another package's sampler, perhaps: a line that fails must say why
            log.exception("a command failed in an unforeseen way")
            message = f"mlfs failed: {type(error).__name__}: {error}"
            answer = {"ok": False, "error": message, "hint": "the mount's log says where", "field": ""}
        self.answer = answer
        return CommandAnswer(_line(answer), bool(answer["ok"]))

    async def _carry_out(self, line: bytes) -> Json:
        op, fields = self._understand(line)
        if op == "register":
            if self._ending.is_near:
                raise MlfsError("the mount is being unmounted", MOUNT_AGAIN, ExitCode.NOT_MOUNTED)
            spec = parse_job(fields)
            self._told.pop(spec.name, None)
            try:
                return await self._register(spec, words_of_resume(fields.get(RESUME), spec))
            except JobError as error:
                if RESUME not in fields or error.field != "start_step":
                    raise
                raise JobError(error.message, error.hint, RESUME) from None  # nobody has given the other
        at_once = {
            "unregister": self._unregister, "refresh": self._refresh, "record": self._record, "upgrade": self._upgrade,
        }  # fmt: skip
        if op in at_once:
            return at_once[op](fields)
        if op == "give-up":  # whoever asked for it has gone
            return {"given_up": self._forget_coming(str(fields.get("name")))}
        if op == "warmup":
            return await self._warm_up(fields)
        if op == "drain":
            self._ending.begin()
            return {}
        if op == "resume":
            self._ending.call_off()
            return {}
        raise JobError(f"op: {op!r} is unknown", nearest(op, OPS) or "register or unregister", "op")

    def _understand(self, line: bytes) -> tuple[str, dict[str, object]]:
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise JobError(f"the line is not valid JSON: {error}", "write one JSON object a line") from None
        if not isinstance(parsed, dict):
            raise JobError("the line is not a JSON object", 'for example {"seed": 0, "epochs": 90}')
        for op in ("register", "unregister"):
            if set(parsed) == {op}:
                inner = parsed[op]
                return op, inner if isinstance(inner, dict) else {"name": inner}
        op = parsed.pop("op", "register")
        return str(op), parsed

    async def _register(self, spec: JobSpec, words: Sequence[str] = ()) -> Json:
        """Compute what the job needs to begin, beside everything else, and install it.

        In the pool `register`, which has threads of its own: what takes long here (a file that does not answer, many
        words to skip) holds up neither another registration nor the orders of the jobs that run.
        """
        self._forget_coming(spec.name)
        coming = self._coming[spec.name] = _ComingJob()
        runner, shared = self.engine.runner, self.engine.shared
        try:
            before, told_nodes = shared.registered(spec.name), spec.nodes
            spec = shared.with_nodes(spec)
            had = before.nodes if before is not None else None
            nodes_anew = spec.nodes is not None and spec.nodes not in (told_nodes, had)
            with coming.scope:
                streams = await runner.run("register", self._build_streams, spec, coming)
                job = await shared.register(spec, streams)
                # With the ranks of this node; and where another node has registered it meanwhile, all serve that order.
                spec, streams = job.spec, job.streams
                await runner.run("register", self._note_jobs)
                first = await runner.run("register", self._first_paths, spec, streams)
                late = shared.late(spec.name)
                return {
                    "job": spec.understood(),
                    "samples": len(streams.sample_ids),
                    "samples_per_epoch": streams.length(spec.start_epoch) // streams.files_per_sample,
                    "first_paths": first,
                    "notes": [
                        *words,
                        *registered_words(spec, self.engine.peering.statistics(), late, nodes_anew),
                        *words_of_parts(spec, self.engine.manifest),
                    ],
                }
            raise StoppedError
        finally:
            if self._coming.get(spec.name) is coming:
                del self._coming[spec.name]

    def _build_streams(self, spec: JobSpec, coming: _ComingJob) -> JobStreams:
        """In a thread: the job's streams, with its first epoch computed."""
        with stoppable(coming.stopped.is_set):
            source, tree = os.fsencode(self.source), self.engine.manifest
            growths = -1
            while growths != tree.growths:  # a refresh in the middle of it would leave half of the one and the other
                growths = tree.growths
                streams = build_streams(spec, tree, source, self.outside, check_reach)
            for rank in spec.ranks:
                streams.epoch_ids(spec.start_epoch, rank)
        return streams

    def _first_paths(self, spec: JobSpec, streams: JobStreams) -> dict[str, list[str]]:
        """In a thread: by rank of this node, the files that it is predicted to read first."""
        start = spec.start_step * streams.batch_files
        part = slice(start, start + FIRST_PATHS)
        paths = {rank: self._paths(streams, spec.start_epoch, rank, part) for rank in spec.ranks}
        return {str(rank): [os.fsdecode(path) for path in of_rank] for rank, of_rank in paths.items()}

    def _forget_coming(self, name: str) -> bool:
        """End the registration of that name that is under way, if there is one."""
        coming = self._coming.pop(name, None)
        if coming is None:
            return False
        coming.stop()
        return True

    async def _warm_up(self, fields: dict[str, object]) -> Json:
        """Begin to fill the tiers, or with "end" stop the warm-up of that number."""
        if "end" in fields:
            warming = self.engine.statistics().scheduler.warming
            return {"run": self.engine.warm_up(None) if fields["end"] == warming.run else warming.run}
        while str(fields.get("job")) in self._to_go_on:
            await trio.sleep(TAKEN_UP_S)
        samples = await self.engine.runner.run("orders", self._to_warm_up(fields))
        return {"run": self.engine.warm_up(samples), "samples": len(samples)}

    def _to_warm_up(self, fields: dict[str, object]) -> Callable[[], warm_up.SampleIds]:
        """A call for a thread that gives the samples which a command names, in the order of need."""
        paths, name, epochs = fields.get("paths"), fields.get("job"), fields.get("epochs")
        if paths is not None:
            if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
                raise JobError("paths: a list of texts is needed", "mlfs warmup MOUNT PATH... does this", "paths")
            return partial(warm_up.of_paths, self.engine.samples, [os.fsencode(path) for path in paths])
        if name is None:
            return partial(warm_up.of_tree, self.engine.samples)
        job = self.engine.jobs.get(name) if isinstance(name, str) else None
        if job is None:
            known = ", ".join(self.engine.jobs) or "none"
            raise JobError(f"job: no job {name!r} is registered", f"registered: {known}", "job")
        if epochs is None:
            epochs = [job.statistics().epoch]
        if not isinstance(epochs, list) or not all(type(epoch) is int for epoch in epochs):
            raise JobError("epochs: a list of whole numbers is needed", "mlfs warmup --epochs does this", "epochs")
        return partial(warm_up.of_epochs, job.streams, job.spec.ranks, epochs)

    def _refresh(self, fields: dict[str, object]) -> Json:
        """Begin to refresh the view, or with "end" stop the refresh of that number."""
        if type(fields.get("end")) is int:
            self._refreshing.stop(int(str(fields["end"])))
            return {"run": fields["end"]}
        path = fields.get("path", "")
        if not isinstance(path, str):
            raise JobError("path: a text is needed", "mlfs refresh MOUNT PATH does this", "path")
        if self._ending.is_near:
            raise MlfsError("the mount is being unmounted", MOUNT_AGAIN, ExitCode.NOT_MOUNTED)
        return {"run": self._refreshing.begin(os.fsencode(path))}

    def _upgrade(self, fields: dict[str, object]) -> Json:
        """Have another server take the mount over, of the code that lies on the disk and with this config."""
        if fields.get("tables") != TABLES or not isinstance(config := fields.get("config"), str):
            raise MlfsError(
                f"mlfs as it is on the disk cannot read what this server (version {mlfs.__version__}) leaves to it",
                "unmount, and mount again",
            )
        if not self.parts.holding.is_followed:
            raise MlfsError("no other server can take this mount over: it has lacked memory for that", "mount again")
        if self._ending.is_near:
            raise MlfsError("the mount is being unmounted", MOUNT_AGAIN, ExitCode.NOT_MOUNTED)
        if self.parts.holding.makes_way:
            raise MlfsError("another upgrade is under way", "try again when it is done", ExitCode.BUSY)
        self.parts.holding.renew(config)
        return {}

    def _record(self, fields: dict[str, object]) -> Json:
        fifo = fields.get("fifo")
        if not isinstance(fifo, str):
            raise JobError('"fifo" is missing', "mlfs record MOUNT OUT does this", "fifo")
        if fields.get("end"):
            self.recorders.end(fifo)
            return {}
        try:
            self.recorders.start(fifo)
        except OSError as error:
            raise JobError(
                f"{fifo!r} cannot be written to: {error.strerror}", "is it a FIFO of yours?", "fifo"
            ) from None
        return {}

    def _unregister(self, fields: dict[str, object]) -> Json:
        name, names = fields.get("name"), [*self.engine.jobs, *(self._coming.keys() - self.engine.jobs.keys())]
        if name is None and len(names) == 1:
            name = names[0]
        if not isinstance(name, str) or not self._end(name):
            known = ", ".join(names) or "none"
            if name is None and names:
                raise JobError('job field "name" is missing: there are several jobs', f"registered: {known}", "name")
            which = "no job" if name is None else f"name: no job {name!r}"
            raise JobError(f"{which} is registered", f"registered: {known}", "" if name is None else "name")
        return {"unregistered": name}

    def _note_jobs(self) -> None:
        """Note what is registered, as it was told: the next mount offers it again if this daemon dies."""
        jobs = [job.registered or job for job in list(self.engine.jobs.values()) if not job.inferred]
        told = {job.name: self._told.get(job.name, job.spec) for job in jobs}
        if self._life is not None:
            self._life.write({name: told_flags(spec) for name, spec in told.items()})
        self._tell_jobs({**self._to_go_on, **{name: spec.to_json() for name, spec in told.items()}})

    def _end(self, name: str) -> bool:
        job = self.engine.jobs.get(name)
        if job is not None:
            self.job_reports.ends(name)
            job.streams.cancel()
        stopped = self._forget_coming(name)
        ended = self.engine.shared.ended(name)
        self._note_jobs()
        return ended or stopped


def _status_line(now: MountStatistics) -> bytes:
    return _line(status(now))


def _line(value: Json) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


# -- that the mount is about to be unmounted

ending_log = logging.getLogger("mlfs.ending")

# How long the mount waits to hear of its unmounting again. The command says it every second, on a busy machine later.
UNMOUNT_PATIENCE_S = 5.0


class Ending:
    """Knows that a mount is about to be unmounted: nothing is fetched ahead, no job is taken, so that it ends idle.

    In: `mlfs unmount`, which says again and again that it is still at it, and the signals that end the daemon. Out:
    calls on the engine. A mount whose unmounting is not heard of any more (a killed command, a closed terminal) goes on
    as before.

    Loop only; `run` must be running.
    """

    def __init__(self, engine: Engine, primer: InodePrimer) -> None:
        self._engine = engine
        self._primer = primer
        self._until_s: float | None = None
        self._begun = trio.Event()

    @property
    def is_near(self) -> bool:
        """Whether somebody is unmounting."""
        return self._until_s is not None

    def begin(self, patience_s: float = UNMOUNT_PATIENCE_S) -> None:
        """Somebody unmounts, or still does; infinity: nothing calls that off."""
        if self._until_s is None:
            self._stop(True)
        self._until_s = max(self._until_s or 0.0, trio.current_time() + patience_s)
        self._begun.set()

    def call_off(self) -> None:
        """The mount stays, unless the daemon itself is ending."""
        if self._until_s is not None and not math.isinf(self._until_s):
            self._until_s = None
            self._stop(False)

    def _stop(self, stop: bool) -> None:
        self._primer.pause(stop)
        self._engine.stop_prefetching(stop)

    async def run(self) -> None:
        """Go on when nobody unmounts any more, for as long as the mount lives."""
        while True:
            await self._begun.wait()
            self._begun = trio.Event()
            while self._until_s is not None and trio.current_time() < self._until_s:
                await trio.sleep_until(self._until_s)
            if self._until_s is not None:
                ending_log.warning("whoever was unmounting this is not heard of any more: the mount goes on")
                self.call_off()


# -- reports of jobs that end

report_log = logging.getLogger("mlfs.report")

# A job of a few seconds may be registered anew soon after its end; nobody reads the page sooner.
LOOK_EVERY_S = 1.0
# To load what draws takes seconds on a busy node, and a full disk or a hanging one longer.
REPORT_PATIENCE_S = 60.0


class JobReports:
    """Has the auditor look when the last job finishes, and writes a report when one ends (`mlfs mount --report DIR`).

    In: jobs that finish, are unregistered, or end with the mount; the status at that moment. Out: DIR/JOB-TIME.html,
    with mode 0600. The command `mlfs report` makes it in a process of its own, because a daemon shall not load what
    draws. A report that cannot be written is only logged.

    Args:
        directory: where they are written, None for nowhere. status: gives the status as JSON.
        jobs: those of the mount. judge: has the auditor look.
    """

    def __init__(
        self,
        directory: str | None,
        status: Callable[[], bytes],
        jobs: Callable[[], Mapping[str, JobRun]],
        judge: Callable[[], Awaitable[None]],
    ) -> None:
        self._directory = directory
        self._status = status
        self._jobs = jobs
        self._judge = judge
        self._written: dict[str, JobRun] = {}  # jobs that have finished, and whose report, if any, was begun
        self._to_write: list[tuple[str, bytes]] = []

    async def run(self) -> None:
        """Write what is to be written, for as long as the mount lives."""
        while True:
            finished = {name: job for name, job in self._jobs().items() if job.state is JobState.FINISHED}
            for name in self._written.keys() - finished.keys():
                del self._written[name]  # the script was started again
            ended = any(job.observed and self._written.get(name) is not job for name, job in finished.items())
            if ended and not any(job.state is JobState.RUNNING for job in self._jobs().values()):
                await self._judge()  # which takes the interpreter from readers, now and then
            for name, job in finished.items():
                if self._jobs().get(name) is job:  # and is no other one meanwhile
                    self.ends(name)
            await self._write_all()
            await trio.sleep(LOOK_EVERY_S)

    def ends(self, name: str) -> None:
        """A job ends now: a report is written of this moment, once a job, if it has read anything."""
        job = self._jobs().get(name)
        if job is None or not job.observed or self._written.get(name) is job:
            return
        self._written[name] = job
        if self._directory is not None:
            self._to_write.append((name, self._status()))

    async def mount_ends(self) -> None:
        """All jobs end now, with the mount."""
        for name in self._jobs():
            self.ends(name)
        await self._write_all()

    async def _write_all(self) -> None:
        while self._to_write:
            name, status = self._to_write[0]  # it stays there while it is written: the mount may end meanwhile
            out = os.path.join(self._directory or "", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.html")
            command = [sys.executable, "-m", "mlfs", "report", "-", out]
            try:
                with trio.fail_after(REPORT_PATIENCE_S):
                    done = await trio.run_process(
                        command, stdin=status, capture_stdout=True, capture_stderr=True, check=False
                    )
            except (OSError, trio.TooSlowError) as error:
                report_log.warning("job %s: no report was written: %r", name, error)
                del self._to_write[0]
                continue
            del self._to_write[0]
            if done.returncode:
                report_log.warning(
                    "job %s: no report was written: %s", name, done.stderr.decode(errors="replace").strip()
                )
            else:
                report_log.info("job %s: its report is %s", name, out)


# -- what a user should know when a job was registered

SILENT = "{nodes} not answer: what runs there does not follow this registration, and may read another order"
LATE = "{nodes} not follow this registration yet: wait for `mlfs status` there, and look at its log if it takes long"
ANEW = (
    "the order rests on the nodes as they are now; a run that was begun on other ones goes on in another order: for the"
    " same one give the description that was saved (--json-file)"
)
ALONE = (
    "this node alone serves the order of all {ranks} ranks; where other nodes run some of them, let all of them join"
    " first (mlfs peers), and register the job again"
)


def registered_words(
    spec: JobSpec, peers: PeeringStatistics, late: Sequence[int] = (), nodes_anew: bool = False
) -> list[str]:
    """Says which nodes do not follow a job that was registered, or that no other node can.

    In: the job, what is known of the other nodes. Out: whole sentences.

    Args:
        late: nodes that answer, and had not planned with the job when it began here.
        nodes_anew: whether the nodes of a served order were filled in now, and are not those that its job had.
    """
    words = []
    silent = {*peers.lost, *peers.away}
    if silent:
        words.append(SILENT.format(nodes=_do(silent)))
    if not_yet := {*late} - silent:
        words.append(LATE.format(nodes=_do(not_yet)))
    if nodes_anew and (spec.start_epoch or spec.start_step):
        words.append(ANEW)
    if spec.serve is not None and spec.world_size > 1 and not peers.joined and len(spec.nodes or ()) == 1:
        words.append(ALONE.format(ranks=spec.world_size))
    return words


# Names of the directories into which data sets are usually cut.
PARTS = frozenset((b"train", b"training", b"val", b"valid", b"validation", b"test", b"testing", b"dev", b"eval"))
TOGETHER = "the order covers {names} together, as no --root is given; for a script that reads one of them: --root {one}"


def words_of_parts(spec: JobSpec, tree: Manifest) -> list[str]:
    """Says so where a job takes train/ and val/ for classes of one data set: most scripts read one of them alone."""
    directories = [tree.name(entry) for entry in tree.children(ROOT) if tree.is_dir(entry)]
    if spec.root or spec.sampler == "explicit" or len(directories) < 2 or not PARTS.issuperset(directories):
        return []
    names = [os.fsdecode(name) for name in sorted(directories, key=lambda name: not name.startswith(b"train"))]
    return [TOGETHER.format(names=", ".join(names[:-1]) + f" and {names[-1]}", one=names[0])]


def _do(nodes: Collection[int]) -> str:
    """The subject of a sentence, and its verb."""
    names = ", ".join(map(str, sorted(nodes)))
    return f"node {names} does" if len(nodes) == 1 else f"nodes {names} do"
