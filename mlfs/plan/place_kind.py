"""The kinds of places where a sample's bytes can be got. Pure; used by plans, places and drivers alike."""

from __future__ import annotations

from enum import StrEnum


class PlaceKind(StrEnum):
    """The material of a place; the values are the words that `status` and the measurements use."""

    SOURCE = "pfs"
    RAM = "ram"
    SSD = "ssd"
    LMDB = "lmdb"
    PEER = "peer"

    @property
    def is_afar(self) -> bool:
        """Whether such a place is outside of this node: what comes from there may be kept here."""
        return self in (PlaceKind.SOURCE, PlaceKind.PEER)
