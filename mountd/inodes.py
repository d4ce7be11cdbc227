"""Inode and handle numbers of a mount: plain arithmetic, so no table grows and a new server would use the same numbers.

Inodes: 1 is the root, entry + 1 a manifest entry as the scan found it. Each content that a file has since then is an
inode of its own (docs/decisions/nodeids.md): its number carries the generation above FIRST_CHANGED. Virtual files (the
control directory) start at FIRST_VIRTUAL. Handles of data files carry the entry and the generation of its content;
large and virtual files have counted handles.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlfs.engine.ranges import FIRST_LARGE_HANDLE, PASSED_ON

ROOT_INODE = 1
FIRST_CHANGED = 1 << 32
FIRST_VIRTUAL = FIRST_CHANGED << 16  # a manifest's generations have 16 bits
FIRST_VIRTUAL_HANDLE = FIRST_LARGE_HANDLE << 1
# The handle of a file that the daemon itself opens to see which of its pages are there: no reader has it.
LOOKING_HANDLE = FIRST_VIRTUAL_HANDLE << 1
_GENERATION_SHIFT = 40
_ENTRY_MASK = (1 << _GENERATION_SHIFT) - 1


def inode_of(entry: int, generation: int = 0) -> int:
    """The inode of a manifest entry, of what it has in that generation."""
    return entry + 1 | generation << 32


def entry_of(inode: int) -> int:
    """The manifest entry of an inode below FIRST_VIRTUAL; -1 for a number that is none."""
    return (inode & 0xFFFFFFFF) - 1


def entries_of(inodes: Iterable[int]) -> list[int]:
    return [(inode & 0xFFFFFFFF) - 1 for inode in inodes]


def generation_of(inode: int) -> int:
    """The generation of an inode below FIRST_VIRTUAL."""
    return inode >> 32


def handle_of(entry: int, generation: int) -> int:
    """The handle of an open data file: stateless."""
    return entry | generation << _GENERATION_SHIFT


def handle_without_open(inode: int) -> int:
    """The handle of a file that is opened without a request: all who have it open share it."""
    if inode >= FIRST_VIRTUAL:
        return FIRST_VIRTUAL_HANDLE + inode
    return handle_of(entry_of(inode), generation_of(inode))


def inode_of_virtual(handle: int) -> int:
    """The inode of a virtual file that is opened without a request, by its handle."""
    return handle - FIRST_VIRTUAL_HANDLE


def entry_of_handle(handle: int) -> int:
    """The entry a stateless handle stands for."""
    return handle & _ENTRY_MASK


def is_passed_on(handle: int) -> bool:
    """Whether the kernel must pass each read through this handle of a data file on."""
    return handle >= FIRST_LARGE_HANDLE and bool(handle & PASSED_ON)


def generation_of_handle(handle: int) -> int:
    """The generation of the content it was opened with."""
    return handle >> _GENERATION_SHIFT
