"""The places of a mount, for the tests of what is measured of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mlfs.places.place import PlaceKind, Places, SourcePlace, TierPlace
from mlfs.places.posix import PosixSource
from mlfs.places.tier import Tier
from mlfs.tree.samples import Samples
from mlfs.tree.scan import scan


@contextmanager
def places_over(source: Path, tiers: Sequence[tuple[PlaceKind, Tier]]) -> Iterator[Places]:
    """A source in the directory, which is made if it is missing, and the tiers; all are closed at the end."""
    source.mkdir(exist_ok=True)
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    manifest = scan(fd, workers=1)
    samples, posix = Samples.whole_files(manifest), PosixSource(fd, manifest)
    places = Places(SourcePlace(posix, samples), [TierPlace(kind, tier, samples) for kind, tier in tiers])
    try:
        yield places
    finally:
        places.close()
        posix.close()
        os.close(fd)
