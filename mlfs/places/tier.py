"""The contract of a tier: a bounded store on this node that keeps copies of samples under keys.

In: sample bytes with their version, from the engine's worker threads. Out: the same bytes, or None. A tier may lose
anything at any time, which costs time. It must never answer with other bytes than were put under that key and version.
All methods block, are thread-safe, and are called from worker threads only, never from the loop.
Every implementation passes tests/places/tiers/tier_contract.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from mlfs.tree.samples import Version

__all__ = ["GivesRanges", "KeyedCopy", "SharedTier", "Spot", "Tier", "Version"]


class KeyedCopy(NamedTuple):
    """A sample's content to keep, under its key: the arguments of `Tier.put`."""

    key: bytes
    version: Version
    data: memoryview


@runtime_checkable
class GivesRanges(Protocol):
    """A tier that can give a range of a copy for less than all of it."""

    def get_range(self, key: bytes, version: Version, offset: int, size: int) -> bytes | memoryview | None:
        """A range that lies within the copy of exactly this version, verified; None when there is none."""


class Spot(NamedTuple):
    """The place of a copy, there or to come, as a process beside this one has to know it.

    Attributes:
        digest: of the key. file: which of the tier's descriptors. offset: of a copy in memory.
        name, head: of a copy on disk, its file, and what stands in it before the data (`mlfs.places.known_copy`).
        footprint_bytes: what is reserved on the disk.
    """

    digest: bytes
    version: Version
    file: int = 0
    offset: int = 0
    name: str = ""
    head: bytes = b""
    footprint_bytes: int = 0


@runtime_checkable
class SharedTier(Protocol):
    """A tier to which other processes of this mount write copies by themselves, and whose copies they read."""

    @property
    def shared_fds(self) -> list[int]:
        """The descriptors that they need; they belong to the tier."""

    @property
    def shared_secret(self) -> bytes:
        """The secret of copies on disk; empty for those in memory."""

    def begin_elsewhere(self, wanted: Sequence[tuple[bytes, Version]]) -> list[Spot | None]:
        """Room for copies that another process is about to write, by key and version; None for one that does not fit.
        For each spot `put_elsewhere` has to follow."""

    def put_elsewhere(self, written: Sequence[tuple[Spot, bool, int]]) -> list[bool]:
        """The other process has written copies; or it has not, and will not: then their room is given back. Returns
        which of them are kept.

        Args:
            written: each spot, whether all of the copy is there, the errno of the medium, 0 for none.
        """

    def lend(self, wanted: Sequence[tuple[bytes, Version]]) -> list[Spot | None]:
        """Copies for another process to read, by key and version; None for one that is not there. They stay readable
        until `give_back`."""

    def give_back(self, spots: Sequence[Spot]) -> None:
        """The other process does not read them any more."""


@runtime_checkable
class Tier(Protocol):
    """One running storage class.

    Invariant: `used_bytes <= capacity_bytes` at every moment, also in the middle of a put.
    """

    @property
    def name(self) -> str:
        """Class and place, e.g. `ram`, `ssd:/scratch`; unique among the tiers of a mount."""

    @property
    def capacity_bytes(self) -> int:
        """The budget given by the user."""

    @property
    def used_bytes(self) -> int:
        """The bytes that the copies held now occupy, overheads and rounding included."""

    def footprint_bytes(self, size_bytes: int) -> int:
        """The bytes that a sample of `size_bytes` would occupy (header, page or block rounding included)."""

    def put(self, key: bytes, version: Version, data: memoryview) -> bool:
        """Keep a copy of `data` under `key` (the sample's path relative to the source), replacing older versions.

        Returns False, with nothing kept for the key, when it does not fit or the medium refuses (disk full, read-only):
        the tier logs the first such failure and counts all of them in `errors`. Never raises for the medium.
        """

    def put_all(self, samples: Sequence[KeyedCopy]) -> list[bool]:
        """`put` for each in turn, in as few writes as the medium allows; what `put` returns for each."""

    def get(self, key: bytes, version: Version) -> bytes | memoryview | None:
        """Return the copy of exactly this version, verified; None when there is none.

        A copy that is damaged, truncated or of another version is dropped, counted in `errors` (damage only), logged
        once, and None is returned.
        """

    def contains(self, key: bytes) -> bool:
        """Whether a copy (of any version, not verified) is believed to be held. Cheap."""

    def drop(self, key: bytes) -> None:
        """Forget the copy of `key` if there is one."""

    @property
    def errors(self) -> int:
        """Failures of the medium and damaged copies since the start."""

    def close(self) -> None:
        """Release resources; a persistent tier keeps its copies for the next mount."""
