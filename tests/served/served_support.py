"""Orders that mlfs serves, for tests: made of nodes and sizes, beside the true order that they wrap."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlfs.job import JobSpec, parse_job
from mlfs.job.ranks import ranks_text
from mlfs.orders.order import Order, build_order
from mlfs.orders.served import ServedOrder


def nodes_of(ranks: list[list[int]], keeps_bytes: int, buffer_bytes: int = 0) -> list[dict[str, Any]]:
    """The field `nodes` for nodes that are alike."""
    return [
        {"node": node, "ranks": ranks_text(of_node), "keeps_bytes": [keeps_bytes, 0], "buffer_bytes": buffer_bytes}
        for node, of_node in enumerate(ranks)
    ]


def served(n: int, sizes: np.ndarray | None = None, **fields: Any) -> tuple[JobSpec, Order, ServedOrder]:
    """A job over `n` samples of 4,096 bytes, the order of its sampler, and the one that is served."""
    spec = parse_job({"epochs": 3, "batch_size": 4} | fields)
    true = build_order(spec, n)
    sizes = np.full(n, 4096, dtype=np.int64) if sizes is None else sizes
    return spec, true, ServedOrder(true, spec, sizes, np.arange(n))


def steps(order: Order, spec: JobSpec, epoch: int) -> list[list[list[int]]]:
    """By global step and rank, what is read."""
    batch = spec.batch_size
    streams = [order.rank_stream(epoch, rank).tolist() for rank in range(spec.world_size)]
    count = -(-order.stream_length(epoch) // batch)
    return [[stream[step * batch : (step + 1) * batch] for stream in streams] for step in range(count)]
