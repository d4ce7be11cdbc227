"""What a person should know of the source and of reads that failed, in plain words.

Pure. In: frozen figures (mountd.statistics). Out: lines, each with the way out. Called by mountd.status and
mountd.headline.
"""

from __future__ import annotations

from mlfs.places.source_statistics import RootState
from mlfs.printable import printable
from mountd.statistics import MountStatistics

# A file system that was mounted again, or a read that failed, is told of for so long: who looks after it has seen it.
TOLD_S = 3600.0

GONE = "the source {source} has been gone for {since} ({error}): what is cached is served, other reads fail; {way_out}"
OTHER = (
    "what is at {source} now is not the source that was mounted, which has been gone for {since} ({error}): what is"
    " cached is served, other reads fail; {way_out}"
)
MOUNT_IT_AGAIN = "mount it there again, and reads go on"
COVERED = (
    "this mount covers its path, so: mlfs unmount {mountpoint}, mount the source again, and mlfs mount {mountpoint}"
)
OPENED_AGAIN = (
    "the source's file system was gone or hung, and was found again {ago} ago ({times} in all): reads go on by"
    " it; look after it if that happens often"
)
HANGS = (
    "the source has not answered for {longest}, of {path}{others}: readers get an error after --source-timeout, twice;"
    " look after {source}"
)
FAILED = "{reads} failed, the last one {ago} ago: {path}: {error}; {way_out}"
UNREADABLE = (
    "{which} of {source} could not be read by the scan, so nothing in there is in the mount: give yourself the right to"
    " read (chmod, or mount as another user), and mount again with --rescan"
)
FAILED_WAY_OUT = "read it below {source} to see whether the source gives it"
FAILED_COVERED = "the log says more of the source"


def unreadable_words(count: int, first: str, source: str) -> str:
    """That directories of the source could not be read when it was scanned."""
    which = f"the directory {first}" if count == 1 else f"{count:,} directories (the first of them: {first})"
    return printable(UNREADABLE.format(which=which, source=source))


def source_words(now: MountStatistics) -> list[str]:
    """What is wrong with the source, nothing where all is well."""
    root, source = now.source.root, printable(now.about.source)
    said = []
    if now.about.unreadable:
        said.append(unreadable_words(now.about.unreadable, now.about.first_unreadable, now.about.source))
    if root.state is not RootState.THERE:
        way_out = COVERED.format(mountpoint=printable(now.about.mountpoint)) if root.covered else MOUNT_IT_AGAIN
        words = OTHER if root.state is RootState.OTHER else GONE
        said.append(words.format(source=source, error=root.error, since=in_words(root.since_s), way_out=way_out))
    elif root.opened_again and root.opened_s < TOLD_S:
        said.append(OPENED_AGAIN.format(ago=in_words(root.opened_s), times=_times(root.opened_again)))
    if now.source.hanging:
        others = f" (and {now.source.hanging - 1} other reads)" if now.source.hanging > 1 else ""
        told = {"longest": in_words(now.source.longest_s), "path": printable(now.source.path), "others": others}
        said.append(HANGS.format(source=source, **told))
    failed = now.read_failures
    if failed.count and failed.ago_s < TOLD_S:
        way_out = FAILED_COVERED if root.covered else FAILED_WAY_OUT.format(source=source)
        about = {"ago": in_words(failed.ago_s), "path": printable(failed.path), "error": failed.error}
        said.append(FAILED.format(reads=_reads(failed.count), way_out=way_out, **about))
    return said


def gone(now: MountStatistics) -> str:
    """The first sentence of the status while the source is gone; empty while it is there."""
    root = now.source.root
    if root.state is RootState.THERE:
        return ""
    return f"the source has been gone for {in_words(root.since_s)}: reads of what is not cached fail (see below)"


def in_words(seconds: float) -> str:
    """A time of this length, as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _reads(count: int) -> str:
    return "a read" if count == 1 else f"{count:,} reads"
