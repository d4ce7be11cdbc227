"""All that is known of a mount at one moment: frozen figures, put together from what each part tells of itself.

In: the parts of a mount. Out: `MountStatistics`. Made anew whenever somebody reads the status or the metrics; called by
mountd.control on the loop. mountd.status alone decides what of it is shown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import mlfs
from mlfs.engine.engine import Engine
from mlfs.engine.statistics import EngineStatistics
from mlfs.explain.explainer import Explainer
from mlfs.explain.statistics import ExplainerStatistics
from mlfs.places.posix import PosixSource
from mlfs.places.source_statistics import SourceStatistics
from mlfs.processors import usable_processors
from mountd.about import About
from mountd.misses import MissStatistics
from mountd.prime_inodes import InodePrimer
from mountd.read_failures import ReadFailures, ReadFailureStatistics
from mountd.refreshing import Refreshing, RefreshStatistics


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
class MountStatistics:
    """Frozen figures of all parts of a mount.

    Attributes:
        requests: of the kernel so far, by kind. directories_to_list: those still to come, the present one included.
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


@dataclass(frozen=True, slots=True, eq=False)
class MountParts:
    """The parts of a mount, to be asked about themselves.

    Attributes:
        requests: how many there were of the kernel so far, by kind. The channel counts them.
    """

    about: About
    engine: Engine
    explainer: Explainer
    requests: Callable[[], Mapping[str, int]]
    primer: InodePrimer
    source: PosixSource
    read_failures: ReadFailures
    refreshing: Refreshing

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
        """The statistics of all parts of the mount."""
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
        )


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
