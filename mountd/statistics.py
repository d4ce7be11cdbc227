"""All that is known of a mount at one moment: frozen figures, put together from what each part tells of itself.

In: the parts of a mount. Out: `MountStatistics`. Made anew whenever somebody reads the status or the metrics; called by
mountd.control on the loop. mountd.status alone decides what of it is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import trio

import mlfs
from mlfs.audit.report import Audit
from mlfs.engine.auditor import Auditor
from mlfs.engine.engine import Engine
from mlfs.engine.statistics import EngineStatistics
from mlfs.explain.explainer import Explainer
from mlfs.explain.statistics import ExplainerStatistics
from mlfs.limits import usable_processors
from mlfs.places.posix import PosixSource
from mlfs.places.source_statistics import SourceStatistics
from mlfs.processes import stat_fields
from mountd.handlers import ReadFailures, ReadFailureStatistics
from mountd.left_behind import CrashStatistics, Holding
from mountd.misses import MissStatistics
from mountd.prime_inodes import InodePrimer
from mountd.refreshing import Refreshing, RefreshStatistics
from mountd.runtime import Died
from mountd.silent import ChannelStatistics


@dataclass(frozen=True, slots=True)
class About:
    """Facts that never change while a mount lives.

    Attributes:
        how: how its list of files was made. started: when, in seconds since 1970.
        unreadable: how many directories the scan could not read. first_unreadable: the path of the first of them.
        unreadable_errno: what listing that one failed with.
        died: the daemon that served the mount point before, if it died.
        links: what is to be said of links that lead out of the source.
    """

    source: str
    mountpoint: str
    how: str
    started: float
    unreadable: int = 0
    first_unreadable: str = ""
    unreadable_errno: int = 0
    died: Died | None = None
    links: str = ""


@dataclass(frozen=True, slots=True)
class ProcessStatistics:
    """The daemon's process.

    Attributes:
        version: of mlfs. uptime_s: since the mount. rss_bytes: resident memory.
        processors: how many it may use, by its affinity and by the quotas of its cgroups; so may what is started beside
            it.
    """

    version: str
    pid: int
    uptime_s: float
    rss_bytes: int
    processors: int


@dataclass(frozen=True, slots=True)
class ProcessOfMount:
    """One of the processes of a mount.

    Attributes:
        name: "holder", "standby-0", "server", "mover-0" and so on, "agent". restarts: how often it was started again.
            why: how the one before ended.
        rss_bytes, cpu_s: resident memory, and what it has computed.
    """

    name: str
    pid: int
    restarts: int
    why: str
    rss_bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class MountStatistics:
    """Frozen figures of all parts of a mount.

    Attributes:
        requests: of the kernel so far, by kind. directories_to_list: those still to come, the present one included.
        audit: what the auditor has seen when it last looked. strict_order: whether what it finds is an error.
        channel: how the mount hears of reads.
    """

    about: About
    process: ProcessStatistics
    engine: EngineStatistics
    explainer: ExplainerStatistics
    requests: Mapping[str, int]
    directories_to_list: int
    source: SourceStatistics = field(default_factory=SourceStatistics)
    read_failures: ReadFailureStatistics = field(default_factory=ReadFailureStatistics)
    misses: MissStatistics = field(default_factory=MissStatistics)
    refresh: RefreshStatistics = field(default_factory=RefreshStatistics)
    audit: Audit = field(default_factory=Audit)
    strict_order: bool = False
    processes: Sequence[ProcessOfMount] = ()
    channel: ChannelStatistics = field(default_factory=ChannelStatistics)
    crashes: CrashStatistics = field(default_factory=CrashStatistics)


@dataclass(frozen=True, slots=True, eq=False)
class MountParts:
    """The parts of a mount, to be asked about themselves.

    Attributes:
        requests: how many there were of the kernel so far, by kind. The channel counts them.
        holding: the connection to what holds this process.
        channel: how reads are heard of.
    """

    about: About
    engine: Engine
    explainer: Explainer
    requests: Callable[[], Mapping[str, int]]
    primer: InodePrimer
    source: PosixSource
    read_failures: ReadFailures
    refreshing: Refreshing
    auditor: Auditor
    holding: Holding
    channel: Callable[[], ChannelStatistics]

    def _processes(self) -> Sequence[ProcessOfMount]:
        movers = self.engine.movers.lives() if self.engine.movers is not None else []
        agent = self.engine.peering.statistics().agent
        agents = [("agent", agent, 0, "")] if agent else []
        return [ProcessOfMount(*life, *used_by(life[1])) for life in [*self.holding.lives(), *movers, *agents]]

    def counted(self) -> dict[str, Any]:
        """The counts beside `mlfs.stats.Counters`, for the server that comes after this one, as JSON has them."""
        movers = self.engine.movers.restarts if self.engine.movers is not None else []
        return {"failed": self.read_failures.noted(), "movers": movers}

    def _about_now(self) -> About:
        """A refresh may have read what the first scan could not."""
        manifest = self.engine.manifest
        if not manifest.growths or len(manifest.unreadable) == self.about.unreadable:
            return self.about
        first = int(manifest.unreadable[0]) if len(manifest.unreadable) else -1
        return replace(
            self.about,
            unreadable=len(manifest.unreadable),
            first_unreadable=os.fsdecode(manifest.path(first)) if first >= 0 else "",
            unreadable_errno=manifest.unreadable_error(first) if first >= 0 else 0,
        )

    def statistics(self) -> MountStatistics:
        left = self.holding.left
        return MountStatistics(
            about=self._about_now(),
            process=ProcessStatistics(
                mlfs.__version__,
                os.getpid(),
                time.time() - self.about.started,
                resident_bytes(),
                usable_processors(),
            ),
            engine=self.engine.statistics(),
            explainer=self.explainer.statistics(),
            requests=self.requests(),
            directories_to_list=self.primer.waiting(),
            source=self.source.statistics(),
            read_failures=self.read_failures.statistics(),
            misses=self.refreshing.misses.statistics(),
            refresh=self.refreshing.statistics(),
            audit=self.auditor.last,
            strict_order=self.auditor.is_strict,
            processes=self._processes(),
            channel=self.channel(),
            crashes=left.suspects.statistics(self.engine.manifest.path) if left is not None else CrashStatistics(),
        )


def resident_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process, of this one by default."""
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def used_by(pid: int) -> tuple[int, float]:
    """The resident memory of a process, and the seconds that it has computed; zeros for one that is gone."""
    fields = stat_fields(pid)
    try:
        return resident_bytes(pid), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0, 0.0


