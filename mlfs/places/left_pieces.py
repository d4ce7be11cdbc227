"""Pieces of large files from one mount to the next: they stay in their file on a disk, with a list of what they are.

In: the pieces of a mount that ends, or the list that one has left. Out: the list, or the pieces, under the samples that
have these names now. A list is believed if this user has written it (`SsdTier.leave_ranges`), a piece if it has the sum
that stands there, and is of the version that its file has when somebody reads it.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Final

from mlfs.places.pieces import Left, Pieces, Spill
from mlfs.tree.samples import Samples, Version

# A mount that ends waits so long until its pieces lie on the disk.
LEAVING_S: Final = 10.0


def leave(pieces: Pieces, spill: Spill, samples: Samples) -> bool:
    """Leave pieces to the next mount. Returns whether nothing is under way any more: a disk may hang."""

    def list_them() -> None:
        found = [
            (samples.key(sample).hex(), version, [(*one[:3], one.checksum.hex()) for one in left])
            for sample, version, left in pieces.leave_in(spill)
            if left
        ]
        if found and spill.leave is not None:
            spill.leave(json.dumps(found).encode())

    def run() -> None:
        with suppress(OSError, ValueError, MemoryError):  # the next mount reads them again
            list_them()

    thread = threading.Thread(target=run, name="leave", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return True
    thread.join(LEAVING_S)
    return not thread.is_alive()


def take_up(pieces: Pieces, spill: Spill, samples: Samples) -> None:
    """Take up what the last mount has left: of files that are gone nothing is."""
    for name, version, left in json.loads(spill.take_left() or b"[]"):
        sample = _named(bytes.fromhex(name), samples)
        found = [Left(first, offset, size, bytes.fromhex(checksum)) for first, offset, size, checksum in left]
        if sample >= 0:
            pieces.take_up(spill, sample, Version(*version), found)


def _named(key: bytes, samples: Samples) -> int:
    """The block that has this key; -1 for none."""
    path, _, part = key.rpartition(b"\0")
    entry = samples.manifest.find(path)
    blocks = samples.blocks_of(entry) if entry >= 0 else ()
    number = int(part.partition(b"+")[0]) // max(1, samples.file_blocks.block_bytes)
    return blocks[number] if number < len(blocks) and samples.key(blocks[number]) == key else -1
