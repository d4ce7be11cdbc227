"""Events as the kernel writes them: fanotify_event_metadata, and fanotify_event_info_fid with a file handle of FUSE."""

from __future__ import annotations

import struct

OPEN, CLOSE, BOTH, LOST = 0x20, 0x10, 0x30, 0x4000


def event(mask: int, inode: int, pid: int) -> bytes:
    """An event. One that says that others were lost has no handle."""
    handle = struct.pack("=BBHQIIIII", 1, 0, 32, 0, 12, 0x81, inode >> 32, inode & 0xFFFFFFFF, 99)
    info = b"" if mask == LOST else handle
    return struct.pack("=IBBHQii", 24 + len(info), 3, 0, 24, mask, -1, pid) + info
