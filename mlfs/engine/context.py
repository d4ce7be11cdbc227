"""The records that parts of one mount's engine share: the loop with its threads, budgets, the way to other nodes.

In: the daemon's settings, and the loop with its threads. Out: records, made once by mlfs.engine.engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mlfs.engine.runner import Runner
from mlfs.engine.shortages import Shortages
from mlfs.job import JobSpec
from mlfs.orders.streams import JobStreams
from mlfs.places.showcase import Showcase
from mlfs.plan.scheduler.config import Limits
from mlfs.stats import Counters


class Context(NamedTuple):
    """The loop and its threads.

    Attributes:
        step: tells the scheduler of events, and has carried out what it decides; on the loop.
        clock: seconds, monotone; from any thread.
        runner: has calls that block run in threads.
        counters: count what happened, for the status. shortages: hear of what the process lacks.
    """

    step: Callable[..., None]
    clock: Callable[[], float]
    runner: Runner
    counters: Counters
    shortages: Shortages


class Cluster(NamedTuple):
    """This node's way to others.

    Attributes:
        showcase: the samples that the node's agent gives by itself. agent_socket: where the agent connects; None: it
            cannot come.
        build: computes the streams of a job that another node was told, in a worker thread.
        agent: the last one that a server before this one had, and its keeper: their processes, and when each began, in
            ticks. note_agent: told of each that comes, in the same form.
    """

    showcase: Showcase
    agent_socket: str | None
    build: Callable[[JobSpec], JobStreams]
    agent: Sequence[tuple[int, int]] = ()
    note_agent: Callable[[Sequence[tuple[int, int]]], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class MountLimits:
    """Budgets and threads of a mount.

    Attributes:
        staging_bytes: the window. pfs_threads, tier_threads: most prefetch lanes of the PFS, and of each tier.
        hedge_s, timeout_s: see mlfs.plan.scheduler.config.Limits.
        calibrated: (lanes, bytes a second of all together) by a place's name, as measured before.
        refined: the same as an earlier mount refined it, where that is newer.
        calibrated_sample_bytes: of a sample that the source was calibrated with, 0 when nothing is known.
        pfs_lanes_at_first: how many prefetch lanes the PFS is tried with first, 0 when nothing is known.
        most_open_files: large files that are held open for readers at a time; each takes a descriptor.
        lives: how many processes have served this mount before this one.
        opens_untold: whether files may be opened without a request, so that READs wait for whole files.
        buffer_bytes: of what was fetched and is not kept yet, and of contents that several READs ask for.
    """

    staging_bytes: int
    pfs_threads: int = 16
    tier_threads: int = 4
    hedge_s: float = 10.0
    timeout_s: float = 30.0
    calibrated: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    refined: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    calibrated_sample_bytes: float = 0.0
    pfs_lanes_at_first: int = 0
    most_open_files: int = 1 << 20
    buffer_bytes: int = 128 << 20
    lives: int = 0
    opens_untold: bool = False

    def of_scheduler(self) -> Limits:
        """The limits that the scheduler goes by."""
        return Limits(self.staging_bytes, self.pfs_lanes_at_first, self.hedge_s, self.timeout_s)
