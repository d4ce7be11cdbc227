"""A permutation that explains the reads may be dealt to several ranks in batches: tells it by whose workers read what.

In: a finding, what each process opened first, whose process each is. Out: fields of a job, or None. Called by
`mlfs.explain.inference`, in a worker thread, when a permutation was found.

accelerate deals the batches of one permutation to the ranks as cards are dealt, so the workers of all ranks together
read what the workers of one process would read. But a rank's workers are the children of its process, and know its rank
from whatever launched them (`mlfs.launchers`). Of two ranks with two workers each the batches 0 and 2 begin
with children of one process, and the batches 1 and 3 with children of the other one. All ranks draw their permutations
from one generator, which goes on from epoch to epoch (`mlfs.orders.accelerate`): so the seed of the first epoch tells
all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from mlfs.explain.confirm import Finding, order_head
from mlfs.explain.fields import Fields
from mlfs.launchers import Whose

# Of the permutation: wide enough for the first batches of 8 ranks with 8 workers each and batches of 256.
_HEAD = 1 << 15
# A process that shows so many places of the permutation, one after the other, does not read elsewhere.
_FEWEST_READS = 3


def dealing(ranked: list[Fields], found: Fields | None) -> list[Fields]:
    """The explanations of a permutation, led by that of ranks that it is dealt to, where there are several."""
    if found is None or not ranked:
        return ranked
    kept = {name: value for name, value in ranked[0].items() if name in ("root", "layout", "name", "epochs")}
    return [kept | found, kept | found | {"trailing_permutation": False}, *ranked]


def dealt(finding: Finding, heads: Sequence[Sequence[int]], readers: Sequence[Whose]) -> Fields | None:
    """The fields by which several ranks read; None where nothing says that there is more than one.

    Args:
        heads: the dataset indices that each process opened first. readers: whose processes these are.
    """
    if finding.world != 1 or finding.seed < 0 or finding.words_before or finding.batch is None:
        return None
    order = order_head(finding.n, finding.seed, 0, _HEAD)
    position_of = {value: position for position, value in enumerate(order)}
    told = _told(readers)
    begun: dict[int, list[int]] = {}
    for head, reader in zip(heads, readers, strict=True):
        places = [position_of.get(value, -1) for value in head[:_FEWEST_READS]]
        in_a_row = len(places) == _FEWEST_READS and places == list(range(places[0], places[0] + _FEWEST_READS))
        rank = reader.rank if told else reader.parent
        if (told or reader.parent) and in_a_row and places[0] >= 0 and places[0] % finding.batch == 0:
            begun.setdefault(rank, []).append(places[0] // finding.batch)
    if told and any(batch % told != rank for rank, batches in begun.items() for batch in batches):
        return None
    # Between two batches of one rank's workers lies one batch of each other rank.
    apart = gcd(*(batch - batches[0] for batches in begun.values() for batch in batches))
    world = told or apart or len(begun)
    ranks = sorted(batches[0] % world for batches in begun.values()) if begun else []
    # One rank of several alone shows it by the batches of the others, which its workers leave out.
    fewest = 1 if told and finding.workers and finding.workers % told == 0 else 2
    if world < 2 or len(set(ranks)) < max(fewest, len(begun)):
        return None
    fields: Fields = {"sampler": "accelerate", "generator": "own", "seed": finding.seed, "world_size": world}
    # Ranks that have not read yet are taken to be here when most of the others are.
    return fields | {"batch_size": finding.batch, "ranks": list(range(world)) if 2 * len(ranks) > world else ranks}


def _told(readers: Sequence[Whose]) -> int:
    """How many ranks there are, if all processes were told the same; 0 where they were not."""
    worlds = {reader.world for reader in readers}
    return worlds.pop() if len(worlds) == 1 else 0
