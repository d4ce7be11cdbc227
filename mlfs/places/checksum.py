"""The checksum of a sample's bytes on their way between nodes.

It is over the bytes, the sample's number and its version: bytes of another sample or version are not believed either.

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
