"""Says in plain words what a person should know of the source and of reads that failed.

Pure. In: frozen figures (mountd.statistics). Out: lines, each with the way out. Called by mountd.status and
mountd.headline.
"""

from __future__ import annotations

import errno
import os
from dataclasses import asdict

from mlfs.places.source_statistics import RootState, SourceStatistics
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
    "{which} of {source} could not be read by the scan, so nothing in there is in the mount, and a listing fails as it"
    " did there ({error}): {way_out}, then: mlfs refresh {mountpoint}"
)
NOT_ALLOWED = "give yourself the right to read (chmod, or mount as another user)"
DOES_NOT_WORK = "look after the file system of the source, in its log and the kernel's"
MOVES = (
    "{times} of the files of {source} moves while nothing changes (the file system makes it up), so it is left out of"
    " comparisons: a file that is changed is noticed by {left}; to see such changes, mount again"
)
MOVE_BOTH = MOVES.replace("moves", "move").replace("makes it", "makes them").replace("it is left", "they are left")
DIRECTORIES = (
    "the times of the directories of {source} do not tell whether an entry has come or gone ({why}), so a saved list of"
    " files proves nothing: each mount scans the source anew"
)
ALL_EMPTY = (
    "all {files} files of {source} have size 0: if that is wrong, what they have is read past the caches, straight from"
    " the source; mount it with a client that knows the sizes, for anything to be cached"
)
UNSIZED = (
    "{files} of {source} (the first: {path}) have another number of bytes than their size says: they are read past the"
    " caches, straight from the source, and never fetched ahead"
)
FAILED_WAY_OUT = "read it below {source} to see whether the source gives it"
FAILED_COVERED = "the log says more of the source"


def unreadable_words(count: int, first: str, source: str, mountpoint: str, number: int) -> str:
    """Says that directories of the source could not be read when it was scanned. `number`: the first one's errno."""
    which = f"the directory {first}" if count == 1 else f"{count:,} directories (the first of them: {first})"
    way_out = NOT_ALLOWED if number in (errno.EACCES, errno.EPERM) else DOES_NOT_WORK
    error = os.strerror(number)
    said = UNREADABLE.format(which=which, source=source, error=error, way_out=way_out, mountpoint=mountpoint)
    return printable(said)


def doubt_words(now: SourceStatistics, source: str) -> list[str]:
    """Says what of the source's words is not so."""
    said, times, shown = [], now.times, printable(source)
    lying = [name for name, proves in (("mtime", times.mtime), ("ctime", times.ctime)) if not proves]
    if lying:
        left = "its size alone" if len(lying) > 1 else f"its size and {'ctime' if lying[0] == 'mtime' else 'mtime'}"
        moves = MOVE_BOTH if len(lying) > 1 else MOVES
        said.append(moves.format(times=" and ".join(lying), source=shown, left=left))
    if times.directories:
        said.append(DIRECTORIES.format(source=shown, why=times.directories))
    if now.unsized:
        files = "a file" if now.unsized == 1 else f"{now.unsized:,} files"
        words = UNSIZED if now.unsized > 1 else UNSIZED.replace(" (the first: {path}) have", " ({path}) has")
        said.append(words.format(files=files, source=shown, path=printable(now.first_unsized)))
    return said


def size_words(files: int, total_bytes: int, source: str) -> list[str]:
    """Says that no file has a size, of a source that has files."""
    return [ALL_EMPTY.format(files=f"{files:,}", source=printable(source))] if files and not total_bytes else []


def source_words(now: MountStatistics) -> list[str]:
    """Says what is wrong with the source; nothing where all is well."""
    root, source = now.source.root, printable(now.about.source)
    said = []
    if now.about.unreadable:
        about = now.about
        what = about.unreadable, about.first_unreadable, about.source, about.mountpoint, about.unreadable_errno
        said.append(unreadable_words(*what))
    said += doubt_words(now.source, now.about.source)
    said += size_words(now.engine.tree.files, now.engine.tree.bytes, now.about.source)
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
        told = {"ago": in_words(failed.ago_s), "path": printable(failed.path), "error": failed.error}
        said.append(FAILED.format(reads=_reads(failed.count), way_out=way_out, **told))
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


# -- what a status says of a source that has changed its form, and of the last refresh
#
# In: frozen figures. Out: plain dicts, and lines for people.

ADDED = "added since the scan: {first}{more} (`mlfs refresh {mountpoint}` shows what is at the source now)"
OUTDATED = (
    "job {name}: registered over {samples:,} samples, the data set has {now:,} now, or others: it goes on in the order"
    " of those that it was registered with (mlfs register it anew when the script reads the new ones)"
)
LOST = (
    "job {name}: registered over {samples:,} samples, and its data set cannot be found any more: {why} (mlfs register"
    " it anew when the script reads another one)"
)
REFRESH_FAILED = "the last refresh of {path} failed: {remark}"


def refresh_status(now: MountStatistics) -> dict[str, object]:
    """The last refresh, and what was found at the source and is not in the view."""
    missed = {"added_since_scan": now.misses.added, "first_added": list(now.misses.first), "looks": now.misses.looks}
    return asdict(now.refresh) | missed


def refresh_words(now: MountStatistics) -> list[str]:
    """Says what a person should know of a refresh."""
    said = [now.about.links] if now.about.links else []
    if now.misses.added:
        more = now.misses.added - len(now.misses.first)
        others = f" and {more:,} more" if more > 0 else ""
        about = {"first": ", ".join(now.misses.first), "more": others, "mountpoint": now.about.mountpoint}
        said.append(ADDED.format(**about))
    if now.refresh.state == "failed":
        where = f"{now.about.mountpoint}/{now.refresh.path}" if now.refresh.path else now.about.mountpoint
        said.append(REFRESH_FAILED.format(path=where, remark=now.refresh.remark))
    said += [(OUTDATED if job.now >= 0 else LOST).format(**asdict(job)) for job in now.refresh.outdated]
    return said