# -- status and metrics as texts: made beside the loop, so seldom that they cost little, and never old
#
# In: who asks for which text. Out: the text, which was begun to be made after it was asked for.
#
# All who ask at once share one text. The next one is begun only after a pause of PAUSE times what the last one cost, so
# that fifty readers who ask again and again take a twentieth of a core and no more: they wait instead, for a second at
# most. One who asks alone waits for nothing. The figures are put together on the loop, which owns them; the text is
# made of them in a thread, as they are frozen.

# The pause after a text is so many times as long as that took, and no longer than this.
PAUSE = 19
LONGEST_PAUSE_S = 1.0


class _ComingText:
    """A text that has been asked for, and whose making has not begun."""

    def __init__(self) -> None:
        self.made = trio.Event()
        self.text: bytes | None = None


class SharedTexts:
    """Makes the texts of status and metrics for all who ask. Args: clock: seconds, to tell what a text costs."""

    def __init__(self, source: MountParts, clock: Callable[[], float] = time.perf_counter) -> None:
        self._source = source
        self._clock = clock
        self._coming: dict[Hashable, _ComingText] = {}
        self._turn = trio.Lock()  # one is made at a time
        self._next_s = float("-inf")  # when the next one may be begun, by trio's clock
        self._threads = trio.CapacityLimiter(1)

    async def text(self, kind: Hashable, make: Callable[[MountStatistics], bytes]) -> bytes:
        """A text of the figures as they are now.

        Args:
            kind: who gives the same kind may get the same text. make: called in a thread.
        """
        while True:
            coming = self._coming.get(kind)
            if coming is None:
                return await self._make(kind, make)
            await coming.made.wait()
            if coming.text is not None:  # else whoever was to make it has gone
                return coming.text

    async def _make(self, kind: Hashable, make: Callable[[MountStatistics], bytes]) -> bytes:
        coming = self._coming[kind] = _ComingText()
        try:
            async with self._turn:
                await trio.sleep_until(self._next_s)
                del self._coming[kind]  # who asks from here on is told of what comes later
                coming.text = await self._made(make)
                return coming.text
        finally:
            if self._coming.get(kind) is coming:
                del self._coming[kind]
            coming.made.set()

    async def _made(self, make: Callable[[MountStatistics], bytes]) -> bytes:
        began = self._clock()
        now = self._source.statistics()
        on_loop_s, in_thread_s = self._clock() - began, 0.0

        def timed() -> bytes:
            nonlocal in_thread_s
            began = time.thread_time()
            text = make(now)
            in_thread_s = time.thread_time() - began
            return text

        try:
            return await trio.to_thread.run_sync(timed, limiter=self._threads)
        except RuntimeError:  # no thread is to be had
            return timed()
        finally:
            pause_s = min(PAUSE * (on_loop_s + in_thread_s), LONGEST_PAUSE_S)
            self._next_s = trio.current_time() + pause_s
