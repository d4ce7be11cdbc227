"""A sample whose owner is another node, and of which this node has a copy too: what if the owner does not give it?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fakes import CountingSource, FakePages, no_names, tree

from mlfs.engine.fetch import Fetcher
from mlfs.places.place import Content, Copy, PlaceKind, Places, SourcePlace, TierPlace, Want
from mlfs.places.ram import RamTier
from mlfs.plan.scheduler.config import SOURCE
from mlfs.tree.samples import Samples, Version
from mlfs.tree.scan import scan

TIER, OWNER = 1, 2


class NothingThere:
    """A peer that has nothing."""

    kind = PlaceKind.PEER
    name = "node 1"

    def get(self, sample: int, version: Version) -> Content | None:
        return None

    def ahead(self, wanted: Sequence[tuple[int, Version]]) -> list[Want]:
        return []

    def no_longer(self, wants: Sequence[Want]) -> None:
        pass


def test_the_nodes_own_copy_is_taken_and_without_one_the_source(tmp_path: Path) -> None:
    with tree(tmp_path, 2) as fd:
        manifest = scan(fd)
        samples, source, pages = Samples.whole_files(manifest), CountingSource(fd, manifest), FakePages()
        kept, other = manifest.files.tolist()
        tier = TierPlace(PlaceKind.RAM, RamTier(1 << 20), samples)
        content = source.read_whole(kept).data
        assert tier.keep([Copy(kept, samples.version_of(kept), content)]) == [True]
        places = Places(SourcePlace(source, samples), [tier])
        places.join([NothingThere()])
        fetcher = Fetcher(samples, source, places, pages, lambda entry, change: None, *no_names(source))
        fetched = fetcher.fetch(kept, OWNER, TIER)
        assert (fetched.place, bytes(fetched.data or b"")) == (TIER, bytes(content))
        assert fetcher.fetch(other, OWNER).place == SOURCE
