"""The kinds of places where a sample's bytes can be got. Pure; used by plans, places and drivers alike."""

from __future__ import annotations

from enum import StrEnum


class PlaceKind(StrEnum):
    """What a place is; the value is the name that users and counters see."""

    SOURCE = "pfs"
    RAM = "ram"
    SSD = "ssd"
    LMDB = "lmdb"
    PEER = "peer"
