"""A change under one name of a file is one under all that still lead to it, and they are grouped as they are then."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlfs.engine import looked_up
from mlfs.engine.looked_up import LookedUp
from mlfs.places.place import FileChange
from mlfs.places.posix import PosixSource
from mlfs.tree.attributes import attributes_of
from mlfs.tree.scan import scan


@pytest.mark.promise("hard-links")
@pytest.mark.parametrize("seed", range(12))
def test_drawn_changes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are written over, replaced and removed; each look leaves the manifest as the source is."""
    chance = random.Random(seed)
    count = chance.choice([2, 3, 9])
    names = [tmp_path / f"{number}" for number in range(count)]
    names[0].write_bytes(b"first")
    for name in names[1:]:
        name.hardlink_to(names[0])
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        manifest = scan(fd)
        source = PosixSource(fd, manifest)
    finally:
        os.close(fd)
    most = chance.choice([2, 256])
    monkeypatch.setattr(looked_up, "MOST_NAMES", most)

    def regroup(files: Sequence[Sequence[int]]) -> None:
        manifest.hard_links.regroup(files)

    lookup = LookedUp(manifest, source, regroup)
    entries = [manifest.find(os.fsencode(name.name)) for name in names]
    for step in range(6):
        at = chance.randrange(count)
        if not names[at].exists():
            continue
        do = chance.choice(["write", "replace", "remove", "chmod"])
        if do == "write":
            with open(names[at], "r+b") as file:
                file.write(b"%d" % step)
        elif do == "replace":
            (tmp_path / "incoming").write_bytes(bytes(step))
            os.rename(tmp_path / "incoming", names[at])
        elif do == "remove":
            names[at].unlink()
            continue  # there is no content that could be noticed
        else:
            names[at].chmod(0o600 + step)
        now = os.stat(names[at])
        change = FileChange(now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        seen = dict(lookup.changes(entries[at], change))
        assert next(iter(seen)) == entries[at]
        assert len(seen) <= most + 1
        assert seen[entries[at]].blocks == now.st_blocks
        for entry, found in seen.items():
            manifest.update(entry, found.size_bytes, found.mtime_ns, found.ctime_ns, blocks=found.blocks)
        there = {entry: os.stat(name) for entry, name in zip(entries, names, strict=True) if name.exists()}
        for entry, status in there.items():
            alike = [other for other, one in there.items() if one.st_ino == status.st_ino]
            shown = [
                other for other in there if manifest.hard_links.first_of(other) == manifest.hard_links.first_of(entry)
            ]
            assert set(shown) <= set(alike), "never taken for one file where they are two"
            if most > count:
                assert shown == alike
                assert manifest.ctime_ns_view[entry] == status.st_ctime_ns


@pytest.mark.promise("hard-links")
def test_rights_are_those_of_the_file_where_its_ctime_proves_nothing_and_what_is_gone_is_left_alone(
    tmp_path: Path,
) -> None:
    """A refresh has taken the third name out, and another file has it at the source by now."""
    names = [tmp_path / name for name in ("0", "1", "2")]
    names[0].write_bytes(b"content")
    for name in names[1:]:
        name.hardlink_to(names[0])
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        manifest = scan(fd)
        source = PosixSource(fd, manifest)
    finally:
        os.close(fd)
    manifest.times.ctime = manifest.times.both = False
    first, second, third = (manifest.find(os.fsencode(name.name)) for name in names)
    manifest.is_gone = lambda entry: entry == third  # type: ignore[method-assign]
    names[2].unlink()
    names[2].write_bytes(b"another")
    names[0].chmod(0o600)
    now = os.stat(names[0])
    change = FileChange(now.st_size, now.st_mtime_ns, manifest.ctime_ns_view[first], attributes_of(now).rights)
    seen = dict(LookedUp(manifest, source, manifest.hard_links.regroup).changes(first, change))
    assert list(seen) == [first, second]
    assert seen[second].rights == change.rights
