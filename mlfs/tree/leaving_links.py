"""Finds symbolic links that lead out of the tree: a mount of the tree never sees what is read through them.

Pure. In: a manifest, the paths that its links may name it by. Out: how many links lead out, and where most of them do.
Links are judged by their text, as nobody asks the source what is there. Called by the daemon when it starts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from mlfs.tree.manifest import Manifest

# Links that are looked at: some microseconds each, and what the first hundred thousand do the others will, too.
MOST: Final = 100_000
NAMED: Final = 3
# A directory that so many of the links lead below is where they lead.
_SHARE: Final = 0.9


class LeavingLinks(NamedTuple):
    """The links that were found.

    Attributes:
        leaving: links that lead out, of so many (`of`) that were looked at. there: how many there are.
        first: the path of the first of them.
        places: directories that they lead below, absolute, the most frequent first; one if it has nearly all of them.
    """

    leaving: int = 0
    of: int = 0
    there: int = 0
    first: bytes = b""
    places: tuple[bytes, ...] = ()


def links_that_leave(manifest: Manifest, source: bytes, others: Sequence[bytes] = (), most: int = MOST) -> LeavingLinks:
    """Look at the links of a tree.

    Args:
        source: its absolute path. others: further paths at which it is seen, as the mount point.
    """
    links = manifest.link[:most].tolist()
    first, targets = b"", []
    roots = [root.rstrip(b"/") for root in (source, *others)]
    for entry in links:
        if manifest.is_gone(entry):
            continue
        target = manifest.target(entry)
        if not target.startswith(b"/"):
            if b".." not in target:
                continue
            target = os.path.join(roots[0], os.path.dirname(manifest.path(entry)), target)
        target = os.path.normpath(target)
        if not any(target == root or target.startswith(root + b"/") for root in roots):
            first = first or manifest.path(entry)
            targets.append(target)
    return LeavingLinks(len(targets), len(links), len(manifest.link), first, _places(targets))


def _places(targets: Sequence[bytes]) -> tuple[bytes, ...]:
    """The deepest directory that has nearly all of them; else, of what lies below each directory near the
    root, the deepest that has all of it, those with most first.
    """
    if not targets:
        return ()
    found, parts = b"", [target.split(b"/")[1:] for target in targets]
    depth = 0
    while True:
        names = Counter(part[depth] for part in parts if len(part) > depth)
        name, times = names.most_common(1)[0] if names else (b"", 0)
        if times < max(2, _SHARE * len(targets)) and not (len(set(targets)) == 1 and times):
            break
        found += b"/" + name
        parts = [part for part in parts if len(part) > depth and part[depth] == name]
        depth += 1
    if depth >= 2 or len(targets) == 1:
        return (found,)
    heads: dict[bytes, list[bytes]] = {}
    for target in targets:
        heads.setdefault(b"/".join(target.split(b"/")[:3]), []).append(target)
    most = sorted(heads.values(), key=len, reverse=True)[:NAMED]
    return tuple(map(os.path.commonpath, most))
