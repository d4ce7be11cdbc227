"""The performance model: what a cluster can do, as one frozen record, and how long its fetches and writes take.

Pure: numpy in, numpy out. In: measured points of bandwidths (`Curve`), storage classes, the size of the job. Out:
seconds. Called by the policies, the simulator, `mlfs plan` and mlfs.measure. Source: NoPFS (Dryden et al., SC'21),
Table 2 and Section 4; docs/model.md derives each formula. All sizes are in bytes and all times in seconds; the name of
a bandwidth ends in `_bytes_per_s`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MB = 1_000_000.0
# A curve that falls is never taken to fall below this share of its last point. The line through the measured points
# would reach 0 somewhere, which no file system does; beyond what was measured nothing better is known.
LEAST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Curve:
    """An aggregate bandwidth as a function of how many use it: t(gamma), r_j(p), w_j(p).

    Between points the curve is linear, and so it is from 0 users, who get nothing, to the first point. Beyond the last
    point it goes on with the slope of the least-squares line through all points (NoPFS, 5.2.2: "linear regression when
    the exact value is not available"), but never below `LEAST_SHARE` of the last point. Beyond a single point it is
    flat.

    Attributes:
        points: (count, bytes per second), ascending counts, at least one.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        counts = [count for count, _ in self.points]
        if not self.points or counts[0] <= 0 or any(b <= a for a, b in pairwise(counts)):
            raise ValueError(f"a curve needs points with ascending positive counts, not {self.points}")
        if any(not rate > 0 for _, rate in self.points):
            raise ValueError(f"a curve needs bandwidths above 0, not {self.points}")

    @classmethod
    def flat(cls, bytes_per_s: float) -> Self:
        """A curve that is the same aggregate bandwidth however many use the place."""
        return cls(((1.0, float(bytes_per_s)),))

    def at(self, count: npt.ArrayLike) -> Any:
        """Aggregate bytes per second with `count` users; a float for a scalar, else an array of count's shape."""
        counts = np.asarray(count, dtype=np.float64)
        xs = np.array([0.0, *(x for x, _ in self.points)])
        ys = np.array([0.0, *(y for _, y in self.points)])
        inside = np.interp(counts, xs, ys)
        last_count, last_rate = self.points[-1]
        beyond = np.maximum(last_rate + self.slope() * (counts - last_count), LEAST_SHARE * last_rate)
        value = np.where(counts > last_count, beyond, inside)
        return float(value) if value.ndim == 0 else value

    def slope(self) -> float:
        """Slope of the least-squares line through the points, 0 for one point."""
        if len(self.points) == 1:
            return 0.0
        xs, ys = (np.array(values, dtype=np.float64) for values in zip(*self.points, strict=True))
        centred = xs - xs.mean()
        return float((centred * (ys - ys.mean())).sum() / (centred * centred).sum())

    def scaled(self, factor: float) -> Curve:
        """The curve with every bandwidth times `factor`."""
        return Curve(tuple((count, rate * factor) for count, rate in self.points))


@dataclass(frozen=True, slots=True)
class StorageClass:
    """Storage class j of a node (NoPFS, Section 4): d_j, r_j(p), w_j(p), p_j."""

    name: str
    capacity_bytes: float
    read: Curve
    write: Curve
    threads: int

    @property
    def thread_read_bytes_per_s(self) -> float:
        """r_j(p_j) / p_j: what one of its prefetch threads reads."""
        return float(self.read.at(self.threads)) / self.threads

    @property
    def thread_write_bytes_per_s(self) -> float:
        """w_j(p_j) / p_j: what one of its prefetch threads writes."""
        return float(self.write.at(self.threads)) / self.threads


@dataclass(frozen=True, slots=True)
class PerformanceModel:
    """NoPFS, Table 2: the cluster, and the size of the job.

    Attributes:
        nodes: N.
        epochs: E.
        global_batch: B, the samples of all nodes together in a step.
        drop_last: whether the number of steps T is rounded down.
        compute_bytes_per_s: c, of one node.
        preprocess_bytes_per_s: beta, of one node.
        network_bytes_per_s: b_c, of one node.
        pfs: t(gamma); gamma counts nodes.
        staging: class 0, which holds nothing beyond its window.
        classes: classes 1..J, fastest first. All nodes have the same rates and threads, and the same capacities but for
            `capacities_by_node`.
        node_pfs_bytes_per_s: b_fs, what one node can draw from the PFS at most.
        capacities_by_node: N rows of J, what each class of each node can hold, in bytes. A class's own `capacity_bytes`
            is then the nodes' mean. Empty where all nodes have what their classes say.
    """

    nodes: int
    epochs: int
    global_batch: int
    drop_last: bool
    compute_bytes_per_s: float
    preprocess_bytes_per_s: float
    network_bytes_per_s: float
    pfs: Curve
    staging: StorageClass
    classes: tuple[StorageClass, ...] = ()
    node_pfs_bytes_per_s: float = float("inf")
    capacities_by_node: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        rows = self.capacities_by_node
        if rows and (len(rows) != self.nodes or any(len(row) != len(self.classes) for row in rows)):
            lengths = sorted({len(row) for row in rows})
            raise ValueError(
                f"capacities_by_node needs {self.nodes} rows of {len(self.classes)}, not {len(rows)} of {lengths}"
            )
        if any(not capacity >= 0 for row in rows for capacity in row):
            raise ValueError(f"capacities_by_node needs capacities from 0, not {rows}")

    @property
    def node_capacity_bytes(self) -> float:
        """D: what one node can keep, staging not counted; the mean of nodes that differ."""
        return sum(storage.capacity_bytes for storage in self.classes)

    @property
    def capacity_bytes(self) -> float:
        """The bytes that all nodes together can keep: the sum of their capacities, N * D where all have the same."""
        if self.capacities_by_node:
            return sum(map(sum, self.capacities_by_node))
        return self.nodes * self.node_capacity_bytes

    def node_capacities_bytes(self) -> Floats:
        """The bytes that each class of each node can hold, shape (N, J)."""
        alike = tuple(storage.capacity_bytes for storage in self.classes)
        rows = self.capacities_by_node or (alike,) * self.nodes
        return np.array(rows, dtype=np.float64).reshape(self.nodes, len(self.classes))

    def steps(self, n_samples: int) -> int:
        """T: steps an epoch."""
        return n_samples // self.global_batch if self.drop_last else -(-n_samples // self.global_batch)

    def pfs_share_bytes_per_s(self, readers: float) -> float:
        """The rate of one of `readers` nodes at the PFS: t(gamma) / gamma, at most b_fs; 0 readers count as one."""
        readers = max(1.0, readers)
        return min(float(self.pfs.at(readers)) / readers, self.node_pfs_bytes_per_s)

    # -- the three cases of fetching, by one thread of the staging buffer (NoPFS, Section 4) --

    def fetch_pfs_s(self, size_bytes: npt.ArrayLike, readers: float) -> Floats:
        """fetch_{i,0,0}: from the PFS while readers - 1 other nodes read as well."""
        return np.asarray(size_bytes, dtype=np.float64) / self.pfs_share_bytes_per_s(readers)

    def fetch_peer_s(self, size_bytes: npt.ArrayLike, storage: int) -> Floats:
        """fetch_{i,1,j}: from class `storage` (index into classes) of another node."""
        rate = min(self.network_bytes_per_s, self.classes[storage].thread_read_bytes_per_s)
        return np.asarray(size_bytes, dtype=np.float64) / rate

    def fetch_local_s(self, size_bytes: npt.ArrayLike, storage: int) -> Floats:
        """fetch_{i,2,j}: from the node's own class `storage` (index into classes)."""
        return np.asarray(size_bytes, dtype=np.float64) / self.classes[storage].thread_read_bytes_per_s

    def fastest(
        self, size_bytes: npt.ArrayLike, readers: float, local: npt.ArrayLike, peer: npt.ArrayLike
    ) -> tuple[npt.NDArray[np.int8], Floats]:
        """The fastest of the cases that apply, for each sample.

        Args:
            size_bytes: sizes, of any shape.
            readers: nodes that read from the PFS at the same time.
            local: index of the fastest class of this node that has the sample, -1 for none; same shape.
            peer: the same of any other node.

        Returns:
            The route (0 PFS, 1 peer, 2 local) and the seconds. The nearest of routes that are equally fast is taken.
        """
        sizes = np.asarray(size_bytes, dtype=np.float64)
        local_s = self._rate_table(False)[np.asarray(local)] * sizes
        peer_s = self._rate_table(True)[np.asarray(peer)] * sizes
        pfs_s = self.fetch_pfs_s(sizes, readers)
        least = np.minimum(np.minimum(local_s, peer_s), pfs_s)
        route = np.where(local_s <= least, 2, np.where(peer_s <= least, 1, 0)).astype(np.int8)
        return route, least

    def _rate_table(self, remote: bool) -> Floats:
        """Seconds for a byte, by index of the class. The last entry, which the index -1 picks, is infinite."""
        fetch = self.fetch_peer_s if remote else self.fetch_local_s
        return np.array([*(float(fetch(1.0, j)) for j in range(len(self.classes))), np.inf])

    # -- writing --

    def write_s(self, size_bytes: npt.ArrayLike) -> Floats:
        """write_i(k) = max(s_k / beta, s_k / (w_0(p_0) / p_0)): preprocess and store it in the staging buffer."""
        rate = min(self.preprocess_bytes_per_s, self.staging.thread_write_bytes_per_s)
        return np.asarray(size_bytes, dtype=np.float64) / rate

    def changed(self, **fields: Any) -> PerformanceModel:
        """A copy with some fields changed."""
        return replace(self, **fields)
