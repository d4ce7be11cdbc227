"""Lists what is behind links that leave the source: the hook that layouts ask, with I/O.

In: the directory through which the source can be reached. Out: an `Outside`. Called by whoever builds streams, in a
worker thread. A link may lead back to the mount itself, so never call it from a request handler's thread.
"""

from __future__ import annotations

import os
import stat

from mlfs.orders.layouts.layout import Outside


def files_behind(base: bytes) -> Outside:
    """Return a hook over a source that can be reached at `base` (under a mount: /proc/self/fd/N of its descriptor)."""

    def files(path: bytes) -> list[bytes] | None:
        top = os.path.join(base, path)
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

    return files
