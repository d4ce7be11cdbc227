"""The view of a mount when it starts: the tree of its source, from the saved index or a new scan.

In: the settings, the source's root. Out: a manifest that can grow (`mlfs refresh`); progress through `report`. Called
by mountd.daemon before anything is mounted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mlfs.config import MountConfig
from mlfs.errors import SourceError
from mlfs.tree.growing import GrowingManifest
from mlfs.tree.index import ScanReport, default_index_path, kept_open, load_kept, manifest_for, source_identity
from mlfs.tree.leaving_links import LeavingLinks, links_that_leave
from mlfs.tree.scan_lock import Holder
from mountd import mounts

log = logging.getLogger("mlfs.daemon")

Report = Callable[[dict[str, object]], None]


class TreeView(NamedTuple):
    """The tree with which a mount begins.

    Attributes:
        manifest: the tree. scanned: how it was found. how: the same in words.
        links: what is to be said of links that lead out of the source.
        kept: a descriptor of the list of files, for a server that takes the mount over; -1: none can.
    """

    manifest: GrowingManifest
    scanned: ScanReport
    how: str
    links: str
    kept: int = -1


def make_view(config: MountConfig, source_fd: int, report: Report) -> TreeView:
    """The tree of the source. Raises: SourceError."""

    def progress(directories: int, files: int) -> None:
        report({"progress": {"phase": "scan", "dirs": directories, "files": files}})

    def waits(holder: Holder) -> None:
        report({"progress": {"phase": f"waiting for the list of files: {holder.in_words()}"}})

    path = index_path(config)
    manifest, scanned = manifest_for(source_fd, config.source, path, config.rescan, progress, waits=waits)
    for problem in (*scanned.problems, *filter(None, [scanned.warning])):
        log.warning("scan: %s", problem)
    leaving = links_that_leave(manifest, os.fsencode(config.source), [os.fsencode(config.mountpoint)])
    links, way_out = link_words(leaving, config.source)
    if not manifest.n_files:
        message = f"{config.source} holds no files" + (f" of its own: {links}" if links else "")
        raise SourceError(message, way_out or "is it the right directory, and is its storage mounted?")
    how = f"scanned by {scanned.by}" if scanned.by else "saved index" if scanned.reused else "scanned"
    alone = f", for this mount alone: {path.parent} cannot be written" if scanned.warning else ""
    said = f"{links}, past this mount ({way_out})" if links else ""
    kept = -1
    try:
        kept = kept_open(manifest, path, source_identity(source_fd, config.source))
    except OSError as error:  # no memory for it
        log.warning("this mount ends with its process: %s", error)
    return TreeView(GrowingManifest(manifest), scanned, f"{how} in {scanned.seconds:.1f} s{alone}", said, kept)


def view_as_it_was(config: MountConfig, source_fd: int, index: int, how: str, links: str) -> TreeView:
    """The tree with which a mount began that another server has served. Raises: OSError."""
    manifest = load_kept(index, source_identity(source_fd, config.source))
    return TreeView(GrowingManifest(manifest), ScanReport(True, "", 0.0), how, links, index)


def index_path(config: MountConfig) -> Path:
    """The path of the saved index of the source."""
    return Path(config.index) if config.index else default_index_path(config.source)


# -- what is said of links that lead out of the source: where they lead, and what to mount so that mlfs sees the reads
#
# In: what `mlfs.tree.leaving_links` has found. Out: a line for people.

# A user who mounts waits so long to hear whether a link leads to a file or to a directory.
LINK_PATIENCE_S = 1.0


def link_words(links: LeavingLinks, source: str) -> tuple[str, str]:
    """The fact, and the way out; "" and "" where no link leads out."""
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
        is_directory = mounts.call_with_timeout(lambda: os.path.isdir(path), LINK_PATIENCE_S)
    except OSError:
        is_directory = True
    return path if is_directory else os.path.dirname(path)
