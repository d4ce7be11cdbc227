"""The view of a mount when it starts: the tree of its source, from the saved index or a new scan.

In: the settings, the source's root. Out: a manifest that can grow (`mlfs refresh`); progress through `report`. Called
by mountd.daemon before anything is mounted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from mlfs.config import MountConfig
from mlfs.errors import SourceError
from mlfs.tree.growing import GrowingManifest
from mlfs.tree.index import ScanReport, default_index_path, manifest_for
from mlfs.tree.scan_lock import Holder

log = logging.getLogger("mlfs.daemon")

Report = Callable[[dict[str, object]], None]


def make_view(config: MountConfig, source_fd: int, report: Report) -> tuple[GrowingManifest, ScanReport, str]:
    """The tree of the source, how it was found, and the same in words. Raises: SourceError."""

    def progress(directories: int, files: int) -> None:
        report({"progress": {"phase": "scan", "dirs": directories, "files": files}})

    def waits(holder: Holder) -> None:
        report({"progress": {"phase": f"waiting for the list of files: {holder.in_words()}"}})

    path = index_path(config)
    manifest, scanned = manifest_for(source_fd, config.source, path, config.rescan, progress, waits=waits)
    for problem in (*scanned.problems, *filter(None, [scanned.warning])):
        log.warning("scan: %s", problem)
    if not manifest.n_files:
        raise SourceError(f"{config.source} holds no files", "is it the right directory, and is its storage mounted?")
    how = f"scanned by {scanned.by}" if scanned.by else "saved index" if scanned.reused else "scanned"
    alone = f", for this mount alone: {path.parent} cannot be written" if scanned.warning else ""
    return GrowingManifest(manifest), scanned, f"{how} in {scanned.seconds:.1f} s{alone}"


def index_path(config: MountConfig) -> Path:
    """Where the index of the source is read and saved."""
    return Path(config.index) if config.index else default_index_path(config.source)
