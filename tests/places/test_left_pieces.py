"""Ranges of a large file that one mount has read, and the next one finds on the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlfs.places import cache_admin
from mlfs.places.cache_directory import find_sources
from mlfs.places.pieces import Spill
from mlfs.places.place import SourcePlace
from mlfs.places.posix import PosixSource
from mlfs.places.ssd import SsdTier
from mlfs.tree.samples import Samples
from mlfs.tree.scan import scan

BLOCK = 1 << 16
CONTENT = os.urandom(4 * BLOCK)
RANGES = [(0, 100, 5000), (0, 9000, 700), (2, 4096, 4096), (3, 0, BLOCK - 1)]
"""By block: a range of it."""


@contextmanager
def mounted(directory: Path, ssd_bytes: int = 1 << 20) -> Iterator[tuple[SourcePlace, PosixSource, range]]:
    """A source of one file over a disk, as a mount has them; its pieces may have a page of memory."""
    tier = SsdTier(directory / "disk", ssd_bytes, "source")
    ranges = tier.file_of_ranges()
    assert ranges is not None
    spill = Spill(
        ranges[0], tier, lambda: tier.capacity_bytes - tier.used_bytes, tier.disk_free_bytes, tier.sum_of_range,
        ranges[1], tier.leave_ranges,
    )  # fmt: skip
    fd = os.open(directory / "source", os.O_RDONLY)
    samples = Samples.in_blocks(scan(fd), BLOCK, BLOCK)
    source = PosixSource(fd, samples.manifest)
    place = SourcePlace(source, samples, 4096, spills=[spill])
    try:
        yield place, source, samples.blocks_of(samples.manifest.find(b"file"))
    finally:
        place.close_ranges()
        tier.close()
        source.close()


def read_bytes(directory: Path, content: bytes = CONTENT, ssd_bytes: int = 1 << 20) -> int:
    """Read the ranges in a mount; returns what the source gave."""
    with mounted(directory, ssd_bytes) as (place, source, blocks):
        for number, begin, size in RANGES:
            data, _, whole = place.read_range(blocks[number], begin, size)
            assert data == content[number * BLOCK + begin :][:size]
            assert whole is None
            place.pieces.tidy()
        return source.bytes_read


def test_ranges_are_found_by_the_next_mounts_but_not_those_of_another_content_or_damaged_ones(tmp_path: Path) -> None:
    file, all_bytes = tmp_path / "source/file", sum(size for _, _, size in RANGES)
    file.parent.mkdir()
    file.write_bytes(CONTENT)
    assert [read_bytes(tmp_path) for _ in range(3)] == [all_bytes, 0, 0]
    (ranges,) = tmp_path.glob("disk/**/ranges")
    with open(ranges, "r+b") as on_disk:
        damaged = bytearray(on_disk.read())
        damaged[damaged.index(CONTENT[2 * BLOCK + 4096 :][:100])] ^= 1
        on_disk.seek(0)
        on_disk.write(damaged)
    assert [read_bytes(tmp_path) for _ in range(2)] == [4096, 0]
    other = os.urandom(4 * BLOCK)
    file.write_bytes(other)
    assert [read_bytes(tmp_path, other) for _ in range(2)] == [all_bytes, 0]
    assert read_bytes(tmp_path, other, ssd_bytes=1 << 15) >= BLOCK - 1  # what there is no room for is given up
    read_bytes(tmp_path, other)
    (index,) = tmp_path.glob("disk/**/ranges.index")
    index.write_bytes(index.read_bytes()[:-1] + b"?")
    assert read_bytes(tmp_path, other) == all_bytes
    assert not [*tmp_path.glob("disk/**/ranges.t")]
    (lying_there,) = find_sources(str(tmp_path / "disk"))
    (store,) = cache_admin.stores(lying_there)
    assert (store.samples, store.used_bytes >= all_bytes) == (0, True)
    cache_admin.clear(lying_there)
    assert not os.listdir(tmp_path / "disk")
