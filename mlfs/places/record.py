"""The bytes of one copy on disk: a head, the sample's key, the sample's data. Both stores on disk use them.

In: key, version and data from a tier that stores them, or the bytes that a tier read back, and the user's secret. Out:
the bytes to store, or the data if every byte is right and was written by somebody who has the secret. Pure: no I/O.
Called by `ssd`, `lmdb_store` and `cache_admin`.

Numbers are little-endian. By offset and length in bytes:

     0   6  `mlfs-s`
     6   2  format: 3
     8   8  id of the secret: BLAKE3 in its mode of deriving keys, over the secret
    16  16  body sum: BLAKE3 keyed with the secret, of everything from offset 32 to the end, proves who wrote it
    32   8  head sum: XXH3-64 of everything from offset 40 to the data; keys can be listed without reading the data
    40   2  length of the key, at most 4096
    42   2  offset of the data: 256 in files, 144 in LMDB values, or right behind a key that reaches further
    44   4  modification time of the source file: nanoseconds, 0 to 999,999,999
    48   8  length of the data
    56   8  size of the source file
    64   8  modification time of the source file: seconds since 1970, signed
    72   8  change time (ctime) of the source file: nanoseconds since 1970, signed, bounded to 64 bits
    80      the key, then zeros up to the data, then the data to the end
"""

from __future__ import annotations

import struct
from functools import partial
from typing import NamedTuple

import xxhash
from blake3 import blake3

from mlfs.places.known_copy import BODY_AT as _BODY_START
from mlfs.places.known_copy import SUM_AT as _BODY_SUM_AT
from mlfs.places.known_copy import sealed
from mlfs.places.secret import Secret
from mlfs.places.tier import Version

MAGIC = b"mlfs-s"
FORMAT = 3
# magic, format, id of the secret, body sum, head sum, key length, data offset, mtime's nanoseconds, data length, size
# of the source file, mtime's seconds, ctime. The mtime is split because nanoseconds leave 64 bits in the year 2262, and
# file systems do not. ctime is as the manifest has it, which bounds it.
_HEAD = struct.Struct("<6sH8s16sQHHIQQqq")
HEAD_BYTES = _HEAD.size
_SUM_BYTES = 16  # nobody finds two copies with one sum, or the sum of a copy without the secret
_HEAD_START = 40  # the head sum covers everything behind itself up to the data
MAX_KEY_BYTES = 4096  # PATH_MAX: no path of the source can be longer
MAX_HEAD_BYTES = HEAD_BYTES + MAX_KEY_BYTES
_NS = 10**9


class DamagedCopy(Exception):
    """The bytes are not those that were stored. The message says how that is known."""

    kind = "damaged copy"


class ForeignCopy(DamagedCopy):
    """The copy was written with another secret: by somebody else, or before this user's secret was lost."""

    kind = "copies made with another key"


class OtherCopy(Exception):
    """The head is sound, but the copy is of another version or another key."""


class OldCopy(OtherCopy):
    """The copy is of an earlier version of mlfs, which did not know all that this one compares: as good as none."""


class Head(NamedTuple):
    """The head of a copy."""

    key: bytes
    version: Version
    data_offset: int
    data_bytes: int


def data_offset(key_bytes: int, floor_bytes: int) -> int:
    """The offset at which the data starts. It is `floor_bytes` for keys of usual length, so that they all occupy the
    same."""
    return max(floor_bytes, HEAD_BYTES + key_bytes)


def pack_head(key: bytes, version: Version, data: memoryview, floor_bytes: int, secret: Secret) -> bytes:
    """Return all bytes that go before `data`, checksums over them and `data` included.

    Raises: as `head_without_sum`.
    """
    head = head_without_sum(key, version, data.nbytes, floor_bytes, secret)
    return sealed(head, data, partial(blake3, key=secret.value))


