"""The checksum under which the bytes of a sample travel: over the bytes, and over which version of which sample they
are. So what an owner sends for another sample, or of another version, is not believed either.

Pure. In: a sample's bytes, its number and version. Out: 64 bits (XXH3).
"""

from __future__ import annotations

import struct

import xxhash

from mlfs.tree.samples import Version

_ABOUT = struct.Struct("<qqqq")


def checksum(data: bytes | bytearray | memoryview, sample: int, version: Version) -> int:
    """The checksum of a sample's bytes."""
    seed = xxhash.xxh3_64_intdigest(_ABOUT.pack(sample, *version))
    return xxhash.xxh3_64_intdigest(data, seed)
