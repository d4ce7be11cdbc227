"""Turns an epoch's bytes into seconds: how long each node loads, and when each step of a bulk-synchronous job ends.

In: an `EpochBytes`, the performance model, a policy's traits, the rule of sharing. Out: loading times, step ends.
Called by `mlfs.lab.sim.run`. Source: NoPFS, Section 4, and docs/model.md for the two rules of sharing the PFS.

- paper: each prefetch thread of a node gets t(gamma) / gamma, where gamma counts nodes. Nodes may so draw more than the
  PFS has; this rule reproduces the published figures.
- conserving: all readers together get t(gamma). A class gives r_j(p_j) to all who ask; a node's network carries b_c.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from mlfs.lab.policies.policy import Overlap, Traits, Writing
from mlfs.lab.sim.gpu_queues import GpuNode, GpuQueues, Stage, ThreadCost
from mlfs.lab.sim.tally import EpochBytes
from mlfs.plan.model import Floats, PerformanceModel


class Sharing(Enum):
    """How readers share the PFS."""

    PAPER = "paper"
    CONSERVING = "conserving"


class Loading:
    """Loading times of one policy on one cluster."""

    def __init__(self, model: PerformanceModel, traits: Traits, sharing: Sharing, node: GpuNode | None = None) -> None:
        self.model, self.traits, self.sharing = model, traits, sharing
        self.gpus = node.gpus if node else 1
        self.queues = GpuQueues(model, node or GpuNode(), traits)
        # With one thread, the process of each GPU reads by itself.
        self.threads = self.gpus if traits.one_thread else model.staging.threads
        self.class_threads = sum(storage.threads for storage in model.classes)

    def lanes(self, tally: EpochBytes) -> Floats:
        """Seconds that each lane of each GPU works for each step, shape (T, L, N * M); lanes work side by side.

        Work of a node as a whole stands in the lanes of each of its GPUs.
        """
        thread_s = self._thread_cost(tally)
        stage = self.queues.stage(tally, self.threads, thread_s)
        pfs_s = self._pfs_s(tally)
        lanes = self._paper(tally, stage) if self.sharing is Sharing.PAPER else self._conserving(tally, stage, pfs_s)
        stacked = np.stack(np.broadcast_arrays(*lanes), axis=1)
        if self.gpus == 1:
            return stacked
        per_thread = thread_s(stage.loading)
        own = self.queues.loading(tally, stage, per_thread, self._pfs_thread_s(tally, stage, per_thread, pfs_s))
        if self.sharing is Sharing.CONSERVING:
            own += self.queues.preprocessing(tally, stage)
        return np.stack([*np.repeat(stacked, self.gpus, axis=2).swapaxes(0, 1), *own], axis=1)

    def cost(self, tally: EpochBytes) -> Floats:
        """Seconds a byte by route for one thread, shape (R,)."""
        return self._cost(readers_of(tally))

    def _cost(self, readers: int) -> Floats:
        """Seconds a byte by route for one thread, PFS first; write included where the same thread writes."""
        model, classes = self.model, range(len(self.model.classes))
        cost = np.array(
            [
                float(model.fetch_pfs_s(1.0, readers)),
                *(float(model.fetch_peer_s(1.0, j)) for j in classes),
                *(float(model.fetch_local_s(1.0, j)) for j in classes),
            ]
        )
        return cost + (float(model.write_s(1.0)) if self.traits.writing is Writing.THREAD else 0.0)

    def _thread_cost(self, tally: EpochBytes) -> ThreadCost:
        """Seconds that a loading thread takes for a byte. Conserving: threads share what the PFS gives their node."""
        cost, readers = self._cost(readers_of(tally)), readers_of(tally)
        share = self._pfs_rate(readers) / readers
        paper = self.sharing is Sharing.PAPER
        return lambda threads: cost if paper else np.concatenate([[threads / share], cost[1:]])

    def _pfs_rate(self, readers: int) -> float:
        return min(float(self.model.pfs.at(readers)), readers * self.model.node_pfs_bytes_per_s)

    def _pfs_rate_ahead(self, tally: EpochBytes) -> float:
        """The rate that all nodes get together while they read ahead: t(gamma), gamma being how many read at a time.

        Equal nodes own as much as one another, so all read all the time. A node that owns little has few reads under
        way, and often none, where nodes differ. All threads together have N * p_0 under way, and a node's part of them
        is its part of the bytes; that it has none is as likely as with arrivals at random (Poisson), beside the node
        with the largest part, which always has some.
        """
        drawn = tally.drawn + tally.background
        if not self.model.capacities_by_node or not drawn.any():
            return self._pfs_rate(readers_of(tally))
        under_way = len(drawn) * self.model.staging.threads * drawn / drawn.sum()
        busy = 1.0 - np.exp(-under_way)
        most_of_one = float(drawn.max() / drawn.sum())
        return min(float(self.model.pfs.at(busy.sum() / busy.max())), self.model.node_pfs_bytes_per_s / most_of_one)

    def _pfs_s(self, tally: EpochBytes) -> Floats:
        """Conserving: seconds until each node has its bytes of a step from the PFS, shape (T, N)."""
        steps, nodes = tally.queued.shape[:2]
        if self.traits.overlap is not Overlap.WINDOW:
            return shared_finish_s(tally.loaded[:, :, 0], self.model)
        drawn = tally.loaded[:, :, 0].sum(axis=1) + tally.background.sum() / max(1, steps)
        return np.repeat((drawn / self._pfs_rate_ahead(tally))[:, None], nodes, axis=1)

    def _pfs_thread_s(self, tally: EpochBytes, stage: Stage, thread_s: Floats, pfs_s: Floats) -> Floats | float:
        """Seconds a byte from the PFS for one thread; where nodes load in step, by what the node gets in that step."""
        if self.sharing is Sharing.PAPER or self.traits.overlap is Overlap.WINDOW:
            return float(thread_s[0])
        wanted = tally.loaded[:, :, 0]
        return np.asarray(stage.loading * pfs_s / np.where(wanted > 0, wanted, np.inf))[:, :, None]

    def _pooled(self, tally: EpochBytes) -> Floats:
        """Seconds of preprocessing after the fetch, 0 unless the policy preprocesses then."""
        if self.traits.writing is not Writing.POOL:
            return np.zeros(tally.queued.shape[:2])
        return np.asarray(self.model.write_s(tally.node_bytes) / self.model.staging.threads)

    def _paper(self, tally: EpochBytes, stage: Stage) -> list[Floats]:
        cost, loaded = self._cost(readers_of(tally)), tally.loaded
        aside = tally.background[None, :] * cost[0] / max(1, self.class_threads) / max(1, len(loaded))
        if not self.traits.own_lanes:
            load = loaded @ cost / stage.loading + self._pooled(tally)
            return [load, aside] if tally.background.any() else [load]
        lanes = [loaded[:, :, 0] * cost[0] / (self.threads + self.class_threads)]
        n = len(self.model.classes)
        for j, storage in enumerate(self.model.classes):
            both = loaded[:, :, 1 + j] * cost[1 + j] + loaded[:, :, 1 + n + j] * cost[1 + n + j]
            lanes.append(both / storage.threads)
        return lanes

    def _conserving(self, tally: EpochBytes, stage: Stage, pfs_s: Floats) -> list[Floats]:
        model, cost = self.model, self._cost(readers_of(tally))
        other = tally.loaded[:, :, 1:] @ cost[1:] / stage.loading + self._pooled(tally)
        lanes = [pfs_s] if self.traits.own_lanes else [pfs_s + other]
        for j, storage in enumerate(model.classes):
            lanes.append(tally.served[:, :, j] / float(storage.read.at(storage.threads)))
        # A link carries both directions at once: within a window a step that sends makes up for one that receives.
        lanes += [tally.sent / model.network_bytes_per_s, tally.received / model.network_bytes_per_s]
        if self.queues.preprocess_for_all:
            lanes.append(tally.node_bytes / stage.preprocess_bytes_per_s)
        return lanes

    def preload_s(self, class_bytes: Floats, readers: int) -> float:
        """Seconds before the first step: the classes are filled side by side, each by its own threads.

        Each sample is read, preprocessed and written by one thread (read = fetch + write), and no faster than the class
        writes. Conserving: all nodes' bytes together come at t(gamma), those of a broadcast once.
        """
        model = self.model
        per_byte = float(model.fetch_pfs_s(1.0, readers)) + float(model.write_s(1.0))
        written = [
            total / float(storage.write.at(storage.threads))
            for total, storage in zip(class_bytes, model.classes, strict=True)
        ]
        if self.sharing is Sharing.CONSERVING:
            drawn = float(class_bytes.sum()) * readers
            return float(max([drawn / float(model.pfs.at(readers)), *written]))
        fetched = [
            total * per_byte / storage.threads for total, storage in zip(class_bytes, model.classes, strict=True)
        ]
        return float(max([0.0, *fetched, *written]))


def readers_of(tally: EpochBytes) -> int:
    """gamma: how many nodes read from the PFS in the epoch, at least one."""
    drawn = tally.queued[:, :, :, 0].sum(axis=(0, 2)) + tally.background
    return max(1, int((drawn > 0).sum()))


def shared_finish_s(wanted_bytes: Floats, model: PerformanceModel) -> Floats:
    """When each node has its bytes of a step, (T, N), if the nodes still reading share t(gamma) evenly."""
    order = np.argsort(wanted_bytes, axis=1)
    ascending = np.take_along_axis(wanted_bytes, order, axis=1)
    nodes = wanted_bytes.shape[1]
    share = np.array([model.pfs_share_bytes_per_s(nodes - done) for done in range(nodes)])
    ends = np.cumsum(np.diff(ascending, axis=1, prepend=0.0) / share, axis=1)
    result = np.empty_like(wanted_bytes)
    np.put_along_axis(result, order, ends, axis=1)
    return result


class Clock:
    """Time of a bulk-synchronous job, epoch by epoch: a step ends when its slowest GPU has loaded and computed it."""

    def __init__(self, overlap: Overlap, window_steps: int) -> None:
        self.overlap = overlap
        self.window = max(1, window_steps)
        self.now = 0.0
        self._loaded: Floats | None = None  # (L, N * M) when each lane was last done
        self._ends = np.zeros(self.window)  # ends of the last `window` steps
        self._pending = 0.0  # BATCH: compute time of the step whose data were loaded last

    def preload(self, seconds: float) -> None:
        """Time passes before the first step."""
        self.now += seconds

    def advance(self, lanes: Floats, compute_s: Floats) -> float:
        """Run an epoch: lanes (T, L, N * M), compute_s (T, N * M). Returns when it ends."""
        if self.overlap is Overlap.WINDOW:
            self._window(lanes, compute_s)
        else:
            load = lanes.max(axis=1)
            if self.overlap is Overlap.NONE:
                self.now += float((load + compute_s).max(axis=1).sum())
            else:
                self._batch(load.max(axis=1), compute_s.max(axis=1))
        return self.now

    def _batch(self, load_s: Floats, compute_s: Floats) -> None:
        """Double buffering: while a step is computed the next is loaded; the epoch's last is computed at its end."""
        self.now -= self._pending
        before = np.concatenate(([self._pending], compute_s[:-1]))
        self.now += float(np.maximum(load_s, before).sum() + compute_s[-1])
        self._pending = float(compute_s[-1])

    def _window(self, lanes: Floats, compute_s: Floats) -> None:
        """A lane may work for step h when step h - window is over: the staging buffer holds that many steps."""
        if self._loaded is None or self._loaded.shape != lanes.shape[1:]:
            self._loaded = np.full(lanes.shape[1:], self.now)
        most = compute_s.max(axis=1)
        for start in range(0, len(lanes), self.window):
            work = np.cumsum(lanes[start : start + self.window], axis=0)
            n = len(work)
            allowed = self._ends[:n, None, None] - np.concatenate([np.zeros_like(work[:1]), work[:-1]])
            done = np.maximum(np.maximum.accumulate(allowed, axis=0), self._loaded) + work
            ready = (done.max(axis=1) + compute_s[start : start + n]).max(axis=1)
            spent = np.cumsum(most[start : start + n])
            ends = np.maximum(np.maximum.accumulate(ready - spent), self.now) + spent
            self._loaded, self.now = done[-1], float(ends[-1])
            self._ends = np.concatenate([self._ends, ends])[-self.window :]
