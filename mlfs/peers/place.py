"""Another node as a place: what it owns is got from it over the network.

In: a sample's id and version. Out: its content, or None. Made when this node's agent has joined the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mlfs.peers.desk import Desk
from mlfs.places.place import Content, Want
from mlfs.plan.place_kind import PlaceKind
from mlfs.tree.samples import Version


class NodePlace:
    kind: Final = PlaceKind.PEER

    def __init__(self, node: int, desk: Desk) -> None:
        self.name: Final = f"node {node}"
        self._node = node
        self._desk = desk

    def get(self, sample: int, version: Version) -> Content | None:
        data = self._desk.get(Want(self._node, sample, version))
        return None if data is None else Content(data, version)

    def ahead(self, wanted: Sequence[tuple[int, Version]]) -> list[Want]:
        """Samples that will be wanted soon. For those returned `no_longer` has to follow."""
        return self._desk.ahead([Want(self._node, sample, version) for sample, version in wanted])

    def no_longer(self, wants: Sequence[Want]) -> None:
        """Samples that were said ahead are not wanted any more, or were got."""
        self._desk.no_longer(wants)
