"""Where data and holes begin: as the source says, and all data where it does not say so in time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from fakes import running, simulate

SIZE = 5000
WAYS = [(0, os.SEEK_DATA), (0, os.SEEK_HOLE), (4999, os.SEEK_DATA), (17, os.SEEK_HOLE)]


async def asked(mount: Any, entry: int, generation: int = 0) -> list[int]:
    return [await mount.engine.holes.of_entry(entry, generation, offset, whence) for offset, whence in WAYS]


ALL_DATA = [offset if whence == os.SEEK_DATA else SIZE for offset, whence in WAYS]


def test_the_source_is_asked_and_not_believed_beyond_the_size(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 3, size=SIZE) as mount:
            entry, manifest = mount.files[0], mount.engine.manifest
            assert await asked(mount, entry) == ALL_DATA
            assert "read" not in mount.runner.calls  # it takes its whole size
            manifest.blocks[entry] = 0
            assert await asked(mount, entry) == ALL_DATA  # the source has no hole in it
            assert mount.runner.calls.count("read") == len(WAYS)
            for offset, whence in ((SIZE, os.SEEK_DATA), (SIZE + 1, os.SEEK_HOLE), (-1, 17)):
                with pytest.raises(OSError, match=r"Invalid|No such device") as caught:
                    await mount.engine.holes.of_entry(entry, 0, offset, whence)
                assert caught.value.errno == (errno.EINVAL if whence == 17 else errno.ENXIO)

    simulate(body)


@pytest.mark.promise("sparse")
@pytest.mark.parametrize("how", ["hangs", "fails", "changed", "gone", "known to have changed"])
def test_all_is_data_where_the_source_does_not_say(tmp_path: Path, how: str) -> None:
    async def body() -> None:
        async with running(tmp_path, 3, size=SIZE, seconds={"read": 100.0 if how == "hangs" else 0.0}) as mount:
            entry, manifest = mount.files[0], mount.engine.manifest
            manifest.blocks[entry] = 0
            path = Path(os.fsdecode(mount.root)) / os.fsdecode(manifest.path(entry))
            if how == "fails":
                path.unlink()
                path.mkdir()
            elif how in ("changed", "known to have changed"):
                path.write_bytes(b"")
                os.truncate(path, SIZE)  # nothing but a hole: not what was there
            elif how == "gone":
                path.unlink()
            if how.startswith("known"):
                manifest.update(entry, 1, 1, 1)
            began_s = trio.current_time()
            assert await asked(mount, entry) == ALL_DATA
            assert trio.current_time() - began_s <= 10 * len(WAYS)

    simulate(body)
