"""Looks at a source to find out what its times prove (`mlfs.tree.times`).

In: the source's root, its manifest. Out: what the manifest's `times` say from then on, and a line in the log. Called
by `mlfs.tree.index` when a mount starts, and by `mlfs.places.posix` when a read has met a time that moved.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from mlfs.tree.attributes import attributes_now
from mlfs.tree.manifest import Manifest, clamp_ns
from mlfs.tree.openat import open_beneath
from mlfs.tree.times import Looks

log = logging.getLogger("mlfs.tree")

# Files that are looked at when a mount starts, and how often each: a time that alternates between two servers is the
# same in two looks every other time.
FILES_LOOKED_AT: Final = 4
LOOKS: Final = 3
# Directories whose names are compared with a saved index although their times have not moved, and the largest of them.
DIRECTORIES_LISTED: Final = 8
SMALL_DIRECTORY: Final = 4096
# Directories whose times are all alike are taken for made so in one moment where a file of theirs is that old as well.
ONE_MOMENT_NS: Final = 2_000_000_000


def files_spread(manifest: Manifest, most: int) -> list[int]:
    """Some files of the tree, far from each other."""
    files = manifest.files
    return [int(entry) for entry in files[:: max(1, len(files) // most)][:most]]


def neighbours(manifest: Manifest, entry: int, most: int) -> list[int]:
    """Some other files: those next to it in its directory first. A directory may have a million of them."""
    children = manifest.children(manifest.parent_view[entry])
    listed = children if isinstance(children, range) else list(children)
    at = listed.index(entry) if entry in listed else 0
    beside = [other for other in listed[max(0, at - 2 * most) : at + 2 * most] if manifest.is_file(other)]
    return [other for other in dict.fromkeys(beside + files_spread(manifest, most)) if other != entry][:most]


def look_at(manifest: Manifest, root_fd: int, entry: int) -> Looks:
    """Looks at a file without a read in between. The client is told to ask for what it believes to know."""
    with contextlib.suppress(OSError):
        fd = open_beneath(root_fd, manifest.path(entry), os.O_PATH)
        try:
            return list(pairwise([attributes_now(fd, ask=True) for _ in range(LOOKS)]))
        finally:
            os.close(fd)
    return []


def learn(manifest: Manifest, files: Sequence[Looks]) -> bool:
    """Nothing can have changed between the looks at these files. Whether that has taught that a time proves nothing."""
    learned = manifest.times.learn(files, manifest.n_files == 1)
    for name in learned:
        log.warning("%s of the source's files moves while nothing changes: it is left out of comparisons", name)
    return bool(learned)


def learn_at_start(manifest: Manifest, root_fd: int) -> bool:
    """Learns what a mount has to know before it serves: a few looks, no read. Whether that has taught anything."""
    return learn(manifest, [look_at(manifest, root_fd, entry) for entry in files_spread(manifest, FILES_LOOKED_AT)])


# -- directories


def alike(manifest: Manifest) -> bool:
    """Whether all directories have one time, which they cannot have been given in one moment."""
    directories = manifest.directories
    mtimes, ctimes = manifest.mtime_ns[directories], manifest.ctime_ns[directories]
    if mtimes.max(initial=0) <= 0 and ctimes.max(initial=0) <= 0:
        return True
    if len(directories) < 2 or np.ptp(mtimes) or np.ptp(ctimes):
        return False
    # In one moment: then what stands in them was made there at that time as well, and cannot have set its ctime back.
    return not np.any(np.abs(manifest.ctime_ns[manifest.files] - ctimes[0]) < ONE_MOMENT_NS)


def stale_directory(manifest: Manifest, root_fd: int) -> int:
    """A directory whose names are others than the manifest's although its times are those of the manifest; -1 if none.

    Few small directories are looked at, others each time: a tree of which the times of directories never move is found
    out sooner or later.
    """
    directories = manifest.directories
    first = manifest.first_child
    small = directories[(first[directories + 1] - first[directories]) <= SMALL_DIRECTORY]
    unreadable = frozenset(manifest.unreadable.tolist())
    candidates = [entry for entry in small.tolist() if entry not in unreadable] if len(small) < 64 else small.tolist()
    entry: int
    for entry in random.sample(candidates, min(DIRECTORIES_LISTED, len(candidates))):
        with contextlib.suppress(OSError):
            fd = open_beneath(root_fd, manifest.path(entry), os.O_RDONLY | os.O_DIRECTORY)
            try:
                names = sorted(os.fsencode(name) for name in os.listdir(fd))
                now = os.fstat(fd)
            finally:
                os.close(fd)
            known = manifest.mtime_ns_view[entry], manifest.ctime_ns_view[entry]
            if (clamp_ns(now.st_mtime_ns), clamp_ns(now.st_ctime_ns)) == known and (
                names != [manifest.name(child) for child in manifest.children(entry)]
            ):
                return entry
    return -1
