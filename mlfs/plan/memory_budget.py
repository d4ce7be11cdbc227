"""Divides the memory that a mount may use: RAM class, staging window, buffers, and the daemon itself.

Pure. In: the limit, what others use of it, what the user asked for. Out: bytes for each part. Called by `mlfs.config`.
By default all parts together stay below the limit. The kernel takes pages back from a cgroup that is over its high
mark, and the window consists of such pages. In a cgroup that is at its limit it kills a process.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20
# The daemon takes this beside all that is counted here: the interpreter and its libraries (45 MiB resident after a
# start), what the kernel keeps for it, and the manifest of some hundred thousand files.
OWN_BYTES = 64 * MIB
# The default window is a tenth of the memory within these bounds: less would hold few samples ahead of the readers, and
# more than a few seconds of reads ahead gains nothing and takes memory from the caches.
LEAST_DEFAULT_WINDOW_BYTES = 64 * MIB
MOST_DEFAULT_WINDOW_BYTES = 2048 * MIB
# Samples that are fetched and not yet kept, and contents that several READs ask for: an eighth of what is left, and no
# more than what full speed needs.
MOST_BUFFER_BYTES = 128 * MIB
LEAST_BUFFER_BYTES = 4 * MIB
# Below that a mount would only get in the way of itself.
LEAST_ROOM_BYTES = 16 * MIB
# A sixteenth of what is left stays free: samples come in whole pages, and others use a little more now and then.
MARGIN = 16


class BudgetShares(NamedTuple):
    """Bytes for each part; `room_bytes` is what there is for all of them."""

    ram_bytes: int
    window_bytes: int
    buffer_bytes: int
    room_bytes: int

    @property
    def fits(self) -> bool:
        """Whether all parts together stay within what there is."""
        return self.ram_bytes + self.window_bytes + self.buffer_bytes <= self.room_bytes


def divide(
    limit_bytes: int, used_bytes: int, ram_bytes: int | None = None, window_bytes: int | None = None
) -> BudgetShares:
    """Divide what a limit leaves. `ram_bytes` and `window_bytes` where the user asked for so much, whether it fits or
    not: see `BudgetShares.fits`."""
    room = max(0, limit_bytes - used_bytes - OWN_BYTES)
    usable = room - room // MARGIN
    buffers = max(LEAST_BUFFER_BYTES, min(MOST_BUFFER_BYTES, usable // 8))
    left = max(0, usable - buffers)
    if window_bytes is None:
        wanted = max(LEAST_DEFAULT_WINDOW_BYTES, min(MOST_DEFAULT_WINDOW_BYTES, limit_bytes // 10))
        beside_ram = left if ram_bytes is None else max(0, left - ram_bytes)
        # In little memory half is for the window: without it nothing is fetched ahead.
        window_bytes = max(MIB, min(wanted, beside_ram // 2 if ram_bytes is None else beside_ram))
    if ram_bytes is None:
        ram_bytes = max(0, min(limit_bytes // 2, left - window_bytes))
    return BudgetShares(ram_bytes, window_bytes, buffers, room)