def head_without_sum(key: bytes, version: Version, data_bytes: int, floor_bytes: int, secret: Secret) -> bytes:
    """The same with zeros in place of the body sum: whoever has the data adds it (`mlfs.places.known_copy`).

    Raises ValueError for a key longer than MAX_KEY_BYTES: tiers refuse those before.
    """
    if len(key) > MAX_KEY_BYTES:
        raise ValueError(f"key of {len(key)} bytes")
    offset = data_offset(len(key), floor_bytes)
    seconds, nanoseconds = divmod(version.mtime_ns, _NS)
    fields = (len(key), offset, nanoseconds, data_bytes, version.size_bytes, seconds, version.ctime_ns)
    tail = _HEAD.pack(MAGIC, FORMAT, b"", b"", 0, *fields)[_HEAD_START:] + key
    tail += bytes(offset - _HEAD_START - len(tail))
    head_sum = xxhash.xxh3_64_intdigest(tail).to_bytes(8, "little")
    return MAGIC + FORMAT.to_bytes(2, "little") + secret.id + bytes(_SUM_BYTES) + head_sum + tail


def read_head(blob: bytes | memoryview, secret: Secret) -> Head:
    """Return what the head says, checked by its own sum. `blob` may end anywhere behind the head.

    The head sum finds damage and no forgery: data is believed after `data_of` or `read_whole` only. Raises DamagedCopy,
    or OldCopy.
    """
    fields = _fields(blob, secret)
    _, _, _, _, head_sum, key_bytes, offset, nanoseconds, data_bytes, size_bytes, seconds, ctime_ns = fields
    if not HEAD_BYTES + key_bytes <= offset <= len(blob):
        raise DamagedCopy("truncated")
    view = memoryview(blob)
    if xxhash.xxh3_64_intdigest(view[_HEAD_START:offset]) != head_sum:
        raise DamagedCopy("wrong checksum of the header")
    key = bytes(view[HEAD_BYTES : HEAD_BYTES + key_bytes])
    return Head(key, Version(size_bytes, seconds * _NS + nanoseconds, ctime_ns), offset, data_bytes)


def read_whole(blob: bytes | memoryview, secret: Secret) -> Head:
    """Return the head of a whole copy after checking every byte of it. Raises DamagedCopy or OldCopy."""
    head = read_head(blob, secret)
    _check_body(blob, head.data_offset + head.data_bytes, secret)
    return head


def data_of(blob: bytes | memoryview, key: bytes, version: Version, secret: Secret) -> memoryview:
    """Return the data of a whole copy if it is exactly this version of this key, without copying.

    Raises DamagedCopy or OtherCopy. A copy that claims another version is checked by its head only: its data will not
    be used, and a flipped bit in the head must count as damage.
    """
    _, _, _, _, _, key_bytes, offset, nanoseconds, data_bytes, size_bytes, seconds, ctime_ns = _fields(blob, secret)
    same_key = key_bytes == len(key) and bytes(blob[HEAD_BYTES : HEAD_BYTES + key_bytes]) == key
    if not same_key or (size_bytes, seconds * _NS + nanoseconds, ctime_ns) != version:
        read_head(blob, secret)
        raise OtherCopy
    _check_body(blob, offset + data_bytes, secret)
    return memoryview(blob)[offset:]


def _fields(
    blob: bytes | memoryview, secret: Secret
) -> tuple[bytes, int, bytes, bytes, int, int, int, int, int, int, int, int]:
    if len(blob) < HEAD_BYTES:
        raise DamagedCopy("truncated")
    fields: tuple[bytes, int, bytes, bytes, int, int, int, int, int, int, int, int] = _HEAD.unpack_from(blob)
    if fields[0] == MAGIC and 0 < fields[1] < FORMAT:
        raise OldCopy("made by an earlier version of mlfs")
    if fields[0] != MAGIC or fields[1] != FORMAT:
        raise DamagedCopy("not a copy made by this version of mlfs")
    if fields[2] != secret.id:
        raise ForeignCopy("they are read from the source again")
    return fields


def _check_body(blob: bytes | memoryview, length_bytes: int, secret: Secret) -> None:
    if len(blob) != length_bytes:
        raise DamagedCopy("wrong length")
    said = bytes(blob[_BODY_SUM_AT : _BODY_SUM_AT + _SUM_BYTES])
    if blake3(memoryview(blob)[_BODY_START:], key=secret.value).digest(_SUM_BYTES) != said:
        raise DamagedCopy("wrong checksum")
