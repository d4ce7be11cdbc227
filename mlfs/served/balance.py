"""Evens out the samples of batches: who sends how many to whom (Yang and Cong 2019, Section V-C, Algorithm 1).

Pure. In: how many samples of each batch each of p learners has, and how many it is to have. Out: messages (from, to,
how many). Called by `locality`. Algorithm 1 pairs the largest surplus with the largest deficit, until all are even. It
gives at most p - 1 messages, at most twice the fewest possible; to find the fewest is NP-complete.

The paper's form takes one batch in O(p log p). Here many batches are taken together, one message of each at a time:
numpy looks for the largest and the least of p numbers up to p - 1 times. The cost is O(p * p) a batch, and no slower
than a heap for each batch up to 1,024 learners. tests/served/test_balance.py has the paper's form, and compares the
messages.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
