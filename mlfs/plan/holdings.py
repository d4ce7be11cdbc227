"""The samples that each node of a cluster holds already, told to the one that plans for all: none is read again.

Pure. In: by sample, whether a node holds it; pieces that nodes tell. Out: pieces to tell; for each sample a node that
holds it. Pieces carry shares from the planner to the others, too. Called by `mlfs.plan.cluster_plan` and
`mlfs.engine.shared_plan`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

# Characters of a piece: with what stands around it, it fits into a packet for the agent.
PIECE = 48 << 10

Flags = npt.NDArray[np.bool_]
Holders = npt.NDArray[np.int16]


def pieces(data: bytes) -> list[str]:
    """Bytes as text, compressed, in pieces of which each fits into a word; one at least."""
    text = base64.b64encode(zlib.compress(data, 1)).decode()
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def from_pieces(parts: Sequence[str], most_bytes: int) -> bytes:
    """The bytes that pieces carry; more than `most_bytes` are cut off. Raises ValueError for what was not so made."""
    try:
        # A few bytes may stand for many: no more is taken than there can be, and one that shows that there is more.
        return zlib.decompressobj().decompress(base64.b64decode("".join(parts)), most_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"what was told is not compressed: {error}") from None


def flags_of(parts: Sequence[str], samples: int) -> Flags:
    """The samples that a node holds. Raises ValueError for what no node of the same data set can have told."""
    size_bytes = -(-samples // 8)
    data = from_pieces(parts, size_bytes)
    if len(data) != size_bytes:
        raise ValueError(f"{len(data)} bytes do not tell of {samples} samples")
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=samples).astype(np.bool_)


class Holdings:
    """The holdings of all nodes at one moment, as they tell them. They are kept as they come: each of a thousand nodes
    holds a thousandth, which takes little room as long as it is compressed.

    Args:
        samples: how many there are.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._parts: dict[int, dict[int, str]] = {}
        self._whole: set[int] = set()

    def hear(self, node: int, at: int, of: int, text: str) -> None:
        """A node tells a piece, and of how many it is. Once all have come, more change nothing."""
        if node not in self._whole and 0 <= at < of:
            self._parts.setdefault(node, {})[at] = text
            if len(self._parts[node]) == of:
                self._whole.add(node)

    @property
    def known(self) -> frozenset[int]:
        """The nodes that have told all."""
        return frozenset(self._whole)

    def holders(self, away: Container[int]) -> Holders | None:
        """By sample, a node that holds it, -1 for none; None if nothing is held anywhere.

        Nodes that hold least come first where several hold a sample, until they have an equal part of all. A node that
        tells what none can hold holds nothing.
        """
        held = {node: int(self._flags(node).sum()) for node in sorted(self._whole) if node not in away}
        there = sorted((node for node, count in held.items() if count), key=lambda node: held[node])
        if not there:
            return None
        holder = np.full(self._samples, -1, dtype=np.int16)
        by_several = np.zeros(self._samples, dtype=np.int16)
        for node in there:
            flags = self._flags(node)
            by_several += flags
            holder[flags] = node
        if by_several.max() == 1:
            return holder
        holder[by_several > 1] = -1
        part = int(np.count_nonzero(by_several)) // len(there)
        for node in there:
            alone, shared = int((holder == node).sum()), np.flatnonzero(self._flags(node) & (holder < 0))
            takes = min(len(shared), max(0, part - alone))
            holder[shared[np.linspace(0, len(shared), takes, endpoint=False, dtype=np.int64)]] = node
        for node in there:
            holder[self._flags(node) & (holder < 0)] = node
        return holder

    def _flags(self, node: int) -> Flags:
        parts = self._parts[node]
        try:
            return flags_of([parts[at] for at in range(len(parts))], self._samples)
        except ValueError:
            return np.zeros(self._samples, dtype=np.bool_)
