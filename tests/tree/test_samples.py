"""Samples: whole files and parts of files, against plain lists of (file, offset, length)."""

from __future__ import annotations

import os
import tempfile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_support import model, on_disk, trees

from mlfs.tree.manifest import Manifest
from mlfs.tree.samples import Samples, Version
from mlfs.tree.scan import scan

SIZES = (0, 1, 100, 4096, 70_000)


def tree_of(files: dict[str, int]) -> Manifest:
    """The manifest of a directory with files of these sizes."""
    with tempfile.TemporaryDirectory() as root:
        for name, size in files.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.truncate(size)
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return scan(fd, workers=1)
        finally:
            os.close(fd)


FILES = tree_of({f"d{number % 2}/f{number}": size for number, size in enumerate(SIZES)})


@settings(max_examples=50, deadline=None)
@given(tree=trees)
def test_whole_files_are_the_regular_files_of_the_tree(no_tick: None, tree: dict) -> None:
    with on_disk(tree) as (root, fd):
        manifest = scan(fd, workers=1)
        expected = model(root)
    samples = Samples.whole_files(manifest)
    keys = {samples.key(sample): sample for sample in samples.ids.tolist()}
    assert len(keys) == len(samples.ids)
    assert set(keys) == {path for path, status in expected.items() if path in keys or _is_regular(status)}
    for path, sample in keys.items():
        status = expected[path]
        assert manifest.path(samples.file_of(sample)) == path
        assert (samples.offset_of(sample), samples.length_of(sample)) == (0, status.st_size)
        assert samples.sizes[sample] == status.st_size
        assert list(samples.of_file(samples.file_of(sample))) == [sample]
        assert samples.version_of(sample) == Version(status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        assert samples.is_whole_file(sample)
    no_samples = set(range(len(samples))) - set(samples.ids.tolist())
    assert all(samples.length_of(number) == 0 for number in no_samples)
    files = set(manifest.files.tolist())
    assert all(not samples.of_file(entry) for entry in range(len(manifest)) if entry not in files)


def _is_regular(status: os.stat_result) -> bool:
    return status.st_mode & 0o170000 == 0o100000


def test_sizes_of_whole_files_follow_the_manifest() -> None:
    manifest = tree_of({"a": 10})
    samples = Samples.whole_files(manifest)
    (sample,) = samples.ids.tolist()
    sizes, key = samples.sizes, samples.key(sample)
    manifest.update(samples.file_of(sample), 25, 7, 8)
    assert (sizes[sample], samples.length_of(sample), samples.version_of(sample)) == (25, 25, Version(25, 7, 8))
    assert samples.key(sample) == key


def test_a_key_is_of_one_range_of_one_file() -> None:
    files = tree_of({f"d{number % 2}/f{number}": size for number, size in enumerate((0, 1, 100, 4096, 70_000))})
    samples, whole = Samples.in_blocks(files, 200, 100), Samples.whole_files(files)
    keys = [samples.key(sample) for sample in samples.ids.tolist()]
    assert len(set(keys)) == len(keys) == 3 + 41 + 700
    large = {whole.key(entry) for entry in files.files.tolist() if files.size_view[entry] > 200}
    assert not large & set(keys)


def test_blocks_beyond_4_gib() -> None:
    manifest = tree_of({"big": (5 << 30) + 10})
    samples = Samples.in_blocks(manifest, 1 << 30, 1 << 30)
    last = samples.blocks_of(int(manifest.files[0]))[-1]
    assert (samples.offset_of(last), samples.length_of(last)) == (5 << 30, 10)
    assert samples.key(last) == b"big\0%d+%d" % (5 << 30, 1 << 30)


def test_a_block_of_a_file_of_another_length_is_another_version_though_all_times_are_alike() -> None:
    versions = []
    for size in (1000, 1100):
        manifest = tree_of({"f": size})
        manifest.update(int(manifest.files[0]), size, 0, 0)
        samples = Samples.in_blocks(manifest, 200, 100)
        versions.append(samples.version_of(samples.blocks_of(int(manifest.files[0]))[3]))
    assert versions[0].size_bytes == versions[1].size_bytes == 100
    assert versions[0] != versions[1]


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=6),
    st.integers(0, 500),
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3000)), max_size=3),
)
def test_blocks_cover_large_files_once_whatever_becomes_of_their_sizes(
    sizes: list[int], above: int, block: int, changes: list[tuple[int, int]]
) -> None:
    manifest = tree_of({f"f{number}": size for number, size in enumerate(sizes)})
    samples = Samples.in_blocks(manifest, above, block)
    for number, size in changes:
        entry = int(manifest.files[number % len(sizes)])
        manifest.update(entry, size, 1, 2)
        samples.resized(entry)
    for entry in manifest.files.tolist():
        size, blocks = manifest.size_view[entry], samples.blocks_of(entry)
        covered = 0
        for sample in blocks:
            assert (samples.file_of(sample), samples.offset_of(sample)) == (entry, covered)
            assert samples.length_of(sample) == samples.sizes[sample] == samples.version_of(sample).size_bytes > 0
            covered += samples.length_of(sample)
        assert set(blocks) <= set(samples.of_file(entry))
        assert entry in samples.of_file(entry)
        assert covered == (size if size > above else 0)
        assert samples.sizes[entry] == size
    ids = samples.ids.tolist()
    assert len({samples.key(sample) for sample in ids}) == len(ids)
    entries = np.arange(len(manifest))
    assert samples.are_one(entries).tolist() == [samples.is_one(entry) for entry in entries.tolist()]
    of_files = samples.file_blocks.of_files(entries, -1)
    blocks = [sample for sample in ids if sample >= len(manifest)]
    assert [int(of_files[sample - len(manifest)]) for sample in blocks] == [samples.file_of(one) for one in blocks]


