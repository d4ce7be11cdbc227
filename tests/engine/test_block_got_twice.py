"""A block that a thread gets for a reader or another node, and that a row of this node lies in."""

from __future__ import annotations

from pathlib import Path

from fakes import CountingSource, FakePages, no_names, tree

from mlfs.engine.fetch import Fetched, Fetcher
from mlfs.places.place import PlaceKind, Places, SourcePlace, TierPlace
from mlfs.places.ram import RamTier
from mlfs.plan.scheduler.commands import Item
from mlfs.plan.scheduler.config import SOURCE
from mlfs.tree.samples import Samples
from mlfs.tree.scan import scan

TIER = 1


def test_who_comes_second_finds_what_the_first_one_has_brought(tmp_path: Path) -> None:
    """The loop, which has the block kept, has not heard of it yet."""
    with tree(tmp_path, 1) as fd:
        manifest = scan(fd)
        samples, source = Samples.in_blocks(manifest, 20, 16), CountingSource(fd, manifest)
        [entry] = manifest.files.tolist()
        block = samples.blocks_of(entry)[1]
        tier = TierPlace(PlaceKind.RAM, RamTier(1 << 20), samples)
        places = Places(SourcePlace(source, samples), [tier])
        fetcher = Fetcher(samples, source, places, FakePages(), lambda entry, change: None, *no_names(source))
        first = fetcher.fetch(block, SOURCE, keep_in=(TIER,))
        kept: list[Fetched] = []
        item = Item(block, SOURCE, keep_in=(TIER,))
        part, second = fetcher.fetch_part(item, SOURCE, 3, 8, lambda fetched, _: kept.append(fetched))
        assert (first.place, second.place, kept) == (SOURCE, TIER, [])
        assert bytes(part) == bytes(first.data or b"")[3:11]
        assert fetcher.keep([(first, (TIER,))])[0][0] == TIER
        assert not fetcher.to_keep
