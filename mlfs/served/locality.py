"""Deals each global batch anew, so that samples are read where they lie (Yang and Cong 2019, Section V).

Pure. In: the batches as a sampler deals them, and which node holds each sample. Out: the same batches, dealt by
location; Algorithm 1 (`mlfs.served.locality`) moves the surplus. The PFS counts as one more learner that holds what no
node does. The gradient of a step is the same sum (their Theorem 1). Called by `mlfs.lab.policies.locality_aware` and
`mlfs.orders.served`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Nodes = npt.NDArray[np.int16]
Ids = npt.NDArray[np.int32]

PFS = -1


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
    return _rows(flat, moved, want[:, :nodes], ids)


def deal_to_ranks(ids: Ids, ranks_of: list[list[int]], holder: Nodes) -> Ids:
    """As `deal_by_location`, for nodes that run several ranks each: dealt to the nodes, then evenly to their ranks.

    Args:
        ids: shape (T, R, b), by rank. ranks_of: the ranks of each node; together they are all.

    Returns:
        The same shape; each rank has as many samples in each step as before.
    """
    if len(ranks_of) == 1:
        return ids
    steps, _, batch = ids.shape
    most = max(map(len, ranks_of))
    by_node = np.full((steps, len(ranks_of), most, batch), -1, dtype=ids.dtype)
    for node, ranks in enumerate(ranks_of):
        by_node[:, node, : len(ranks)] = ids[:, ranks]
    dealt = deal_by_location(by_node.reshape(steps, len(ranks_of), most * batch), holder)
    result = np.full_like(ids, -1)
    for node, ranks in enumerate(ranks_of):
        before, now = ids[:, ranks], dealt[:, node]
        rows = np.full_like(before, -1)
        rows[before >= 0] = now[now >= 0]  # step by step, a node has as many as before
        result[:, ranks] = rows
    return result


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


def _rows(flat: Ids, place: Nodes, counts: Counts, ids: Ids) -> Ids:
    """Samples sorted by place in the shape (T, N, b) of `ids`, -1 behind each node's last."""
    filled = np.arange(ids.shape[2])[None, None, :] < counts[:, :, None]
    result = np.full_like(ids, -1)
    result[filled] = flat[place < ids.shape[1]]
    return result


# -- how batches are evened out: who sends how many to whom (Yang and Cong 2019, Section V-C, Algorithm 1)
#
# In: how many samples of each batch each of p learners has, and how many it is to have. Out: messages (from, to, how
# many). Algorithm 1 pairs the largest surplus with the largest deficit, until all are even. It gives at most p - 1
# messages, at most twice the fewest possible; to find the fewest is NP-complete.
#
# The paper's form takes one batch in O(p log p). Here many batches are taken together, one message of each at a time:
# numpy looks for the largest and the least of p numbers up to p - 1 times. The cost is O(p * p) a batch, and no slower
# than a heap for each batch up to 1,024 learners. tests/served/test_balance.py has the paper's form, and compares the
# messages.

Counts = npt.NDArray[np.int64]


def balance_steps(have: Counts, want: Counts) -> npt.NDArray[np.int64]:
    """Algorithm 1 for many batches at once.

    Args:
        have, want: shape (T, p), samples of each batch at each learner; equal sums in each row.

    Returns:
        Shape (n, 4): step, giver, taker, count; at most p - 1 messages for each step, in no particular order. The one
        with the lower number comes first among equal learners.
    """
    surplus = have - want
    found = []
    steps = np.flatnonzero(surplus.any(axis=1))
    while len(steps):
        rows = surplus[steps]
        giver, taker = rows.argmax(axis=1), rows.argmin(axis=1)
        here = np.arange(len(steps))
        count = np.minimum(rows[here, giver], -rows[here, taker])
        found.append(np.stack([steps, giver, taker, count], axis=1))
        surplus[steps, giver] -= count
        surplus[steps, taker] += count
        steps = steps[surplus[steps].any(axis=1)]
    return np.concatenate(found) if found else np.empty((0, 4), dtype=np.int64)


def imbalance(have: Counts) -> npt.NDArray[np.float64]:
    """The share of each batch that has to move to even it out: the sum of the deficits over the batch (Fig. 6).

    Args:
        have: shape (T, p): samples of each batch that lie at each learner.
    """
    mean = have.mean(axis=1, keepdims=True)
    missing: npt.NDArray[np.float64] = np.maximum(mean - have, 0.0).sum(axis=1) / have.sum(axis=1)
    return missing
