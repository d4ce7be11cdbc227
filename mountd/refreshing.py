"""Refreshes the view of a mount under its readers: `mlfs refresh MOUNT [PATH]`.

In: a directory of the view, from the control file. Out: the manifest shows what is at the source now, and the kernel
has forgotten what it knew otherwise. Run by mountd.daemon beside the requests; one refresh at a time.

1. In a thread, the source is scanned anew below the directory, and compared with the view (`mlfs.tree.refresh`).
2. On the loop, in one step, the manifest takes over the form of the tree: from then on look-ups and listings are new.
3. In a thread, files that were replaced are taken over as any noticed change is, copies of those that are gone are
   dropped, and the kernel is told which names it knows wrongly: also those that it knows not to exist.
4. The data sets of registered jobs are looked for again: jobs whose files are the same go on, of the others is told.
5. The index is saved anew, for the next mount.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import trio

from mlfs.engine.engine import Engine
from mlfs.errors import ExitCode, MlfsError
from mlfs.follow.job import JobRun
from mlfs.job import JobSpec
from mlfs.orders.layouts.layout import SampleIds
from mlfs.places.place import FileChange
from mlfs.places.posix import PosixSource
from mlfs.printable import printable
from mlfs.tree.attributes import FileAttributes, Rights
from mlfs.tree.growing import GrowingManifest, Growth, packed
from mlfs.tree.index import save, source_identity
from mlfs.tree.manifest import Manifest
from mlfs.tree.openat import open_beneath
from mlfs.tree.refresh import Difference, as_scanned, difference
from mlfs.tree.scan import GONE, ScanStopped, scan
from mountd.inodes import inode_of
from mountd.misses import Misses

log = logging.getLogger("mlfs.refresh")

POOL = "refresh"
MOUNT_AGAIN = "unmount it and mount it again, or mlfs mount --rescan"


class Kernel(Protocol):
    """The kernel's side of a refresh: it is told of changes, from worker threads. Only the channel knows the kernel."""

    def forget_name(self, directory: int, name: bytes) -> None:
        """Forget what a name stands for, or that there is none."""

    def forget_attributes(self, inode: int) -> None:
        """Forget the attributes of an inode."""


@dataclass(frozen=True, slots=True)
class OutdatedJob:
    """A job whose data set is another one since a refresh.

    Attributes:
        samples: it is registered over. now: the data set has, -1 where it cannot be found any more.
        why: the reason for that.
    """

    name: str
    samples: int
    now: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class RefreshStatistics:
    """The last refresh.

    Attributes:
        run: its number, 0 when there was none. state: none, running, done, stopped or failed. path: what is refreshed.
        directories, entries: seen so far.
        added, gone, changed: entries that came, went, or have another content, mode or owner.
        unreadable: directories that could not be read, and stay as they were.
        remark: what went wrong. outdated: jobs whose data set has changed, by any refresh.
    """

    run: int = 0
    state: str = "none"
    path: str = ""
    directories: int = 0
    entries: int = 0
    added: int = 0
    gone: int = 0
    changed: int = 0
    unreadable: int = 0
    remark: str = ""
    outdated: tuple[OutdatedJob, ...] = ()


