"""What each node of a cluster holds already, as bits: told by each to all, so that nothing of it is read again.

Pure. In: by sample, whether this node holds it; pieces that other nodes tell. Out: pieces to tell; for each sample a
node that holds it. Called by `mlfs.engine.shared_plan` when nodes join and when one is lost for good.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# Characters of a piece: with what stands around it, it fits into a packet for the agent.
PIECE = 48 << 10

Flags = npt.NDArray[np.bool_]
Holders = npt.NDArray[np.int16]


def pieces(held: Flags) -> list[str]:
    """What a node holds, in pieces: bits, compressed, as text."""
    if not held.any():
        return [""]
    text = base64.b64encode(zlib.compress(np.packbits(held).tobytes(), 1)).decode()
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def from_pieces(parts: Sequence[str], samples: int) -> Flags:
    """What a node holds. Raises ValueError for what no node of the same data set can have told."""
    text = "".join(parts)
    if not text:
        return np.zeros(samples, dtype=np.bool_)
    size_bytes = -(-samples // 8)
    try:
        # A few bytes may stand for many: no more is taken than there can be.
        data = zlib.decompressobj().decompress(base64.b64decode(text), size_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"what was told is not compressed: {error}") from None
    if len(data) != size_bytes:
        raise ValueError(f"{len(data)} bytes do not tell of {samples} samples")
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=samples).astype(np.bool_)


def together(some: Holders | None, others: Holders | None, away: Sequence[int] = ()) -> Holders | None:
    """By sample, a node that holds it by either of two tellings, -1 for none; None if nothing is held anywhere.

    Nodes may hear of several plans at once, each of which has a telling of its own, in any order. Where two tellings
    name different nodes, the choice is the same in whatever order they are taken together.

    Args:
        away: nodes that do not count.
    """
    known = [np.where(np.isin(one, away), -1, one).astype(np.int16) for one in (some, others) if one is not None]
    if len(known) < 2:
        return known[0] if known and (known[0] >= 0).any() else None
    first, second = known
    scattered = ((np.arange(len(first), dtype=np.int64) * 0x9E3779B1) >> 12 & 0x7FFF).astype(np.int16)
    in_second = (first < 0) | ((second >= 0) & ((second ^ scattered) > (first ^ scattered)))
    return np.where(in_second, second, first)


class Holdings:
    """What nodes have told of what they hold at one moment: the same on all nodes once all have.

    Args:
        samples: how many there are.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._pieces: dict[int, dict[int, str]] = {}
        self._held: dict[int, Flags] = {}

    def add(self, node: int, held: Flags) -> None:
        """What this node holds itself."""
        self._held[node] = held

    def hear(self, node: int, piece: Any) -> None:
        """A node tells a piece: [its number, of how many, its text]. Raises ValueError."""
        number, of, text = piece
        parts = self._pieces.setdefault(node, {})
        parts[int(number)] = str(text)
        if len(parts) == int(of):
            del self._pieces[node]
            self._held[node] = from_pieces([parts[at] for at in sorted(parts)], self._samples)

    def known(self) -> frozenset[int]:
        """The nodes that have told all."""
        return frozenset(self._held)

    def holders(self, away: Container[int]) -> Holders | None:
        """By sample, a node that holds it, -1 for none; None if nothing is held anywhere.

        Of several nodes that hold a sample each one is the owner of as many as the others.
        """
        there = [(node, held) for node, held in sorted(self._held.items()) if node not in away and held.any()]
        if not there:
            return None
        ids = np.arange(self._samples)
        holder = np.full(self._samples, -1, dtype=np.int16)
        best = np.full(self._samples, len(there), dtype=np.int32)
        for place, (node, held) in enumerate(there):
            turn = (ids + place) % len(there)
            better = held & (turn < best)
            holder[better], best[better] = node, turn[better]
        return holder
