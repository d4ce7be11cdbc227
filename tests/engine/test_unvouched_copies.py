"""Copies from an earlier mount, and a source that cannot say whether it has another content by now."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import CountingSource, FakePages, no_names, tree

from mlfs.engine.fetch import Fetcher
from mlfs.places.place import Copy, FileChange, PlaceKind, Places, SourcePlace, TierPlace
from mlfs.places.posix import PosixFile
from mlfs.places.ram import RamTier
from mlfs.tree.manifest import Manifest
from mlfs.tree.samples import Samples
from mlfs.tree.scan import scan

TIER = 1
OLD, NEW = b"old" * 500, b"newer" * 500


class DoubtfulSource(CountingSource):
    """Fails as often as the test says when it is asked for a file's attributes, or for its bytes."""

    stats_fail = reads_fail = 0
    number = errno.EIO

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.opened: list[int] = []

    def stat(self, entry: int) -> os.stat_result:
        if self.stats_fail:
            self.stats_fail -= 1
            raise OSError(self.number, "injected")
        return super().stat(entry)

    def read_whole(self, entry: int, close_later: bool = False) -> object:
        if self.reads_fail:
            self.reads_fail -= 1
            raise OSError(self.number, "injected")
        return super().read_whole(entry, close_later)

    def open(self, entry: int) -> PosixFile:
        self.opened.append(entry)
        return super().open(entry)


class Node:
    """A fetcher over one file, of which a tier holds a copy from an earlier mount."""

    def __init__(self, directory: Path, fd: int) -> None:
        (self.file,) = directory.rglob("*.jpg")
        self.file.write_bytes(OLD)
        self.manifest: Manifest = scan(fd)
        (self.entry,) = self.manifest.files.tolist()
        self.samples = Samples.whole_files(self.manifest)
        self.source = DoubtfulSource(fd, self.manifest)
        self.pages = FakePages()
        tier = TierPlace(PlaceKind.RAM, RamTier(1 << 20), self.samples)
        assert tier.keep([Copy(self.entry, self.samples.version_of(self.entry), OLD)]) == [True]
        places = Places(SourcePlace(self.source, self.samples), [tier])
        self.fetcher = Fetcher(self.samples, self.source, places, self.pages, self._announce, *no_names(self.source))

    def _announce(self, entry: int, change: FileChange) -> None:
        self.manifest.update(entry, change.size_bytes, change.mtime_ns, change.ctime_ns)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with tree(tmp_path, 1) as fd:
        yield Node(tmp_path, fd)


@pytest.mark.promise("change-copies")
@pytest.mark.parametrize("again", [False, True])
def test_a_changed_file_is_not_served_as_it_was_though_the_source_could_not_say_so(node: Node, again: bool) -> None:
    node.file.write_bytes(NEW)
    node.source.stats_fail = 1
    if again:  # the page was taken back: the handle that is open belongs to the old content
        read = node.fetcher.read_bytes(node.entry, TIER, 0)
        assert read.error is not None
        assert read.error.errno == errno.ESTALE
    else:
        read = node.fetcher.fetch(node.entry, TIER)
        assert bytes(read.data or b"") == NEW
        assert bytes(node.pages.held[node.entry]) == NEW
    given = node.fetcher.for_peer(node.entry, node.samples.version_of(node.entry))
    assert given is None or bytes(given.data or b"") == NEW


@pytest.mark.promise("gone-kept")
def test_what_nobody_vouched_for_is_served_while_the_source_is_gone_and_given_to_no_peer(node: Node) -> None:
    version = node.samples.version_of(node.entry)
    node.source.stats_fail = node.source.reads_fail = 9
    assert bytes(node.fetcher.fetch(node.entry, TIER).data or b"") == OLD
    assert bytes(node.fetcher.read_bytes(node.entry, TIER, 0).data or b"") == OLD
    assert node.fetcher.for_peer(node.entry, version) is None
    node.source.stats_fail = node.source.reads_fail = 0
    given = node.fetcher.for_peer(node.entry, version)  # the source says that it is as it was
    assert given is not None
    assert bytes(given.data or b"") == OLD


@pytest.mark.promise("rights-noticed")
def test_a_copy_of_an_earlier_mount_is_not_served_where_the_source_refuses_the_file(node: Node) -> None:
    """The directory above was closed to whom the daemon runs as; the file itself is as it was."""
    node.source.number = errno.EACCES
    node.source.stats_fail = node.source.reads_fail = 9
    for read in (node.fetcher.fetch(node.entry, TIER), node.fetcher.read_bytes(node.entry, TIER, 0)):
        assert read.error is not None
        assert read.error.errno == errno.EACCES
