"""How the samples of a batch are evened out: who sends how many to whom (Yang and Cong 2019, Section V-C, Algorithm 1).

Pure. In: how many samples each of p learners has, and how many it is to have. Out: messages (from, to, how many).
Called by `locality`. Algorithm 1 pairs the largest surplus with the largest deficit. It takes O(p log p)
and gives at most p - 1 messages, at most twice the fewest possible; to find the fewest is NP-complete.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


class Message(NamedTuple):
    """`samples` samples go from learner `giver` to learner `taker`."""

    giver: int
    taker: int
    samples: int


def balance(have: npt.ArrayLike, want: npt.ArrayLike) -> list[Message]:
    """Algorithm 1: the messages after which every learner has what it wants.

    Args:
        have, want: shape (p,), samples of a batch at each learner; equal sums.

    Returns:
        At most p - 1 messages. Of equal learners the one with the lower number comes first.

    Raises:
        ValueError: the sums differ.
    """
    surplus = np.asarray(have, dtype=np.int64) - np.asarray(want, dtype=np.int64)
    if int(surplus.sum()) != 0:
        raise ValueError(f"{int(surplus.sum())} samples more at hand than wanted: nothing can even that out")
    givers = [(-int(s), index) for index, s in enumerate(surplus) if s > 0]
    takers = [(int(s), index) for index, s in enumerate(surplus) if s < 0]
    heapq.heapify(givers)
    heapq.heapify(takers)
    messages = []
    while givers:
        most, giver = givers[0]
        least, taker = takers[0]
        count = min(-most, -least)
        messages.append(Message(giver, taker, count))
        _replace_top(givers, most + count, giver)
        _replace_top(takers, least + count, taker)
    return messages


def _replace_top(heap: list[tuple[int, int]], left: int, index: int) -> None:
    """Replace the first entry of the heap by what is left of it, or remove it when nothing is left."""
    if left:
        heapq.heapreplace(heap, (left, index))
    else:
        heapq.heappop(heap)


def balance_steps(have: Counts, want: Counts) -> npt.NDArray[np.int64]:
    """Algorithm 1 for many batches at once.

    Args:
        have, want: shape (T, p).

    Returns:
        Shape (n, 4): step, giver, taker, count; the messages of `balance` for each step, in no particular order.
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
