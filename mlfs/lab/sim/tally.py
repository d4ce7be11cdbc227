"""Counts an epoch's reads: bytes by step, node and route, and what each storage class has to serve.

In: a policy's `EpochReads`, the samples' sizes. Out: an `EpochBytes`. Called by `mlfs.lab.sim.run`;
`mlfs.lab.sim.clock` computes seconds from it.

Routes are numbered: 0 is the PFS, 1 to J are a peer's classes, J+1 to 2J are the own classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.lab.policies.policy import EpochReads
from mlfs.plan.model import Floats, PerformanceModel
from mlfs.plan.node_reads import PFS

# Steps are counted in parts of about this many reads, so that intermediate arrays stay in the processor's caches.
CHUNK_SAMPLES = 1 << 18


class EpochBytes(NamedTuple):
    """An epoch in bytes.

    Attributes:
        queued: (T, N, M, R) bytes that each GPU of each node has loaded in each step by each route.
        served: (T, N, J) bytes that each node's classes give out, to itself and to peers.
        sent, received: (T, N) what each node sends to others, and gets of them.
        background: (N,) drawn from the PFS by class threads beside the steps.
        drawn: (N,) what each node draws from the PFS in the steps, for itself or to hand it on.
        counts: (R,) reads by route.
    """

    queued: Floats
    served: Floats
    sent: Floats
    received: Floats
    background: Floats
    drawn: Floats
    counts: npt.NDArray[np.int64]

    @property
    def loaded(self) -> Floats:
        """(T, N, R): bytes that each node loads in each step by each route."""
        return self.queued[:, :, 0] if self.queued.shape[2] == 1 else np.asarray(self.queued.sum(axis=2))

    @property
    def gpu_bytes(self) -> Floats:
        """(T, N, M): bytes of each GPU's batch."""
        return np.asarray(self.queued.sum(axis=3))

    @property
    def node_bytes(self) -> Floats:
        """(T, N): bytes of each node's batch."""
        return np.asarray(self.loaded.sum(axis=2))

    @property
    def pfs_bytes(self) -> float:
        """All that comes from the PFS in the epoch."""
        return float(self.queued[:, :, :, 0].sum() + self.background.sum())


def tally(reads: EpochReads, padded_sizes: Floats, model: PerformanceModel, gpus: int = 1) -> EpochBytes:
    """Count an epoch; `padded_sizes` has a 0 after the last sample, where id -1 points.

    A node's batch is dealt to its `gpus` one by one, as a distributed sampler deals to ranks.
    """
    steps, nodes, batch = reads.ids.shape
    stride = max(1, CHUNK_SAMPLES // max(1, nodes * batch))
    parts = [
        _part(
            reads._replace(
                ids=reads.ids[start : start + stride],
                node=reads.node[start : start + stride],
                storage=reads.storage[start : start + stride],
            ),
            padded_sizes,
            model,
            gpus,
        )
        for start in range(0, steps, stride)
    ]
    if len(parts) == 1:
        return parts[0]
    queued, served, sent, received = (np.concatenate([part[column] for part in parts]) for column in range(4))
    drawn, counts = (np.sum(column, axis=0) for column in zip(*((p.drawn, p.counts) for p in parts), strict=True))
    return EpochBytes(queued, served, sent, received, reads.background_bytes, drawn, counts)


def _part(reads: EpochReads, padded_sizes: Floats, model: PerformanceModel, gpus: int) -> EpochBytes:
    """Count some steps."""
    steps, nodes, batch = reads.ids.shape
    n_classes, n_routes = len(model.classes), 1 + 2 * len(model.classes)
    sizes = padded_sizes[reads.ids].ravel()
    own = np.arange(nodes, dtype=np.int16)[None, :, None]
    stored = reads.storage != PFS
    route = np.where(stored, reads.storage + np.where(reads.node == own, 1 + n_classes, 1), 0).ravel()
    reader = np.arange(steps * nodes, dtype=np.int64).reshape(steps, nodes, 1)
    gpu = reader * gpus + np.arange(batch) % gpus if gpus > 1 else reader
    slot = (np.broadcast_to(gpu, reads.ids.shape).ravel() * n_routes) + route
    queued: Floats = np.bincount(slot, sizes, minlength=steps * nodes * gpus * n_routes).astype(np.float64)
    holder = np.arange(steps, dtype=np.int64)[:, None, None] * nodes + reads.node
    served: Floats = np.zeros((steps, nodes, n_classes))
    mask = stored.ravel()
    if n_classes and mask.any():
        slot = holder.ravel()[mask] * n_classes + reads.storage.ravel()[mask]
        served = np.bincount(slot, sizes[mask], minlength=served.size).reshape(served.shape).astype(np.float64)
    moved = ((reads.node != own) & (reads.node != PFS)).ravel()
    sent: Floats = np.bincount(holder.ravel()[moved], sizes[moved], minlength=steps * nodes).astype(np.float64)
    taker = np.broadcast_to(reader, reads.ids.shape).ravel()[moved]
    received: Floats = np.bincount(taker, sizes[moved], minlength=steps * nodes).astype(np.float64)
    handed_on = moved & ~mask
    drawn = queued.reshape(steps, nodes, gpus, n_routes)[:, :, :, 0].sum(axis=(0, 2))
    drawn += np.bincount(reads.node.ravel()[handed_on], sizes[handed_on], minlength=nodes)
    drawn -= np.bincount(np.broadcast_to(own, reads.ids.shape).ravel()[handed_on], sizes[handed_on], minlength=nodes)
    counts = np.bincount(route[reads.ids.ravel() >= 0], minlength=n_routes)
    queued = queued.reshape(steps, nodes, gpus, n_routes)
    sent, received = sent.reshape(steps, nodes), received.reshape(steps, nodes)
    return EpochBytes(queued, served, sent, received, reads.background_bytes, drawn, counts)
