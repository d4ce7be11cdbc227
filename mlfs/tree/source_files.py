"""The source itself, as layouts ask it: files behind links that leave it, and the heads of files.

In: the directory through which the source can be reached. Out: an `Outside` that reads as well. Called by whoever
builds streams, in a worker thread. A link may lead back to the mount itself, so never call it from a request handler's
thread.
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO


class SourceFiles:
    """A hook over a source that can be reached at `base` (under a mount: /proc/self/fd/N of its descriptor)."""

    def __init__(self, base: bytes) -> None:
        self._base = base

    def __call__(self, path: bytes) -> list[bytes] | None:
        """The files behind a link; see `Outside`."""
        top = os.path.join(self._base, path)
        try:
            mode = os.stat(top).st_mode
        except OSError:
            return None
        if not stat.S_ISDIR(mode):
            return [b""]
        prefix = len(top) + 1
        return [
            os.path.join(where, name)[prefix:] for where, _, names in os.walk(top, followlinks=True) for name in names
        ]

    def open(self, path: bytes) -> BinaryIO:
        """A file of the source; see `ReadsSource`. A link that has taken its place is refused; a pipe cannot hang."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return open(os.open(os.path.join(self._base, path), flags), "rb", buffering=0)