def test_a_file_that_has_grown_a_little_changes_the_number_of_no_other_block() -> None:
    """A node that mounts after that is a peer of those that have mounted before."""
    before, after = (
        Samples.in_blocks(tree_of({"a": size, "b": 5000, "c": 50}), 200, 100) for size in (3350, 3350 + 100)
    )
    assert before.fingerprint() == after.fingerprint()
    for entry in before.manifest.files.tolist():
        assert set(before.blocks_of(entry)) <= set(after.blocks_of(entry))
        assert before.blocks_of(entry)[:1] == after.blocks_of(entry)[:1]
    assert before.fingerprint() != Samples.in_blocks(tree_of({"a": 6000, "b": 5000, "c": 50}), 200, 100).fingerprint()


def test_a_file_that_outgrows_all_ids_keeps_those_that_it_has() -> None:
    samples = Samples.in_blocks(tree_of({"a": 1000}), 200, 100)
    (entry,) = samples.manifest.files.tolist()
    samples.manifest.update(entry, 100 * (len(samples) + 1), 1, 2)
    samples.resized(entry)
    assert [samples.offset_of(block) for block in samples.blocks_of(entry)] == list(range(0, 1000, 100))
    assert all(samples.length_of(block) == 100 for block in samples.blocks_of(entry))


def test_nodes_deal_out_whole_files_and_the_blocks_that_all_of_them_know() -> None:
    samples = Samples.in_blocks(tree_of({"a": 1000, "b": 150, "c": 450}), 200, 100)
    small, grown = (samples.manifest.find(name) for name in (b"b", b"c"))
    samples.manifest.update(grown, 2000, 1, 2)
    samples.resized(grown)
    sizes = samples.file_blocks.shared_sizes()
    known = set(samples.blocks_of(samples.manifest.find(b"a")))
    assert {*np.flatnonzero(sizes[1:]) + 1} == {small, *known}  # the first one is the directory
    assert sizes[list(known)].sum() == 1000
    assert min(samples.blocks_of(grown)) >= samples.file_blocks.own_from > max(known)
