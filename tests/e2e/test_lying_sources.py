"""Sources that lie about times, sizes and listings: bytes are those of the source, or the reader gets an error."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import LyingSource
from support.trees import content, make_tree

SEEDS = (1, 2, 3)
LISTING_ERRORS = (errno.EIO, errno.EREMOTEIO, errno.ETIMEDOUT, errno.ENOMEM, errno.ENODATA)
LARGE = 9_000_001  # above what is fetched whole for a reader


def drop_pages(files: Iterable[Path]) -> None:
    """As the machine does that needs memory."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_by_calls(path: Path, step: int) -> bytes:
    """As scripts read that go on until nothing comes."""
    parts = []
    fd = os.open(path, os.O_RDONLY)
    try:
        while part := os.read(fd, step):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts)


def copied(path: Path, to: Path) -> bytes:
    """By sendfile(2)."""
    shutil.copyfile(path, to)
    return to.read_bytes()


def mapped(path: Path) -> bytes:
    """By mmap(2), of all that the file has by its size once it is open. A shared mapping is refused with ENODEV."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)[:] if size else b""


@pytest.mark.promise("lies-size")
@pytest.mark.promise("lies-listing")
@pytest.mark.promise("lies-cached")
def test_sizes_listings_and_attributes_that_are_wrong(tmp_path: Path) -> None:
    draw = random.Random(1)
    lengths = [1, 4095, 4096, 4097, 131_072, *(draw.randrange(1, 400_000) for _ in range(3))]
    names = {f"{kind}/{n}": length for kind in ("zero", "small", "cached") for n, length in enumerate(lengths)}
    names |= {f"{kind}/large": LARGE for kind in ("zero", "small", "cached")}
    names |= {f"{kind}/{n}": 5000 for kind in ("large", "listing", "listed", "true") for n in range(6)} | {"true/0": 0}
    failing, failing_at_once = draw.choice(LISTING_ERRORS), errno.EACCES
    with LyingSource(make_tree(tmp_path / "backing", names)) as source:
        source.lie("zero", size="zero")
        source.lie("small", size=-draw.choice([1, 2, 4000]))
        source.lie("large", size=draw.choice([1, 5000]))
        source.lie("listing", listing=failing)
        source.lie("listed", listed=failing_at_once)
        source.lie("cached", cached_s=3600)
        with MlfsMount(source.path, mountpoint=make_tree(tmp_path / "mount", {})) as mount:
            for turn in range(3):
                for kind in ("zero", "small", "large", "true"):
                    for name in sorted(os.listdir(source.backing / kind)):
                        want = (source.backing / kind / name).read_bytes()
                        step = draw.choice([1000, 1 << 20]) if len(want) < 1_000_000 else 1 << 20
                        assert read_by_calls(mount.path / kind / name, step) == want, (turn, kind, name)
                        assert (mount.path / kind / name).read_bytes() == want, (turn, kind, name)
                        assert copied(mount.path / kind / name, tmp_path / "copy") == want, (turn, kind, name)
                        assert mapped(mount.path / kind / name) == want, (turn, kind, name)
                drop_pages(mount.path / kind / name for kind in ("zero", "small") for name in ("0", "large"))
            for directory, number in (("listing", failing), ("listed", failing_at_once)):
                with pytest.raises(OSError, match=os.strerror(number)) as caught:
                    os.listdir(mount.path / directory)
                assert caught.value.errno == number
                with pytest.raises(OSError, match=os.strerror(number)):
                    (mount.path / directory / "0").read_bytes()
            for name in os.listdir(mount.path / "cached"):  # known to the client for an hour
                assert (mount.path / "cached" / name).read_bytes() == content(f"cached/{name}", names[f"cached/{name}"])
            mount.settle()
            for n, name in enumerate(sorted(os.listdir(mount.path / "cached"))):
                old = (source.backing / "cached" / name).read_bytes()
                other = content(f"other {name}", max(0, len(old) + (1 + 3000 * (n % 2)) * (-1) ** n))
                (source.backing / "incoming").write_bytes(other)
                os.rename(source.backing / "incoming", source.backing / "cached" / name)
            mount.settle()
            status = mount.status()
            said = "\n".join(status["messages"])
            assert "have another number of bytes than their size says" in said
            assert "2 directories (the first of them: list" in said
            for name in sorted(os.listdir(mount.path / "cached")):
                got = (mount.path / "cached" / name).read_bytes()
                old = content(f"cached/{name}", names[f"cached/{name}"])
                assert got in (old, (source.backing / "cached" / name).read_bytes()), name
        source.truth("listing")
        with MlfsMount(source.path, mountpoint=tmp_path / "mount") as mount:
            for name in sorted(os.listdir(mount.path / "cached")):
                assert (mount.path / "cached" / name).read_bytes() == (source.backing / "cached" / name).read_bytes()
        for kind in ("small", "large"):
            source.truth(kind)
        source.lie("", size="zero")
        with MlfsMount(source.path, "--rescan", mountpoint=tmp_path / "mount") as mount:
            told = f"files of {source.path} have size 0: if that is wrong, what they have is read past the caches"
            assert told in mount.said
            assert told in str(mount.status()["messages"])
            name = draw.choice(sorted(set(names) - {"true/0"} - {name for name in names if name.startswith("list")}))
            assert (mount.path / name).read_bytes() == (source.backing / name).read_bytes()


@pytest.mark.promise("lies-time")
@pytest.mark.parametrize("seed", SEEDS)
def test_times_of_files_that_are_made_up(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    lie = ("now", "alternating", "moved")[seed % 3]
    times = draw.choice([("ctime",), ("mtime",), ("mtime", "ctime")])
    names = {f"{draw.choice('abc')}/{n}": draw.randrange(0, 50_000) for n in range(30)} | {"large": LARGE}
    with LyingSource(make_tree(tmp_path / "backing", names)) as source:
        source.lie("", **dict.fromkeys(times, lie))
        with MlfsMount(source.path, mountpoint=make_tree(tmp_path / "mount", {})) as mount:
            at_mount = mount.status()["messages"]
            for _ in range(2):
                for name in names:
                    assert (mount.path / name).read_bytes() == (source.backing / name).read_bytes(), (lie, times, name)
            mount.settle()
            said = [line for line in mount.status()["messages"] if line.startswith(" and ".join(times))]
            assert len(said) == 1
            assert "left out of comparisons" in said[0]
            assert lie == "moved" or said[0] in at_mount
            small = sum(names.values()) - LARGE  # each once, and what the lie was found out by
            assert source.counts()["bytes"] < 2 * LARGE + 1.2 * small + 5 * 50_000
            changed = next(name for name, size in names.items() if size and name != "large")
            if len(times) == 1:  # the other time tells
                new = content("new", names[changed])
                (source.backing / changed).write_bytes(new)
                drop_pages([mount.path / changed])
                wait_until(lambda: (mount.path / changed).read_bytes() in (new, content(changed, names[changed])))
