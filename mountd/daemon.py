"""The daemon of one mount: scans, mounts, serves until it is told to stop or the mount goes away, and cleans up.

In: a MountConfig (from `mlfs mount`, by a pipe). Out: progress and the outcome of the start as dicts through
`report`; then the exit code. The source directory is opened before the mount, and files are reached through that
descriptor: so the mount can cover the source itself.

It is the server of a mount (docs/processes.md). One whose predecessor has died takes the mount over: it serves what
that one left with the holder, and does not mount.
"""

from __future__ import annotations

import gc
import json
import logging
import mmap
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypedDict
from urllib.parse import quote

import numpy as np
import trio
from numpy.typing import NDArray

from mlfs.config import MountConfig
from mlfs.engine.auditor import POOL as AUDITS
from mlfs.engine.auditor import Auditor
from mlfs.engine.context import Cluster, MountLimits
from mlfs.engine.engine import Engine, MountedData, MountMachine
from mlfs.engine.looks import seen_before
from mlfs.engine.mount_jobs import Listener, Observers
from mlfs.engine.movers import POOL as MOVERS
from mlfs.engine.movers import MoverKind, by_cores
from mlfs.engine.peering import PEER_LANES
from mlfs.engine.recorder import Recorders
from mlfs.engine.runner import DESCRIPTORS_A_THREAD, SPARE, Runner
from mlfs.engine.shortages import Shortages
from mlfs.engine.statistics import EngineStatistics
from mlfs.errors import ExitCode, MlfsError
from mlfs.explain.explainer import Explainer
from mlfs.explain.inference import Build
from mlfs.job import JobSpec
from mlfs.limits import Resource, limit_of, raise_open_files, usable_processors
from mlfs.measure import earlier
from mlfs.measure.speeds import MeasuredPlace
from mlfs.orders.layouts import samples as samples_of
from mlfs.orders.layouts.layout import Outside, SampleIds
from mlfs.orders.streams import JobStreams, build_streams
from mlfs.orders.streams import samples_of as data_set_of
from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.memory_file import MemoryFile
from mlfs.places.open_files import MOST_UNUSED
from mlfs.places.pieces import Spill
from mlfs.places.place import FileChange, PlaceKind, Places, SourcePlace, StoringPlace, TierPlace
from mlfs.places.posix import PosixSource
from mlfs.places.ram import RamTier
from mlfs.places.showcase import Showcase
from mlfs.places.ssd import SsdTier
from mlfs.places.tier import Tier
from mlfs.processes import OF_SERVER, be_killed_sooner, outlive_parent, reuse_memory
from mlfs.tree.attributes import Rights
from mlfs.tree.growing import unpacked
from mlfs.tree.samples import Samples
from mlfs.tree.source_files import SourceFiles
from mlfs.units import format_size
from mountd import holders, mounts, runtime
from mountd.channel_pyfuse3 import Pyfuse3Channel
from mountd.commands_mount import CommandsMount
from mountd.control import Control
from mountd.handlers import Handlers, ReadFailures
from mountd.holder import MOST_LOCKS, PASSED_ON, Start
from mountd.left_behind import Facts, Holding, LeftBehind
from mountd.log_file import log_to, reopen_log
from mountd.messages import died_before, doubts, no_sizes, unreadable
from mountd.onlookers import Onlookers
from mountd.pagecache import MountPages
from mountd.prime_inodes import InodePrimer
from mountd.refreshing import Refreshing
from mountd.runtime import LifeNote
from mountd.silent import HAS_MOVERS, NO_NAMES, NO_SIZES, ChannelStatistics, Silence
from mountd.source_looks import POOL as LOOKS
from mountd.source_looks import ExtendedAttributes, FirstLooks
from mountd.statistics import About, MountParts
from mountd.view import Report, TreeView, index_path, make_view, view_as_it_was
from mountd.virtual import VirtualFiles

log = logging.getLogger("mlfs.daemon")

# LMDB saves to open a file for each sample, which matters where samples are small.
LARGEST_LMDB_SAMPLE_BYTES = 256 << 10
# The loop competes with the workers for the interpreter. At the default of 5 ms it would wait as long as a slow read.
SWITCH_INTERVAL_S = 0.0005
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# How long readers may finish after a signal (docs/semantics.md, `end-signals`), and how often unmounting is tried.
STOP_PATIENCE_S = 10.0
STOP_RETRY_S = 0.2
# How long the channel has to notice that its mount is gone before it is ended.
DETACHED_PATIENCE_S = 1.0
# A file of more bytes is read and kept by blocks of so many; of a data set of more than MANY_BYTES by the larger ones,
# as each takes some bytes of memory (docs/decisions/block-size.md).
LARGEST_WHOLE_BYTES, BLOCK_BYTES, LARGER_BLOCK_BYTES, MANY_BYTES = 4 << 20, 1 << 20, 4 << 20, 16 << 40
# Threads by name; see docs/concurrency.md.
POOLS = {
    "demand": 64,
    "read": 32,
    "held": 16,
    "near": 4,
    "orders": 1,
    "register": 4,
    "plan": 1,
    "drop": 1,
    "inodes": 1,
    "look": 1,
    "source": 1,
    LOOKS: 32,
    "peers": PEER_LANES,
    "giving": 2,
    "refresh": 1,
    "misses": 1,
    MOVERS: 1,
    AUDITS: 1,
}


