"""Says where a file has data and where holes (lseek(2), SEEK_DATA and SEEK_HOLE), as the source has it.

In: handles of open files, on the loop. Out: offsets. The source is asked in a worker, and only about files that take
less room there than their size. If it does not answer in time, fails, or has another content by now, all of the file
is data, which is always true: holes are read as zeros.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing

import trio

from mlfs.engine.fetch import Fetcher
from mlfs.engine.runner import Runner
from mlfs.places.posix import PosixFile

BLOCK_BYTES = 512  # of st_blocks, on all file systems


class Holes:
    """Answers SEEK_DATA and SEEK_HOLE.

    Args:
        patience_s: how long the source is waited for.
    """

    def __init__(self, fetcher: Fetcher, runner: Runner, patience_s: float) -> None:
        self._manifest = fetcher.samples.manifest
        self._fetcher = fetcher
        self._runner = runner
        self._patience_s = patience_s

    async def of_open(self, opened: PosixFile, offset: int, whence: int) -> int:
        """For a file that is held open. Raises: ENXIO behind the last data, EINVAL."""
        return await self._ask(opened.version.size, lambda: _seek(opened, offset, whence), offset, whence)

    async def of_entry(self, entry: int, generation: int, offset: int, whence: int) -> int:
        """For what an entry had in a generation. Raises: as `of_open`; ESTALE where nothing is known of that."""
        manifest = self._manifest
        if manifest.generation_view[entry] != generation:
            then = manifest.past.of(entry, generation)
            if then is None:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return _all_data(then.size, offset, whence)
        size = manifest.size_view[entry]
        if manifest.blocks_view[entry] * BLOCK_BYTES >= size:
            return _all_data(size, offset, whence)

        def ask() -> int | OSError:
            with closing(self._fetcher.open_unchanged(entry)) as opened:
                return _seek(opened, offset, whence)

        return await self._ask(size, ask, offset, whence)

    async def _ask(self, size: int, ask: Callable[[], int | OSError], offset: int, whence: int) -> int:
        all_data = _all_data(size, offset, whence)

        def in_worker() -> int | OSError | None:
            try:
                return ask()
            except (OSError, MemoryError):
                return None

        try:
            found = await self._runner.run_within(self._patience_s, "read", in_worker)
        except trio.TooSlowError:
            found = None
        if isinstance(found, OSError):
            raise found
        return all_data if found is None else min(found, size)


def _seek(opened: PosixFile, offset: int, whence: int) -> int | OSError:
    """The source's answer, which may be that there is no more data."""
    try:
        return opened.seek(offset, whence)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return error
        raise


def _all_data(size: int, offset: int, whence: int) -> int:
    """The answer for a file without holes: but there is one behind the end."""
    if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if offset >= size:
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
    return offset if whence == os.SEEK_DATA else size
