"""What a refresh is refused for, and what it says: without a mount."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from mlfs.engine.peering import PeeringStatistics
from mlfs.errors import ExitCode, MlfsError
from mlfs.places.posix import PosixSource
from mlfs.tree.growing import GrowingManifest
from mlfs.tree.samples import Samples
from mlfs.tree.scan import scan
from mountd.refreshing import Refreshing


class _Runner:
    async def run(self, _pool: str, call: Any, *args: Any) -> Any:
        return call(*args)


def refreshing(source: Path, room: int, peers: PeeringStatistics) -> tuple[Refreshing, GrowingManifest]:
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        manifest = GrowingManifest(scan(fd), room)
        posix = PosixSource(fd, manifest)
    finally:
        os.close(fd)
    engine = SimpleNamespace(
        runner=_Runner(), samples=Samples.whole_files(manifest), jobs={}, replaced=lambda entry, change: None,
        peering=SimpleNamespace(statistics=lambda: peers), gone=lambda samples: lambda: None,
        known=lambda entry: [entry],
    )  # fmt: skip
    kernel = SimpleNamespace(forget_name=lambda *_: None, forget_attributes=lambda _: None)
    index = source.parent / "index"
    return Refreshing(cast(Any, engine), manifest, posix, str(source), "/mnt", index, kernel, cast(Any, None)), manifest


async def refreshed(part: Refreshing, path: bytes = b"") -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(part.run)
        part.begin(path)
        while part.statistics().state == "running":
            await trio.sleep(0)
        nursery.cancel_scope.cancel()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source" / "d").mkdir(parents=True)
    (tmp_path / "source" / "d" / "a").write_bytes(b"a")
    return tmp_path / "source"


def test_a_mount_that_shares_its_copies_is_not_refreshed(source: Path) -> None:
    async def main() -> None:
        part, _ = refreshing(source, 10, PeeringStatistics(node=1, nodes=3))
        with pytest.raises(MlfsError, match="shares its copies with other nodes") as caught:
            part.begin(b"")
        assert caught.value.exit_code is ExitCode.BUSY

    trio.run(main)


def test_more_than_there_is_room_for_is_refused_and_changes_nothing(source: Path) -> None:
    async def main() -> None:
        part, manifest = refreshing(source, 2, PeeringStatistics())
        for name in "bcd":
            (source / "d" / name).write_bytes(b"")
        await refreshed(part)
        told = part.statistics()
        assert (told.state, "3 entries have come, and there is room for 2 more" in told.remark) == ("failed", True)
        assert (manifest.find(b"d/b"), manifest.growths) == (-1, 0)
        (source / "d" / "d").unlink()
        await refreshed(part)
        assert (part.statistics().state, part.statistics().added) == ("done", 2)
        assert manifest.find(b"d/b") >= 0

    trio.run(main)


def test_a_name_that_is_nowhere_is_refused_before_anything_is_scanned(source: Path) -> None:
    async def main() -> None:
        part, manifest = refreshing(source, 20, PeeringStatistics())
        (source / "new").mkdir()
        for path in (b"nwe", b"d/nothing", b"d/a/b", b".mlfs"):
            await refreshed(part, path)
            told = part.statistics()
            assert told.state == "failed"
            assert told.remark == f"{path.decode()} is neither in the mount nor at its source"
        assert manifest.find(b"new") == -1

    trio.run(main)


def test_a_path_that_is_no_directory_stands_for_the_one_that_it_is_in(source: Path) -> None:
    async def main() -> None:
        part, manifest = refreshing(source, 20, PeeringStatistics())
        (source / "d" / "new").mkdir()
        (source / "d" / "new" / "x").write_bytes(b"")
        (source / "beside").write_bytes(b"")
        await refreshed(part, b"d/new/x")
        assert part.statistics().path == "d"
        assert (manifest.find(b"d/new/x") >= 0, manifest.find(b"beside")) == (True, -1)
        os.rename(source / "d", source / "e")
        await refreshed(part, b"d/new")  # it is gone: the directory above tells
        assert manifest.find(b"d/new/x") == -1
        assert manifest.find(b"e/new/x") >= 0

    trio.run(main)