def serve(config: MountConfig, report: Report, holding: Holding) -> int:
    """Mount and serve. Returns the exit code; a start that fails raises MlfsError with nothing left behind.

    Args:
        holding: the connection to what holds this process.
    """
    left = holding.left
    os.umask(0o077)  # what a mount writes is for its user alone
    log_to(config.log_file, config.log_format, config.log_size_bytes, config.log_files)
    # Each arena maps 64 MiB, used or not: where the address space is limited, all threads share one.
    reuse_memory(4 if _mappable_bytes() == resource.RLIM_INFINITY else 1)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with ExitStack() as at_the_end, ExitStack() as cleanup:
        check_start(holding)
        if left is None:
            source_fd = os.open(config.source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            view = make_view(config, source_fd, report)
        else:
            source_fd = left.source
            view = view_as_it_was(config, source_fd, left.index, left.facts.how, left.facts.links)
        cleanup.callback(os.close, source_fd)
        manifest = view.manifest
        covered = config.mountpoint == config.source  # then its path leads to this mount
        source = PosixSource(source_fd, manifest, None if covered else config.source)
        cleanup.callback(source.close)
        samples = Samples.in_blocks(
            manifest, LARGEST_WHOLE_BYTES, BLOCK_BYTES if manifest.total_bytes <= MANY_BYTES else LARGER_BLOCK_BYTES
        )  # fmt: skip
        showcase = Showcase()
        places, notes = _places(config, source, samples, showcase, cleanup, left)
        seen = seen_before(manifest, view.scanned) if config.allow_other else None
        outside = SourceFiles(b"/proc/self/fd/%d" % source.root.fd)
        tree = _Tree(view, samples, source, outside, seen)
        service = _Service(config, tree, places, showcase, notes, report, holding)
        for number in STOP_SIGNALS:  # from here to the end a signal must not skip the cleaning up
            at_the_end.callback(signal.signal, number, signal.signal(number, service.note_signal))
        if left is not None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        return trio.run(service.run)


def _places(
    config: MountConfig,
    source: PosixSource,
    samples: Samples,
    showcase: Showcase,
    cleanup: ExitStack,
    left: LeftBehind | None,
) -> tuple[Places, list[str]]:
    """The source and the tiers, in the order in which they are tried; and what the user should know of them."""
    stores: list[TierPlace] = []
    notes: list[str] = []

    def add_disk(tier: LmdbTier | SsdTier, asked_bytes: int, largest_bytes: int = 0) -> None:
        add(PlaceKind(str(tier.kind)), tier, largest_bytes)
        if tier.fit_to_disk():
            notes.append(
                f"{tier.name}: {format_size(asked_bytes)} were asked for, and the disk has room for"
                f" {format_size(tier.capacity_bytes)}: so much is used"
            )

    def add(kind: PlaceKind, tier: Tier, largest_bytes: int = 0) -> None:
        stores.append(TierPlace(kind, tier, samples, largest_bytes, showcase))
        cleanup.callback(stores[-1].close)

    add(PlaceKind.RAM, RamTier(config.ram_bytes, left.ram if left is not None else ()))

    # A server that has died has its directories locked as long as one of its threads waits for the mount, which only
    # the next server answers: that one goes on with the same locks.
    locks = left.locks if left is not None else ()

    @contextmanager
    def or_without(path: str) -> Iterator[None]:
        try:
            yield
        except MlfsError as error:
            if left is None:
                raise
            log.warning("this mount goes on without %s: %s", path, error.message)

    for directory in config.lmdb:
        with or_without(directory.path):
            lmdb = LmdbTier(directory.path, directory.bytes, config.source, LARGEST_LMDB_SAMPLE_BYTES, locks=locks)
            add_disk(lmdb, directory.bytes, LARGEST_LMDB_SAMPLE_BYTES)
    for directory in config.ssd:
        with or_without(directory.path):
            add_disk(SsdTier(directory.path, directory.bytes, config.source, locks=locks), directory.bytes)
    for fd in locks:
        os.close(fd)
    most_unused = min(MOST_UNUSED, raise_open_files() // 4)
    spills = [spill for store in stores if (spill := _spill(store)) is not None]
    place = SourcePlace(source, samples, _buffer_bytes(config) // 8, most_unused, spills)
    cleanup.callback(place.close_ranges)
    return Places(place, stores), notes


def _spill(store: TierPlace) -> Spill | None:
    """Room for ranges of samples, in what a tier has left; None where it has none."""
    tier = store.tier
    if not isinstance(tier, RamTier | SsdTier) or not tier.capacity_bytes:
        return None

    def room_bytes() -> int:
        return tier.capacity_bytes - tier.used_bytes

    if isinstance(tier, RamTier):
        return Spill(MemoryFile(), store, room_bytes)
    if (ranges := tier.file_of_ranges()) is None:
        return None
    file, left = ranges
    return Spill(file, store, room_bytes, tier.disk_free_bytes, tier.sum_of_range, left, tier.leave_ranges)


def _memory_of(place: StoringPlace) -> list[int]:
    """The memory in which a server that comes after this one finds the place's copies again."""
    return place.tier.memory if isinstance(place, TierPlace) and isinstance(place.tier, RamTier) else []


def _locks(places: Places) -> list[int]:
    """The descriptors that keep the directories of disks locked."""
    tiers = [place.tier for place in places.storing if isinstance(place, TierPlace)]
    return [tier.lock_fd for tier in tiers if isinstance(tier, LmdbTier | SsdTier) and tier.lock_fd >= 0]


def _buffer_bytes(config: MountConfig) -> int:
    """The memory for buffers, a small part of a limited address space: else it would be lacking for what has to be
    done."""
    limit = _mappable_bytes()
    return config.buffer_bytes if limit == resource.RLIM_INFINITY else min(config.buffer_bytes, limit // 16)


def _mappable_bytes() -> int:
    """The limit of the address space, RLIM_INFINITY for none."""
    return resource.getrlimit(resource.RLIMIT_AS)[0]


class _Tree(NamedTuple):
    """The data set with which the mount begins.

    Attributes:
        outside: the files that links in it lead to. seen: see `mlfs.engine.engine.MountedData`.
    """

    view: TreeView
    samples: Samples
    source: PosixSource
    outside: Outside
    seen: NDArray[np.uint8] | None


class _Service:
    """One mount from the moment its parts are there until it is gone."""

    def __init__(
        self,
        config: MountConfig,
        tree: _Tree,
        places: Places,
        showcase: Showcase,
        notes: Sequence[str],
        report: Report,
        holding: Holding,
    ) -> None:
        self.config = config
        self.holding = holding
        self.left = holding.left
        self.lives = holding.restarts
        self.started = time.time() if self.left is None else self.left.facts.started
        self.generation = secrets.randbits(31) + 1 if self.left is None else self.left.facts.generation
        self.index = tree.view.kept if self.left is None else self.left.index
        self.samples = tree.samples
        self.manifest = tree.view.manifest
        self.source = tree.source
        self.places = places
        self.showcase = showcase
        self.outside = tree.outside
        self.how, self.links = tree.view.how, tree.view.links
        self.seen = tree.seen
        self.notes = list(notes)
        self.report = report
        self.silence = self._silence()
        self.commands = CommandsMount(
            config.mountpoint, config.allow_other, partial(self._note, "commands"), self._may_be_silent
        )  # fmt: skip
        self.channel = Pyfuse3Channel(self.silence, holding.under_way())
        self.pages = MountPages(
            self.manifest, os.fsencode(config.mountpoint), self.channel.store, self.channel.invalidate,
            self.channel.forget_name, unknown=self.left is not None,
        )  # fmt: skip
        self.beside: dict[str, Any] = self.left.beside if self.left is not None else {}
        failed = self.beside.get("failed", (0, "", "", 0.0))
        self.read_failures = ReadFailures(self.manifest.path, tuple(failed), holding.places.counted)
        self.mounted: mounts.MountEntry | None = None
        self.told_to_stop = False
        self.changes = 0  # of the source, that this server has noticed

    async def run(self) -> int:
        """Mount, serve, unmount."""
        shortages = Shortages()
        descriptors = share_descriptors()
        runner = Runner(
            POOLS | {self.places.source.name: self.config.pfs_threads}, wait=self.channel.poll_wait,
            shortages=shortages, most_threads=descriptors.threads,
        )  # fmt: skip
        await take_threads(runner, {LOOKS: 1} if self.config.allow_other else {}, self.holding)
        explainer = self._make_explainer()
        recorders = Recorders(self.manifest.paths, runner, time.monotonic)
        auditor = Auditor(runner, self.config.strict_order, self.holding.audited())
        primer = InodePrimer(self.manifest, os.fsencode(self.config.mountpoint), runner)
        listeners: list[Listener] = [recorders, primer, auditor, self.holding.places]
        engine = self._make_engine(runner, explainer, listeners, shortages, descriptors)
        life = LifeNote(self.config.mountpoint, takes_over=self.left is not None)
        if life.died is not None:
            self.notes.append(died_before(life.died, self.config.mountpoint))
            log.warning("%s", self.notes[-1])
        about = About(
            self.config.source, self.config.mountpoint, self.how, self.started, *self._unreadable(), life.died,
            self.links,
        )  # fmt: skip
        refreshing = Refreshing(
            engine, self.manifest, self.source, self.config.source, self.config.mountpoint, index_path(self.config),
            self.channel, self._samples_of, partial(self._note, "growth"),
        )  # fmt: skip
        requests = self.channel.requests_so_far
        parts = MountParts(
            about, engine, explainer, requests, primer, self.source, self.read_failures, refreshing, auditor,
            self.holding, self._channel_now,
        )  # fmt: skip
        extended = ExtendedAttributes(self.manifest, self.source, engine.looks, runner, self.config.source_timeout_s)
        onlookers = Onlookers(self.manifest, extended.has_acl, extended.may_have_acl)
        told = partial(self._note, "jobs")
        control = Control(
            parts, recorders, auditor, self.outside, self.config.report, life, onlookers, told, lambda: self.changes
        )  # fmt: skip
        self._leave_record()
        try:
            self._mount(engine, control, primer, extended, refreshing)
            await self._serve(engine, control, primer, refreshing, auditor)
            await control.job_reports.mount_ends()
            keep_refined(self.config, self.places, engine.statistics())
        finally:
            life.remove()
            runtime.remove(self.config.mountpoint, os.getpid())
            # Trio closes what signals wake it by before Python knows: many signals just then may hang Python for ever.
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        return ExitCode.OK

    def _leave_record(self) -> None:
        """Tell commands which process serves. Without that they ask the mount itself, as long as it answers."""
        try:
            runtime.write(
                self.config.mountpoint, self.config.source, self.config.log_file, settings=self.config.model_dump(),
                holder=self.holding.holder, started=self.started,
            )  # fmt: skip
        except OSError as error:
            remark = f"no record of this mount could be written to {runtime.runtime_dir()}: {error.strerror}"
            log.warning("%s", remark)
            self.notes.append(f"{remark}; mlfs ls does not show it, and mlfs unmount --force does not find its process")

    async def _serve(
        self, engine: Engine, control: Control, primer: InodePrimer, refreshing: Refreshing, auditor: Auditor
    ) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.run)
                nursery.start_soon(engine.background.keep_going, "refreshing the view", refreshing.run)
                nursery.start_soon(engine.background.keep_going, "looking for missed names", refreshing.misses.run)
                nursery.start_soon(engine.background.keep_going, "recording", control.run)
                nursery.start_soon(engine.background.keep_going, "listing directories", primer.run)
                nursery.start_soon(engine.background.keep_going, "auditing", auditor.run)
                nursery.start_soon(
                    engine.background.keep_going,
                    "watching the source",
                    partial(watch_source, self.source, engine.runner),
                )
                nursery.start_soon(self._stop_on_signal, engine, control, nursery.cancel_scope)
                nursery.start_soon(self._announce, engine)
                if self.silence is not None:
                    told = partial(self.silence.run, engine.runner)
                    nursery.start_soon(engine.background.keep_going, "hearing of opens", told)
                if self.mounted is not None:
                    watch_mounts = partial(self.commands.watch, engine.runner, self.mounted.device)
                    nursery.start_soon(engine.background.keep_going, "watching the mount", watch_mounts)
                nursery.start_soon(engine.background.keep_going, "reopening the log", self._reopen_log_on_signal)
                outlive = partial(self._outlive, engine, control)
                nursery.start_soon(engine.background.keep_going, "keeping what another server needs", outlive)
                await self.channel.serve()
                nursery.cancel_scope.cancel()
        except Exception:
            if self.holding.is_followed:
                log.exception("the server failed: another one takes the mount over")
                os._exit(ExitCode.FAILURE)  # as after any other crash: what is cleaned up here would be missed there
            raise
        finally:
            if engine.movers is not None:
                engine.movers.end()
            self.holding.let_go()  # else the descriptor there would keep alive what ends here
            if self.silence is not None:
                self.silence.close()
            # Still there after a second signal, a failure of ours, or an aborted connection.
            self._detach()
            self.channel.close(unmount=False)  # the binding would unmount by path: what lies below is not ours
            log.info("unmounted %s", self.config.mountpoint)

    def _unreadable(self) -> tuple[int, str, int]:
        """How many directories the scan could not read, the first of them, and why."""
        manifest, left_out = self.manifest, self.manifest.unreadable.tolist()
        if not left_out:
            return 0, "", 0
        return len(left_out), os.fsdecode(manifest.path(left_out[0])), manifest.unreadable_error(left_out[0])

    def _warnings(self) -> list[str]:
        """Warnings that whoever mounts should have at once."""
        source, manifest = self.config.source, self.manifest
        count, first, number = self._unreadable()
        said = [unreadable(count, first, source, self.config.mountpoint, number)] if count else []
        said += doubts(self.source.statistics(), source)
        return [*said, *no_sizes(manifest.n_files, manifest.total_bytes, source), *filter(None, [self.links])]

    def _make_explainer(self) -> Explainer:
        if not self.config.infer:
            return Explainer(None)
        source = os.fsencode(self.config.source)
        return Explainer(
            Build(
                lambda spec: samples_of(spec, self.manifest, source, self.outside),
                self._build_streams,
            )
        )

    def _samples_of(self, spec: JobSpec) -> SampleIds:
        return data_set_of(spec, self.manifest, os.fsencode(self.config.source), self.outside)

    def _build_streams(self, spec: JobSpec) -> JobStreams:
        return build_streams(spec, self.manifest, os.fsencode(self.config.source), self.outside)

    def _make_engine(
        self,
        runner: Runner,
        explainer: Explainer,
        listeners: Sequence[Listener],
        shortages: Shortages,
        descriptors: Descriptors,
    ) -> Engine:
        config = self.config
        limits = MountLimits(
            config.staging_bytes, config.pfs_threads,
            hedge_s=min(10.0, config.source_timeout_s), timeout_s=config.source_timeout_s,
            most_open_files=descriptors.open_files, buffer_bytes=_buffer_bytes(config), lives=self.lives,
            opens_untold=self._may_be_silent(),
            **calibrated_limits(config, self.places),
        )  # fmt: skip
        return Engine(
            MountedData(self.samples, self.source, self.places, self.pages, self.seen),
            MountMachine(runner, time.monotonic, shortages, movers=self._movers()),
            limits,
            Observers(
                explainer,
                listeners,
                self._note_change,
                self.left.of_job if self.left is not None else lambda _: [],
                self.holding.uncounted(),
            ),
            Cluster(
                self.showcase,
                runtime.agent_socket(config.mountpoint),
                self._build_streams,
                self.left.agent if self.left is not None else (),
                partial(self._note, "agent"),
            ),
        )

    def _movers(self) -> MoverKind | None:
        asked = self.config.movers
        wanted = by_cores(usable_processors()) if asked is None else asked
        if self._may_be_silent() or not wanted:
            return None  # they push what a READ waits for, which holds the pages that the push waits for
        shared, restarts = tuple(self.places.shared.values()), self.beside.get("movers", [])
        return MoverKind(wanted, asked is not None, start_mover, shared, restarts, self.holding.places.counted)

    def _mount(
        self,
        engine: Engine,
        control: Control,
        primer: InodePrimer,
        extended: ExtendedAttributes,
        refreshing: Refreshing,
    ) -> None:
        virtual = VirtualFiles(
            control, os.getuid(), os.getgid(), lambda: self.commands.directory, self.lives,
            self._is_silent,
        )  # fmt: skip
        options = {"subtype=mlfs", "fsname=mlfs:" + quote(os.fsencode(self.config.source), safe="/")}
        if self.config.allow_other:
            options.add("allow_other")
        if self.config.allow_other or runtime.knows_all_groups():
            # In a user namespace groups have no number: the kernel would refuse what this user may read by one of them.
            options.add("default_permissions")
        if not self.commands.is_open:
            options.add("ro")
        first_looks = FirstLooks(self.manifest, engine.looks, engine.runner, self.config.source_timeout_s)
        handlers = Handlers(
            engine, virtual, primer, self.pages, self.read_failures, refreshing.misses, first_looks, extended
        )  # fmt: skip
        if self.silence is not None:
            self._note("server", os.getpid())
            self.silence.is_told(handlers)
        if self.left is not None:
            self.mounted = self.left.facts.mounted
            self.commands.take_over(self.left.commands)
            self._tell_what_happened(self.left, engine, refreshing)
            self.channel.take_over(handlers, self.left.fuse, self.generation, self.left.suspects)
            self._keep(self.left.fuse)
            return
        # Where `mlfs mount` was killed this raises: another one may have begun, which would be mounted below this one.
        self.report({"progress": {"phase": "mounting"}})
        try:
            self.channel.mount(
                handlers, self.config.mountpoint, options, self.config.allow_other, self.generation, self._keep
            )
        except (OSError, RuntimeError) as error:
            raise MlfsError(
                f"{self.config.mountpoint} cannot be mounted: {error}",
                f"see {self.config.log_file or 'the lines above'}; `ls -l /dev/fuse` and `fusermount3 --version` work?",
                ExitCode.MOUNT_POINT,
            ) from error
        self.mounted = mounts.mount_at(self.config.mountpoint)

    def _silence(self) -> Silence | None:
        """The silent channel's part; None where files are opened by request in any case, as in the mount of a server
        that has died before it was decided."""
        mountpoint = os.fsencode(self.config.mountpoint)
        if self.left is None:
            return self._wanted(Silence(self.manifest, mountpoint)) if self.config.channel != "open" else None
        found = self._channel_left()
        if found.name == "open":
            return None
        return Silence(self.manifest, mountpoint, self.left.opens, found, self.left.servers)

    def _channel_left(self) -> ChannelStatistics:
        """The server before this one has decided that."""
        left = self.left.channel if self.left is not None else None
        return ChannelStatistics(*left) if left is not None else ChannelStatistics()

    def _channel_now(self) -> ChannelStatistics:
        return self.silence.statistics() if self.silence is not None else self._channel_left()

    def _wanted(self, silence: Silence) -> Silence:
        """Returns it, given up where the choice is ours and the mount would lose something by it."""
        if self.config.channel == "auto" and self.config.movers:
            silence.give_up(HAS_MOVERS)
        elif self.config.channel == "auto" and self.config.infer and not silence.has_names:
            silence.give_up(NO_NAMES)
        elif self.config.channel == "auto" and no_sizes(self.manifest.n_files, self.manifest.total_bytes, ""):
            silence.give_up(NO_SIZES)
        return silence

    def _is_silent(self) -> bool:
        return self.silence is not None and self.silence.on

    def _may_be_silent(self) -> bool:
        return self.silence is not None and self.silence.may_be

    async def _decide(self, silence: Silence, runner: Runner) -> None:
        """Whether OPEN is answered: it is where the kernel would let somebody write, or does not tell of opens."""
        if silence.may_be and self.commands.is_open:
            silence.give_up(self.commands.refused)
        elif silence.may_be:
            await silence.begin(runner)
        now = silence.statistics()
        self._note("channel", [now.name, now.why])
        if not silence.on and self.config.channel == "silent":
            self.notes.append(f"the channel is open, and not silent: {silence.why}")

    # -- the server that comes after this one, if it dies

    def _keep(self, fuse: int) -> None:
        """The kernel has agreed to be served: by this process, or by another one."""
        if self.index >= 0 and self.mounted is not None:
            if self.left is None:
                facts = Facts(self.generation, self.mounted, self.started, self.how, self.links)
                self._note("mount", facts.noted())
            memory = [fd for place in self.places.storing for fd in _memory_of(place)]
            kept = {"fuse": fuse, "source": self.source.root.fd, "index": self.index}
            kept |= {f"ram{number}": fd for number, fd in enumerate(memory)}
            kept |= {f"lock{number}": fd for number, fd in enumerate(_locks(self.places)[:MOST_LOCKS])}
            if self.silence is not None and self.silence.descriptor >= 0:
                kept["opens"] = self.silence.descriptor  # what happens while nobody serves is told to the next one
            self.holding.keep(kept)

    def _note(self, kind: str, value: object) -> None:
        self.holding.journal.note(kind, value)
        self.changes += kind in ("change", "growth")

    def _note_change(self, entry: int, change: FileChange) -> None:
        if self.left is None or not self.left.changes:  # else it is one of those that were noted
            self._note("change", [entry, change])

    def _tell_what_happened(self, left: LeftBehind, engine: Engine, refreshing: Refreshing) -> None:
        """Have the tree be as the kernel knows it: what the server before this one has noticed, in its order. Count on
        from its counters."""
        if left.counters is not None:
            engine.counters.go_on(left.counters, left.past["epochs"])
        for happened in left.changes:
            if isinstance(happened, str):
                refreshing.grew_before(unpacked(happened))
                continue
            entry, (size_bytes, mtime_ns, ctime_ns, rights, blocks) = happened
            change = FileChange(size_bytes, mtime_ns, ctime_ns, rights and Rights(*rights), blocks)
            with suppress(OSError):  # it was refused before, too
                engine.changed_before(entry, change)
        left.changes.clear()

    async def _outlive(self, engine: Engine, control: Control) -> None:
        holding = self.holding
        async with trio.open_nursery() as nursery:
            nursery.start_soon(holding.watch, engine.runner, self._leave_record)
            if self.left is not None:
                nursery.start_soon(self._take_up, engine, control, self.left)
            nursery.start_soon(control.keep_places, holding.places)
            nursery.start_soon(holding.beat)
            nursery.start_soon(holding.make_way)

    async def _take_up(self, engine: Engine, control: Control, left: LeftBehind) -> None:
        try:
            await left.suspects.may_fetch_ahead()
            await control.take_up(left)
        finally:
            engine.digest.jobs_go_on()
            if self.silence is not None:
                self.silence.jobs_go_on()

    async def _announce(self, engine: Engine) -> None:
        """Say that we serve, once the mount has answered."""
        mountpoint, runner = os.fsencode(self.config.mountpoint), engine.runner
        await runner.run("look", os.stat, mountpoint + b"/.mlfs/status")
        if engine.movers is not None:
            engine.movers.begin(self.channel.descriptor)
        self.holding.serves()
        if self.left is not None:
            if self.silence is not None:
                await self._decide(self.silence, runner)
            gc.collect()
            gc.freeze()
            log.warning("the server before this one %s: %s goes on", self.holding.why, self.config.mountpoint)
            return
        if self.commands.wanted and self.mounted is not None:
            await runner.run("look", self.commands.make, self.mounted.device)
        if self.silence is not None:
            await self._decide(self.silence, runner)
        if words := self.commands.words():
            self.notes.append(words)
        gc.collect()
        gc.freeze()  # what exists now lives as long as the mount: no collection needs to look at it again
        self.report(
            {
                "serving": {
                    "pid": os.getpid(),
                    "files": self.manifest.n_files,
                    "bytes": self.manifest.total_bytes,
                    "how": self.how,
                    "notes": [*self._warnings(), *self.notes],
                }
            }
        )
        log.info("serving %s at %s", self.config.source, self.config.mountpoint)

    async def _stop_on_signal(self, engine: Engine, control: Control, serving: trio.CancelScope) -> None:
        """SIGTERM and Ctrl-C: fetch nothing more, let readers finish, then unmount. A second one does not wait."""
        with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
            if not self.told_to_stop:
                log.info("%s: stopping", signal.Signals(await anext(signals)).name)
            control.end_for_good()
            with trio.move_on_after(STOP_PATIENCE_S) as patience:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._let_readers_finish, engine, patience)
                    log.info("%s: not waiting for readers", signal.Signals(await anext(signals)).name)
                    patience.cancel()
            log.warning("detaching with files still open")
            serving.cancel()
            await trio.sleep_forever()  # further signals are not to cut short what is cleaned up now

    async def _reopen_log_on_signal(self) -> None:
        """SIGUSR1, as logrotate sends it: the next line goes to the file that is at the log's path then."""
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            async for _ in signals:
                reopen_log()

    async def _let_readers_finish(self, engine: Engine, patience: trio.CancelScope) -> None:
        known: list[holders.User] = []
        while not await engine.runner.run("stop", self._unmounted):
            users = await engine.runner.run("stop", holders.users_of, self.config.mountpoint, {os.getpid()})
            for pid, name, what in users if users != known else ():
                log.info("in use by %d (%s): %s", pid, name, what)
            known = users
            await trio.sleep(STOP_RETRY_S)
        # The channel notices that the mount is gone; but not while files are open on one that somebody has detached.
        await trio.sleep(DETACHED_PATIENCE_S)
        patience.cancel()

    def _unmounted(self) -> bool:
        """Unmount; whether the mount is gone now, by us or by somebody else."""
        return mounts.unmount(self.config.mountpoint, self.mounted)

    def _detach(self) -> None:
        try:
            if self.mounted is not None:
                mounts.detach(self.config.mountpoint, self.mounted)
            self.commands.end()
        except MlfsError as error:
            log.error("the mount stays behind: %s", error)

    def note_signal(self, _number: int, _frame: object) -> None:
        """A signal came before the loop listens to signals, or after."""
        self.told_to_stop = True


def start_mover(channel: socket.socket) -> subprocess.Popen[bytes]:
    """Start a process that moves files (mountd.mover). Raises: OSError."""
    words = [sys.executable, "-m", "mountd.mover", "--channel-fd", str(channel.fileno())]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd="/", pass_fds=(channel.fileno(),))


# -- looks now and then whether a source that is gone, or that hangs, is at its path again
#
# In: the source. Out: nothing but that it goes on. A reader who fails has the source looked for as well, but a mount
# whose prefetching failed, or whose reads hang, has nobody who asks.

source_log = logging.getLogger("mlfs.source")

# As long as a person who has mounted the source again is willing to wait.
LOOK_EVERY_S = 1.0


async def watch_source(source: PosixSource, runner: Runner) -> None:
    """For as long as the mount lives. A look that hangs holds up further ones, and nothing else."""
    before = source.statistics().root
    while True:
        await trio.sleep(LOOK_EVERY_S)
        now = source.statistics()
        if now.root.error or now.hanging:
            await runner.run("source", source.look)
            now = source.statistics()
        if now.root.opened_again != before.opened_again:
            source_log.warning("the source's file system was opened again, after it had died or hung")
        elif (now.root.state, now.root.error) != (before.state, before.error) and now.root.error:
            source_log.warning("the source is gone: %s", now.root.error)
        before = now.root


# -- what a daemon needs to serve, taken at its start: threads for readers, descriptors, memory
#
# In: the limits of this process. Out: threads that are there before the first read comes, how the descriptors are
# shared out; or the MlfsError that names the limit which is too low. The rest (lanes, tiers, plans) is taken when it is
# wanted, and goes without what it cannot have (mlfs.engine.shortages).

# Two for readers who wait for a file, so that one which hangs can be asked for again; one for readers whose page is
# gone, which must not wait for the former (docs/concurrency.md, rule 4); one for everything else.
SERVING = {SPARE: 1, "demand": 2, "read": 1}
THREADS = sum(SERVING.values())
# Descriptors for a moment: the control files, a directory that is listed, what /proc is asked, a recording.
KEPT_FREE = 8
FEWEST_DESCRIPTORS = KEPT_FREE + DESCRIPTORS_A_THREAD * THREADS
# These are opened between the start and the first read: the source, the loop, the log, files in memory, /dev/fuse.
OPENED_AT_START = 17
# The address space of the threads' stacks and of what is read at a time, beside what the program itself takes.
FEWEST_BYTES = 64 << 20
# A thread of the scan may take a moment to end, and is one too many until then.
THREADS_PATIENCE_S = 0.5


class Descriptors(NamedTuple):
    """How the descriptors that may still be opened are shared out.

    Attributes:
        threads: most threads, so that each has the descriptors it needs. open_files: large files held open for readers.
    """

    threads: int
    open_files: int


def check_start(holding: Holding) -> None:
    """Before anything else: take what serving needs, and give it back. Raises MlfsError with the limit's name.

    The processes that stand by give way where threads lack.
    """
    free = raise_open_files()
    if free < OPENED_AT_START + FEWEST_DESCRIPTORS:
        raise too_low(Resource.FILES, f"{OPENED_AT_START + FEWEST_DESCRIPTORS - free} more")
    over = threading.Event()
    try:
        for _ in range(THREADS):
            try:
                threading.Thread(target=over.wait, daemon=True).start()
            except RuntimeError:
                holding.stand_alone()
                threading.Thread(target=over.wait, daemon=True).start()
        mmap.mmap(-1, FEWEST_BYTES).close()
    except RuntimeError:
        raise too_low(Resource.THREADS, f"{THREADS + 1} threads") from None
    except (OSError, MemoryError):
        raise too_low(Resource.MEMORY, f"{FEWEST_BYTES >> 20} MiB beside what the program takes") from None
    finally:
        over.set()


def share_descriptors() -> Descriptors:
    """Share out what may still be opened; raises MlfsError where it is too little to serve."""
    free = raise_open_files()
    if free < FEWEST_DESCRIPTORS:
        raise too_low(Resource.FILES, f"{FEWEST_DESCRIPTORS - free} more")
    threads = max(THREADS, (free - KEPT_FREE) * 3 // 4 // DESCRIPTORS_A_THREAD)
    return Descriptors(threads, free - KEPT_FREE - DESCRIPTORS_A_THREAD * threads)


async def take_threads(runner: Runner, more: Mapping[str, int], holding: Holding) -> None:
    """Start the threads without which nothing can be served, for which what stands by gives way; raises MlfsError where
    they are not to be had.

    Args:
        more: what this mount needs besides, by pool.
    """
    with trio.move_on_after(THREADS_PATIENCE_S):
        while not runner.take({**SERVING, **more}):
            holding.stand_alone()
            await trio.sleep(THREADS_PATIENCE_S / 10)
        return
    raise too_low(Resource.THREADS, f"{THREADS + 1} threads")


def too_low(what: Resource, needs: str) -> MlfsError:
    """The refusal of a mount: which limit is too low, and what to set."""
    limit = limit_of(what)
    return MlfsError(
        f"a limit of this process is too low: {limit.what}, a mount needs {needs}", limit.way_out, ExitCode.FAILURE
    )


# -- what earlier measurements tell a mount, and what the mount tells the next one, in the daemon's terms
#
# In: the mount's config and its places; at the end the statistics of its engine. Out: fields of
# `mlfs.engine.context.MountLimits`; the file of refined bandwidths. The work is mlfs.measure.earlier's.


class Calibrated(TypedDict, total=False):
    calibrated: dict[str, Sequence[tuple[int, float]]]
    refined: dict[str, Sequence[tuple[int, float]]]
    calibrated_sample_bytes: float
    pfs_lanes_at_first: int


def calibrated_limits(config: MountConfig, places: Places) -> Calibrated:
    """The fields that a calibration and earlier mounts fill in. Raises ConfigError for a named file."""
    found = earlier.for_mount(config.source, config.calibration)
    measured, result = _measured(places), Calibrated()
    if found.calibrated is not None:
        result["calibrated"] = found._replace(refined=None).by_name(measured)
        # Only a calibration tells this: a mount's lanes disturb each other, and there more never looked slower.
        result["pfs_lanes_at_first"] = found.calibrated.source.good_readers
    if found.refined is not None:
        result["refined"] = found._replace(calibrated=None).by_name(measured)
    if found.source is not None:
        result["calibrated_sample_bytes"] = found.source.mean_sample_bytes
    made = [f"{name} {file.made}" for name, file in found._asdict().items() if file is not None]
    if made:
        log.info("bandwidths known from before: %s", ", ".join(made))
    return result


def keep_refined(config: MountConfig, places: Places, figures: EngineStatistics) -> None:
    """The mount has ended: keep what it measured for the next one. A failure of this is only logged."""
    mean_bytes = figures.tree.bytes / max(1, figures.tree.files)
    measured = {name: speeds.refined for name, speeds in figures.speeds.places.items() if speeds.measured}
    earlier.save_measured(config.source, mean_bytes, _measured(places), measured)


def _measured(places: Places) -> list[MeasuredPlace]:
    source = MeasuredPlace(places.source.kind, places.source.name)
    return [source, *(MeasuredPlace(place.kind, place.name, place.capacity_bytes) for place in places.storing)]


# -- the process


def main(start: Start) -> int:
    """The server of the mount that `mlfs mount` makes; its reports go by a pipe."""
    be_killed_sooner(OF_SERVER)
    # To write down the memory of a server that crashes takes longer than to have another one serve.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    config = MountConfig.from_json(start.config)
    status = open(start.report_fd, "w", encoding="ascii", buffering=1) if start.report_fd >= 0 else None  # noqa: SIM115

    def report(message: dict[str, object]) -> None:
        is_last = "serving" in message or "error" in message
        if is_last:
            outlive_parent()
        if status is None or status.closed:
            return
        try:
            status.write(json.dumps(message) + "\n")
            if is_last:
                status.close()
        except BrokenPipeError:
            with suppress(BrokenPipeError):
                status.close()
            if not is_last:
                log.error("`mlfs mount` was killed before this mount served: nothing is mounted")
                raise MlfsError("nobody waits for this mount any more", "mlfs mount") from None
            log.debug("nobody listens any more")

    holding = Holding(start)
    code = int(ExitCode.FAILURE)
    try:
        code = serve(config, report, holding)
    except MlfsError as error:
        report({"error": {"message": error.message, "hint": error.hint, "exit_code": int(error.exit_code)}})
        code = int(error.exit_code)
    except Exception as error:
        log.exception("the daemon failed")
        report(
            {"error": {"message": f"the daemon failed: {error!r}", "hint": f"see {config.log_file}", "exit_code": 1}}
        )
    holding.over(code)
    return code
