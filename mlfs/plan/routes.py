"""Chooses among the places that have a sample the one that gives it soonest, as far as that is known.

Pure. In: the places that have the sample, nearest first, with what each was measured to give. Out: one of them. Called
by `mlfs.plan.scheduler.routing`. A sample costs its bytes over what all lanes of a place give together (NoPFS, Section
4: fetch_{i,j}; docs/model.md): the lanes of a place work on one queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlfs.plan.place_kind import PlaceKind

FARTHER_FACTOR = 1.5
"""A place farther off must be so many times as fast as a nearer one. Measured rates differ by less from one second to
the next, and what is got over the network takes room on links that others use as well."""


class Option(NamedTuple):
    """A place that has the sample.

    Attributes:
        bytes_per_s: what all its lanes together gave lately for samples of about this size; 0 where that is not known.
    """

    place: int
    kind: PlaceKind
    bytes_per_s: float = 0.0


def cheapest(options: Sequence[Option]) -> int:
    """The place to get a sample from.

    A place farther off is taken only where both were measured. Two kinds of places are exempt from the comparison.
    Memory of this node is not left for anything. The source is taken only where nothing else has the sample, however
    fast it is: all nodes share it, each read of it comes on top of the least that a cluster can do with, and an owner
    that is slow mostly waits for the source itself. Whether the source is so much faster than a disk that this is worth
    it is judged apart, with more care (`mlfs.plan.circuit_breaker`).

    Args:
        options: nearest first, at least one.
    """
    best = options[0]
    for option in options[1:]:
        if best.kind is PlaceKind.RAM or option.kind is PlaceKind.SOURCE:
            break
        if 0 < FARTHER_FACTOR * best.bytes_per_s < option.bytes_per_s:
            best = option
    return best.place
