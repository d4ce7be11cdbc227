"""Locality-aware loading: each batch is dealt anew, so that samples are read where they lie (Yang and Cong 2019, V).

Pure. In: a view. Out: the sampler's global batches, each sample at the node that keeps it, as far as the local batches
stay equal; Algorithm 1 (`mlfs.plan.balance`) moves the surplus. The PFS counts as one more learner that keeps what
nobody has room for. The gradient of a step is the same sum (their Theorem 1); the order of a rank is not the sampler's.
"""

from __future__ import annotations

import numpy as np

from mlfs.plan.balance import Counts, balance_steps
from mlfs.plan.policies.policy import (
    PFS,
    Ids,
    Nodes,
    Overlap,
    Policy,
    Preload,
    Reads,
    Traits,
    View,
    capacities,
    partition,
    preload_of,
)


class LocalityAware:
    """An even partition over all classes, loaded before the first step."""

    def __init__(self, view: View) -> None:
        self.kept = partition(view, capacities(view))
        self.preload: Preload | None = preload_of(view, self.kept)

    def epoch(self, epoch: int, ids: Ids) -> Reads:
        """The same batches, dealt by location."""
        return self.kept.reads(deal_by_location(ids, self.kept.node))


def deal_by_location(ids: Ids, holder: Nodes) -> Ids:
    """Deal each global batch by where its samples lie, each node as many as before.

    Args:
        ids: shape (T, N, b), -1 where a batch is short. holder: by sample, the node that
            holds it, -1 for the PFS; entry -1 stays -1.

    Returns:
        The same shape; each step holds the same samples, each node as many as before.
    """
    steps, nodes, batch = ids.shape
    flat = ids.reshape(steps, nodes * batch)
    place = holder[flat].astype(np.int64)
    place[place == PFS] = nodes
    place[flat < 0] = nodes + 1
    order = np.argsort(place.astype(np.int16), axis=1, kind="stable")
    flat, place = np.take_along_axis(flat, order, axis=1), np.take_along_axis(place, order, axis=1)
    want = np.zeros((steps, nodes + 1), dtype=np.int64)
    want[:, :nodes] = (ids >= 0).sum(axis=2)
    have = np.zeros((steps, nodes + 2), dtype=np.int64)
    np.add.at(have, (np.arange(steps)[:, None], place), 1)
    moved = _move(place, have, want)
    order = np.argsort(moved, axis=1, kind="stable")
    flat, moved = np.take_along_axis(flat, order, axis=1), np.take_along_axis(moved, order, axis=1)
    return _rows(flat, moved, want[:, :nodes], ids.shape)


def _move(place: Counts, have: Counts, want: Counts) -> Nodes:
    """The places after Algorithm 1's messages: of each giver's samples in a step, the last ones go to its takers."""
    steps, width = place.shape
    start = np.concatenate([np.zeros((steps, 1), np.int64), np.cumsum(have, axis=1)[:, :-1]], axis=1)
    rank = np.arange(width) - np.take_along_axis(start, place, axis=1)
    limit = np.concatenate([want, np.full((steps, 1), width)], axis=1)
    surplus = rank >= np.take_along_axis(limit, place, axis=1)
    messages = balance_steps(have[:, : want.shape[1]], want)
    messages = messages[np.lexsort((messages[:, 1], messages[:, 0]))]
    moved = place.astype(np.int16)
    moved[surplus] = np.repeat(messages[:, 2], messages[:, 3])
    return moved


def _rows(flat: Ids, place: Nodes, counts: Counts, shape: tuple[int, ...]) -> Ids:
    """Samples sorted by place as (T, N, b), -1 behind each node's last."""
    filled = np.arange(shape[2])[None, None, :] < counts[:, :, None]
    result = np.full(shape, -1, dtype=flat.dtype)
    result[filled] = flat[place < shape[1]]
    return result


POLICY = Policy(
    "locality_aware",
    "batches dealt by where samples lie, evened out by Algorithm 1 (Yang and Cong, Sec. V)",
    Traits(Overlap.BATCH, true_order=False),
    LocalityAware,
)
