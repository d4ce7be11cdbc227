"""A place of a mount, as far as its bandwidth is concerned. Used by mlfs.measure.speeds and mlfs.measure.earlier."""

from __future__ import annotations

from typing import NamedTuple

from mlfs.places.place import PlaceKind


class MeasuredPlace(NamedTuple):
    """A place as it has to be known to measure it, to find earlier measurements of it, and to plan with it.

    Attributes:
        name: as mlfs.places.place has it, unique in a mount.
        capacity_bytes: its budget; 0 for the source.
    """

    kind: PlaceKind
    name: str
    capacity_bytes: int = 0

    @property
    def path(self) -> str:
        """The directory of a place on disk, whose name is `KIND:DIRECTORY`; empty for any other place."""
        return self.name.partition(":")[2]
