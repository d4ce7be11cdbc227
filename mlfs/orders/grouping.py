"""Orders whose batches are of samples that are alike: equally long, of one shape, of one label.

In: an order that was drawn, and a number for each sample. Out: the order in groups. Called by `mlfs.orders.composed`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from mlfs.orders.draws import Column, Values, places_of

_BATCHES_SORTED_TOGETHER: Final = 50
_FEWEST_PORTIONS: Final = 4


def by_length(order: Values, lengths: Column, batch_size: int) -> Values:
    """Portions of some batches each sorted from the longest sample to the shortest, the longest of all in front.

    Source: transformers/trainer_pt_utils.py, get_length_grouped_indices (transformers 5.13).
    """
    portion = batch_size * max(1, min(len(order) // (batch_size * _FEWEST_PORTIONS), _BATCHES_SORTED_TOGETHER))
    number = np.arange(len(order)) // portion
    grouped = order[np.lexsort((-lengths[order], number))]
    if len(grouped):
        longest = int(np.argmax(lengths[grouped[::portion]])) * portion
        grouped[[0, longest]] = grouped[[longest, 0]]
    return grouped


def of_one_group(order: Values, group_of: npt.NDArray[np.intp], batch_size: int) -> Values:
    """Batches of one group each, in the order in which they become full; what is left is filled up, largest first.

    Args: group_of: the number of each sample's group, in the order of what they are grouped by.

    Source: torchvision references/detection/group_by_aspect_ratio.py, GroupedBatchSampler (commit 775e7604).
    """
    batches: list[tuple[int, Values]] = []
    rests: list[tuple[int, int, Values]] = []
    for places in places_of(group_of[order]):
        full = len(places) // batch_size * batch_size
        batches += [(int(batch[-1]), batch) for batch in places[:full].reshape(-1, batch_size)]
        if full < len(places):
            missing = batch_size - (len(places) - full)
            rests.append((full - len(places), int(places[full]), np.append(places[full:], np.resize(places, missing))))
    wanted = len(order) // batch_size
    chosen = [batch for _, batch in sorted(batches, key=lambda one: one[0])]
    chosen += [rest for *_, rest in sorted(rests, key=lambda one: one[:2])][: wanted - len(chosen)]
    return order[np.concatenate(chosen)] if chosen else order[:0]
