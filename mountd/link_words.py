"""What is said of links that lead out of the source: where they lead, and what to mount so that mlfs sees the reads.

In: what `mlfs.tree.leaving_links` has found. Out: a line for people. Called by mountd.view.
"""

from __future__ import annotations

import os

from mlfs.tree.leaving_links import LeavingLinks
from mountd import mounts

# Whoever mounts waits so long to hear whether a link leads to a file or to a directory.
PATIENCE_S = 1.0


def link_words(links: LeavingLinks, source: str) -> tuple[str, str]:
    """What is so, and the way out; "" and "" where no link leads out."""
    if not links.leaving:
        return "", ""
    places = [_directory(os.fsdecode(place)) for place in links.places]
    looked = f"{links.of:,}" if links.of == links.there else f"the first {links.of:,}"
    lead = "leads" if links.leaving == 1 else "lead"
    where = ", ".join(places)
    first = f"first: {os.fsdecode(links.first)}"
    said = f"{links.leaving:,} of {looked} symbolic links {lead} out of {source}, to {where} ({first})"
    both = os.path.commonpath([source, *places])
    mount = " and ".join(f"mlfs mount {place}" for place in places)
    instead = f", or mlfs mount {both}, which has both" if both != "/" and both not in places else ""
    return said, f"{mount}: then reads through these links pass mlfs{instead}"


def _directory(path: str) -> str:
    """The path if it is a directory, else the one that it lies in."""
    try:
        is_directory = mounts.call_with_timeout(lambda: os.path.isdir(path), PATIENCE_S)
    except OSError:
        is_directory = True
    return path if is_directory else os.path.dirname(path)