class Refreshing:
    """Carries out one refresh at a time. Loop only; `run` must be running.

    Args:
        source_path: by which the index names the source.
        index_path: where the index is saved.
        samples_of: finds the data set of a job in the tree as it is now; in a worker.
        grows: told how the tree takes over another form, as a text, before it does.

    Attributes:
        misses: names that were asked for in vain.
    """

    def __init__(
        self,
        engine: Engine,
        manifest: GrowingManifest,
        source: PosixSource,
        source_path: str,
        mountpoint: str,
        index_path: Path,
        kernel: Kernel,
        samples_of: Callable[[JobSpec], SampleIds],
        grows: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._manifest = manifest
        self._source, self._source_path = source, source_path
        self.misses = Misses(manifest, source, engine.runner, mountpoint)
        self._index_path = index_path
        self._kernel = kernel
        self._samples_of = samples_of
        self._grows = grows
        self._told = RefreshStatistics()
        self._outdated: dict[str, tuple[JobRun, OutdatedJob]] = {}
        self._counts = (0, 0)
        self._asked = b""  # what is to be refreshed, as it was named
        self._stop = threading.Event()
        self._wanted = trio.Event()

    def statistics(self) -> RefreshStatistics:
        directories, entries = self._counts
        jobs: Mapping[str, JobRun] = self._engine.jobs
        outdated = tuple(change for name, (job, change) in self._outdated.items() if jobs.get(name) is job)
        return replace(self._told, directories=directories, entries=entries, outdated=outdated)

    def begin(self, path: bytes) -> int:
        """Begin to refresh what lies at a path of the view, or in the nearest directory above it. Returns its number.

        Raises: MlfsError when it cannot be done now.
        """
        if self._told.state == "running":
            raise MlfsError("a refresh of this mount is under way", "wait for it: mlfs status shows it", ExitCode.BUSY)
        if self._engine.peering.statistics().node >= 0:
            message = "this mount shares its copies with other nodes, which number the files alike"
            raise MlfsError(message, "end mlfs peers first; or mount again on all nodes", ExitCode.BUSY)
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        self._asked = b"/".join(parts)
        while parts and not self._manifest.is_dir(self._manifest.find(b"/".join(parts)) if parts else 0):
            parts.pop()
        shown = os.fsdecode(b"/".join(parts))
        self._counts = (0, 0)
        self._stop = threading.Event()
        self._told = RefreshStatistics(self._told.run + 1, "running", shown)
        self._wanted.set()
        return self._told.run

    def stop(self, run: int) -> None:
        """End a refresh that was not through with its scan: the view stays as it was."""
        if run == self._told.run:
            self._stop.set()

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                await self._refresh(os.fsencode(self._told.path))
            except ScanStopped:
                self._told = replace(self._told, state="stopped")
            except MlfsError as error:
                self._told = replace(self._told, state="failed", remark=str(error))
                log.warning("the refresh failed: %s", error)
            except OSError as error:
                self._told = replace(self._told, state="failed", remark=f"the source: {error.strerror}")
                log.warning("the refresh failed: %s", error)
            finally:
                self._stop.set()
                if self._told.state == "running":  # a fault of ours
                    self._told = replace(self._told, state="failed", remark="mlfs failed: the mount's log says why")

    async def _refresh(self, path: bytes) -> None:
        manifest, runner = self._manifest, self._engine.runner
        path, scanned = await runner.run(POOL, self._scan, path)
        top = manifest.find(path)
        found = await runner.run(POOL, difference, manifest, top, scanned)
        coming = len(found.growth.ends)
        if coming > manifest.room:
            message = f"{coming:,} entries have come, and there is room for {manifest.room:,} more"
            raise MlfsError(message, MOUNT_AGAIN)
        as_text = await runner.run(POOL, packed, found.growth)
        gone = [sample for entry in found.growth.gone for sample in self._engine.known(entry)]
        self._grows(as_text)
        self.grew_before(found.growth)
        for entry, seen in found.changed:
            if entry in found.growth.back:
                self._engine.back(entry, _change(manifest, entry, scanned, seen))
        clean = self._engine.gone(gone)
        self.misses.refreshed(top)
        await runner.run(POOL, clean)
        changed = found.others + await runner.run(POOL, self._take_over, scanned, found)
        await self._look_at_jobs()
        remark = await runner.run(POOL, self._save)
        unreadable = len(scanned.unreadable)
        self._told = replace(
            self._told, state="done", added=found.added, gone=found.gone, changed=changed, unreadable=unreadable,
            remark=remark,
        )  # fmt: skip
        where = f" below {os.fsdecode(path)}" if path else ""
        log.info(
            "refreshed%s: %d entries have come, %d are gone, %d have changed", where, found.added, found.gone,
            changed,
        )  # fmt: skip

    def grew_before(self, growth: Growth) -> None:
        """The tree takes over another form, of which nothing has to be told: it is told already, or will be."""
        first = self._manifest.used
        self._manifest.grow(growth)
        self._engine.samples.came(range(first, self._manifest.used))

    def _scan(self, path: bytes) -> tuple[bytes, Manifest]:
        """In a worker: what is below a directory, or below the nearest above it that is still one."""
        stop = self._stop
        self._check_there()
        while True:
            try:
                fd = open_beneath(self._source.root.fd, path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                if not path or error.errno not in GONE:
                    raise
                path = path.rpartition(b"/")[0]
                continue
            try:
                return path, scan(fd, progress=self._count, stop=stop.is_set)
            finally:
                os.close(fd)

    def _check_there(self) -> None:
        """A name that was mistyped must not cost a scan of what is above it. Raises: MlfsError."""
        if self._manifest.find(self._asked) >= 0:
            return
        try:
            os.close(open_beneath(self._source.root.fd, self._asked, os.O_PATH))
        except OSError as error:
            if error.errno in GONE:
                asked = printable(os.fsdecode(self._asked))
                raise MlfsError(f"{asked} is neither in the mount nor at its source") from None

    def _count(self, directories: int, entries: int) -> None:
        self._counts = directories, entries

    def _take_over(self, scanned: Manifest, found: Difference) -> int:
        """In a worker, once the manifest shows the new names. Returns how many files had other attributes."""
        manifest = self._manifest
        changed = 0
        for entry, seen in found.changed:
            change = _change(manifest, entry, scanned, seen)
            known = manifest.size_view[entry], manifest.mtime_ns_view[entry], manifest.ctime_ns_view[entry]
            is_back = entry in found.growth.back
            if is_back or known != change[:3] or manifest.rights(entry) != change.rights:
                changed += not is_back
                self._engine.replaced(entry, change)
        for entry, row in found.growth.rights.items():  # others may be let in, and the ACL may be another one
            if manifest.is_dir(entry):
                rights = Rights(*(row[name] for name in Rights._fields))
                self._engine.replaced(entry, FileChange(row["size"], row["mtime_ns"], row["ctime_ns"], rights))
        for directory, names in found.names.items():
            for name in names:
                self._forget(self._kernel.forget_name, inode_of(directory), name)
        for entry in found.directories.union(*found.growth.linked):
            self._forget(self._kernel.forget_attributes, inode_of(entry, manifest.generation_view[entry]))
        return changed

    def _forget(self, call: Callable[..., None], *args: object) -> None:
        try:
            call(*args)
        except FileNotFoundError:
            return  # it knows nothing of it
        except OSError as error:
            log.warning("the kernel could not be told of a change: %s", error)

    async def _look_at_jobs(self) -> None:
        for name, job in list(self._engine.jobs.items()):
            change = await self._engine.runner.run(POOL, self._compared, job)
            self._outdated.pop(name, None)
            if change is not None:
                self._outdated[name] = job, change
                log.warning("job %s: registered over %d samples, its data set has changed", name, change.samples)

    def _compared(self, job: JobRun) -> OutdatedJob | None:
        """In a worker: whether a job's data set is another one now."""
        before = job.streams.sample_ids
        try:
            now = self._samples_of(job.spec)
        except (MlfsError, OSError) as error:
            return OutdatedJob(job.name, len(before), -1, str(error))
        return None if np.array_equal(before, now) else OutdatedJob(job.name, len(before), len(now))

    def _save(self) -> str:
        """In a worker: the next mount shall have what this one shows. Returns what went wrong."""
        with suppress(OSError):
            identity = source_identity(self._source.root.fd, self._source_path)
            save(as_scanned(self._manifest), self._index_path, identity)
            return ""
        return f"the index cannot be saved to {self._index_path}; the next mount scans by itself"


def _change(manifest: Manifest, entry: int, scanned: Manifest, seen: int) -> FileChange:
    """A file of the mount as a scan has seen it, with the known times in the place of those that prove nothing."""
    now = manifest.as_known(
        entry,
        FileAttributes(
            scanned.size_view[seen], scanned.mtime_ns_view[seen], scanned.ctime_ns_view[seen], scanned.mode_view[seen],
            0, scanned.uid_view[seen], scanned.gid_view[seen], scanned.nlink_view[seen],
        ),
    )  # fmt: skip
    return FileChange(now.size, now.mtime_ns, now.ctime_ns, now.rights, scanned.blocks_view[seen])
