"""The directory with the training files, for commands that look at it without a mount.

In: the path that a user typed. Out: its manifest, from the saved index if no directory has changed since, and a job's
streams over it. Called by `mlfs.cli.order`, `plan` and `calibrate`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mlfs.cli.ending import end_what_hangs
from mlfs.cli.progress import Progress
from mlfs.errors import SourceError
from mountd import interface

if TYPE_CHECKING:
    from mlfs.job import JobSpec
    from mlfs.orders.streams import JobStreams
    from mlfs.tree.manifest import Manifest
    from mlfs.tree.scan_lock import Holder


@contextmanager
def opened(source: str) -> Iterator[int]:
    """A descriptor of the directory. Raises SourceError when it cannot be opened."""
    end_what_hangs()
    try:
        fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SourceError(f"{source}: {error.strerror}", "give the directory with the training files") from None
    try:
        yield fd
    finally:
        os.close(fd)


def scanned(fd: int, source: str, stop: Callable[[], bool] | None = None) -> Manifest:
    """The manifest, with progress on stderr. A mount is always scanned, as the saved index is that of its source.

    Args:
        fd: a descriptor of the directory.
        source: its path.
        stop: asked now and then; ScanStopped is raised when it says True.
    """
    from mlfs.tree.index import default_index_path, manifest_for
    from mlfs.tree.scan import scan

    path = interface.resolve(source)
    with Progress() as progress:

        def report(directories: int, files: int) -> None:
            progress.update({"phase": "scan", "dirs": directories, "files": files})

        def waits(holder: Holder) -> None:
            progress.update({"phase": f"waiting for the list of files: {holder.in_words()}"})

        if interface.enclosing_mlfs(path):
            return scan(fd, progress=report, stop=stop)
        return manifest_for(fd, path, default_index_path(path), progress=report, stop=stop, waits=waits)[0]


@contextmanager
def job_streams(source: str, spec: JobSpec) -> Iterator[tuple[JobStreams, Manifest]]:
    """A job's streams over the directory, and its manifest. They may follow links out of it until the block ends."""
    from mlfs.orders.stopping import stoppable
    from mlfs.orders.streams import build_streams, check_reach
    from mlfs.tree.source_files import SourceFiles

    with opened(source) as fd:
        manifest = scanned(fd, source)
        outside = SourceFiles(b"/proc/self/fd/%d" % fd)
        absolute = os.fsencode(os.path.abspath(source))
        with Progress() as progress:

            def go_on() -> bool:  # asked now and then in what takes long
                progress.update({"phase": "computing the order"})
                return False

            with stoppable(go_on):
                streams = build_streams(spec, manifest, absolute, outside, check_reach)
        yield streams, manifest
