"""Writes many directory entries at once into pyfuse3's ReaddirToken, which takes them one by one only.

In: the token of a READDIRPLUS request, records as mountd.dirents builds them. Out: whether they are in the reply. The
token is a C structure (pyfuse3's handlers.pxi: request, start of the buffer, place in it, bytes left). Whether it
looks as expected is checked on each token, with an entry of a known length, before anything is written; if it does
not, nothing is, and the caller goes on entry by entry. Called by channel_pyfuse3.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from mountd.dirents import HEAD_WORDS, Records

_OBJECT_BYTES = object.__basicsize__
_WORDS = ctypes.c_uint64 * 4
_PROBE_NAME = b"probe"
_PROBE_POSITION = 0x5EED_0FF5
_PROBE_BYTES = 8 * (HEAD_WORDS + 1)
_POSITION_WORD = 17  # of a record: `off` of struct fuse_dirent


def put_records(token: Any, reply: Callable[..., bool], blank: Any, records: Records, start: int) -> bool:
    """Fill the reply with the records from child `start` on; False when that cannot be done, and nothing was.

    Args:
        reply: pyfuse3.readdir_reply. blank: an EntryAttributes for an entry that is overwritten.
    """
    if type(token).__basicsize__ != _OBJECT_BYTES + ctypes.sizeof(_WORDS):
        return False
    words = _WORDS.from_address(id(token) + _OBJECT_BYTES)
    if words[1] or not reply(token, _PROBE_NAME, blank, _PROBE_POSITION):
        return False
    _, buffer, place, left = words
    total = left + _PROBE_BYTES
    written = ctypes.c_uint64.from_address(buffer + 8 * _POSITION_WORD) if place - buffer == _PROBE_BYTES else None
    if written is None or written.value != _PROBE_POSITION:
        raise TypeError("pyfuse3's ReaddirToken is not what it was")
    begin, end = records.part(start, total)
    ctypes.memmove(buffer, records.data.ctypes.data + begin, end - begin)
    words[2], words[3] = buffer + end - begin, total - (end - begin)
    return True
