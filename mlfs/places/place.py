"""The contract of a place: where the bytes of a sample can be got.

In: a sample's id and the version that is wanted. Out: its content, or None. A mount has several places, known by their
numbers (`Places`): 0 is the source, then come the tiers in the order given. The source has every sample and is the
truth; a place that stores (`StoringPlace`) has those that it was given to keep and has not lost.

All methods block, are thread-safe, and are called from worker threads only. Every kind of place passes
tests/places/place_contract.py.
"""

from __future__ import annotations

import errno
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, overload, runtime_checkable

from mlfs.places import cache_directory
from mlfs.places.catalogue import CopyKind
from mlfs.places.left_pieces import leave, take_up
from mlfs.places.on_disk import OnDisk
from mlfs.places.open_files import MOST_UNUSED, OpenFiles
from mlfs.places.pieces import Pieces, Spill
from mlfs.places.posix import UNSIZED, PosixFile, PosixSource
from mlfs.places.ram import RamTier
from mlfs.places.showcase import Showcase
from mlfs.places.tier import GivesRanges, KeyedCopy, SharedTier, Tier
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.scheduler.config import SOURCE
from mlfs.tree.attributes import Rights
from mlfs.tree.manifest import clamp_ns
from mlfs.tree.samples import Samples, Version

__all__ = [
    "SOURCE",
    "Bytes",
    "Content",
    "Copy",
    "FileChange",
    "PeerPlace",
    "Place",
    "PlaceKind",
    "PlaceStatistics",
    "Places",
    "SharedPlace",
    "SourcePlace",
    "StoringPlace",
    "TierPlace",
    "Want",
]

Bytes = bytes | bytearray | memoryview


class FileChange(NamedTuple):
    """The attributes of a source file that are no longer those of the manifest."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    rights: Rights | None = None
    blocks: int | None = None


class Content(NamedTuple):
    """A sample's bytes.

    Attributes:
        data: all of them; fewer than the sample's length only where a source file has become too short.
        version: which content that is. `version.size_bytes` is `len(data)`.
        changed: the source file's attributes, if they were found to differ from the manifest's.
        read_before_bytes: of the data, what the source gave earlier, for reads of ranges.
    """

    data: Bytes
    version: Version
    changed: FileChange | None = None
    read_before_bytes: int = 0


class RangeOfSample(NamedTuple):
    """A range of a sample's bytes.

    Attributes:
        given_bytes: how many of them the source gave just now. whole: the sample, if all of it was read by now.
    """

    data: bytes | memoryview
    given_bytes: int
    whole: Content | None


class Want(NamedTuple):
    """A sample that another node shall give."""

    node: int
    sample: int
    version: Version


class Copy(NamedTuple):
    """A sample's content for a place to keep."""

    sample: int
    version: Version
    data: Bytes


@runtime_checkable
class Place(Protocol):
    """A place where bytes of samples can be got."""

    @property
    def kind(self) -> PlaceKind:
        """The material of the place."""

    @property
    def name(self) -> str:
        """`pfs`, `ram`, `ssd:DIRECTORY` or `lmdb:DIRECTORY`; no two places of a mount have the same."""

    def get(self, sample: int, version: Version) -> Content | None:
        """The sample's content, or None where the place does not have this version of it.

        The source answers with the version that it has now, whichever was asked for.

        Raises: OSError, the source only.
        """


@runtime_checkable
class StoringPlace(Place, Protocol):
    """A place that keeps what it is given, within a budget. It may lose anything at any time.

    Invariant: `used_bytes <= capacity_bytes` at every moment.
    """

    def keep(self, copies: Sequence[Copy]) -> list[bool]:
        """Keep copies, each in place of any older version of its sample; says for each whether it is kept.

        A sample that is not kept is not held in an older version either. Never raises for the medium.
        """

    def contains(self, sample: int) -> bool:
        """Whether a copy of any version is believed to be held: a look-up in memory."""

    def drop(self, sample: int) -> None:
        """Forget the sample's copy if there is one."""

    @property
    def capacity_bytes(self) -> int:
        """The budget given by the user."""

    @property
    def used_bytes(self) -> int:
        """The bytes that the copies held now occupy, overheads and rounding included."""

    def footprint_bytes(self, size_bytes: int) -> int:
        """The bytes that a sample of `size_bytes` would occupy."""

    @property
    def largest_bytes(self) -> int:
        """The length of the largest sample that is kept here; 0 for no limit."""

    @property
    def errors(self) -> int:
        """Failures of the medium and damaged copies since the start."""

    @property
    def refusal(self) -> str:
        """The reason why the medium takes no copies just now, in words; empty when it does."""

    def close(self) -> None:
        """Release resources. A persistent place keeps its copies for the next mount."""


class PeerPlace(Place, Protocol):
    """Another node. Samples that it owns may be asked for ahead, so that many are under way at once.

    The one class for it is in `mlfs.peers`, which knows places and is not known by them.
    """

    def ahead(self, wanted: Sequence[tuple[int, Version]]) -> Sequence[Want]:
        """Ask for samples that will be wanted soon. For what is returned `no_longer` has to follow."""

    def no_longer(self, wants: Sequence[Want]) -> None:
        """A sample that was asked for ahead is not wanted any more, or was got."""


@dataclass(frozen=True, slots=True)
class PlaceStatistics:
    """How full a place that stores is, how often its medium failed, and why it takes no copies just now, if so."""

    kind: PlaceKind = field(metadata={"key": "class"})
    name: str
    capacity_bytes: int
    used_bytes: int
    errors: int
    refusal: str = field(default="", metadata={"key": None})


class SourcePlace:
    """The source as a place: it has every sample.

    Args:
        source: the file system behind the mount, over the samples' manifest.
        samples: where the samples lie in its files.
        pieces_bytes: memory for ranges that were read before their samples were wanted whole. spills: where more of
            them may lie.
        most_unused: descriptors that stay open for the next reader.

    Attributes:
        files: the files that are open for reads of ranges. pieces: such ranges, until the whole sample is there.
    """

    kind: Final = PlaceKind.SOURCE
    name: Final = PlaceKind.SOURCE.value

    def __init__(
        self,
        source: PosixSource,
        samples: Samples,
        pieces_bytes: int = 16 << 20,
        most_unused: int = MOST_UNUSED,
        spills: Sequence[Spill] = (),
    ) -> None:
        self._source = source
        self._samples = samples
        self.files = OpenFiles(source, most_unused)
        self.pieces = Pieces(pieces_bytes, spills)
        self._spills = spills
        for spill in spills:
            take_up(self.pieces, spill, samples)

    def get(self, sample: int, version: Version) -> Content:
        """Raises: as `read`."""
        return self.read(sample)

    def read(self, sample: int, close_later: bool = False) -> Content:
        """Reads the sample as the source has it now. `close_later`: the file may stay open until `close_read`, which
        has to follow.

        Raises: OSError; FileNotFoundError when the file is gone, ESTALE when it keeps changing; UNSIZED.
        """
        samples = self._samples
        entry = samples.file_of(sample)
        if samples.is_whole_file(sample):
            found = self._source.read_whole(entry, close_later)
            change = FileChange(found.size, found.mtime_ns, found.ctime_ns, found.rights) if found.changed else None
            times = samples.manifest.times.version(found.mtime_ns, clamp_ns(found.ctime_ns))
            return Content(found.data, Version(found.size, *times), change)
        try:
            return self._read_part(sample, entry)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        return self._read_part(sample, entry)  # it was written since somebody opened it: what it has now

    def _read_part(self, sample: int, entry: int) -> Content:
        samples = self._samples
        with self.files.using(entry) as opened:
            if opened.unsized:
                raise OSError(*UNSIZED)  # a part may be cut
            first, size_bytes = samples.offset_of(sample), samples.length_of(sample)
            version = self._version(opened, min(size_bytes, max(0, opened.version.size - first)))
            data, read_bytes = self.pieces.whole(sample, version, lambda at, size: opened.read(first + at, size))
            change = None
            if opened.changed:
                change = FileChange(opened.version.size, opened.version.mtime_ns, opened.ctime_ns, opened.rights)
            return Content(data, version, change, len(data) - read_bytes)

    def read_range(self, sample: int, offset: int, size: int, part_bytes: int = 0) -> RangeOfSample:
        """Reads a range of a sample that is part of a file. Raises: as `read_ranges`. `part_bytes`: see
        `Pieces.range`."""
        return self.read_ranges(((sample, offset, offset + size),), part_bytes)[0]

    def read_ranges(
        self, parts: Sequence[tuple[int, int, int]], part_bytes: int = 0, at_once: Callable[[bytes], None] | None = None
    ) -> list[RangeOfSample]:  # fmt: skip
        """Reads ranges of samples that are parts of a file, each a sample, its begin and end there. They follow each
        other in the file, and where nothing of these samples is there yet they are one read of the source.

        Args:
            part_bytes, at_once: see `Pieces.range`; the latter gets all of it, before the last range is remembered.

        Raises: OSError; ESTALE when the file is not as the manifest has it; UNSIZED.
        """
        samples, pieces, found = self._samples, self.pieces, list[RangeOfSample]()
        with self.files.using(samples.file_of(parts[0][0])) as opened:
            if opened.unsized:
                raise OSError(*UNSIZED)
            if opened.changed:
                raise OSError(errno.ESTALE, "the file changed at the source since it was opened")
            start, together = 0, b""
            if len(parts) > 1 and not any(pieces.of(sample) for sample, _, _ in parts):
                start = samples.offset_of(parts[0][0]) + parts[0][1]
                together = opened.read(start, sum(end - begin for _, begin, end in parts))
            for number, (sample, begin, end) in enumerate(parts, 1):
                version, first = self._version(opened, samples.length_of(sample)), samples.offset_of(sample)

                def read(at: int, size: int, first: int = first) -> bytes:
                    at += first
                    return together[at - start : at - start + size] if together else opened.read(at, size)

                def answer(data: bytes) -> None:
                    if at_once is not None:
                        at_once(b"".join([*(one.data for one in found), data]) if found else data)

                is_last = number == len(parts)
                data, given_bytes, whole = pieces.range(
                    sample, version, begin, end, read, part_bytes, answer if is_last and at_once is not None else None
                )
                content = Content(whole, version) if whole is not None else None
                found.append(RangeOfSample(data, given_bytes, content))
        return found

    def _version(self, opened: PosixFile, size_bytes: int) -> Version:
        times = self._samples.manifest.times.version(opened.version.mtime_ns, clamp_ns(opened.ctime_ns))
        return self._samples.version_of_part(Version(opened.version.size, *times), size_bytes)

    def close_ranges(self) -> None:
        """Close the files that are open for reads of ranges, and leave what they gave to the next mount."""
        self.files.close()
        on_disk = next((spill for spill in self._spills if spill.leave is not None), None)
        if on_disk is None or leave(self.pieces, on_disk, self._samples):
            self.pieces.close()

    def close_read(self) -> None:
        """Close the files that `get` left open, those of other threads too."""
        self._source.close_read()


class TierPlace:
    """A tier as a place: what it keeps under keys, this finds by samples.

    Args:
        kind: what the tier is made of.
        tier: the store; closed with this place.
        samples: the samples' keys.
        largest_bytes: the length of the largest sample that is kept there; 0 for no limit.
        showcase: told of what this node's agent may give to others; None where there never is one.
    """

    def __init__(
        self, kind: PlaceKind, tier: Tier, samples: Samples, largest_bytes: int = 0, showcase: Showcase | None = None
    ) -> None:
        self.kind: Final = kind
        self.name: Final = tier.name
        self.largest_bytes: Final = largest_bytes
        self.tier: Final = tier
        self._gives_ranges = tier if isinstance(tier, GivesRanges) else None  # each such question takes 25 us
        self._samples = samples
        self._showcase = showcase

    def get(self, sample: int, version: Version) -> Content | None:
        data = self.tier.get(self._samples.key(sample), version)
        return None if data is None else Content(data, version)

    def get_range(self, sample: int, version: Version, offset: int, size: int) -> Bytes | None:
        """A range of the sample's content; None where the place does not have this version, or gives no ranges."""
        if self._gives_ranges is None:
            return None
        return self._gives_ranges.get_range(self._samples.key(sample), version, offset, size)

    def keep(self, copies: Sequence[Copy]) -> list[bool]:
        """Keeps them in as few writes as the tier can do it in."""
        if len({copy.sample for copy in copies}) < len(copies):  # the last copy of a sample is the one that counts
            return [self.keep([copy])[0] for copy in copies]
        kept = [not self.largest_bytes or len(copy.data) <= self.largest_bytes for copy in copies]
        fitting = []
        for copy, fits in zip(copies, kept, strict=True):
            key = self._samples.key(copy.sample)
            if fits:
                fitting.append(KeyedCopy(key, copy.version, memoryview(copy.data)))
            else:
                self.tier.drop(key)
        answers = iter(self.tier.put_all(fitting))
        kept = [fits and next(answers) for fits in kept]
        if self._showcase is not None and self._showcase.is_open:
            for copy, is_kept in zip(copies, kept, strict=True):
                if is_kept:
                    self.show(copy)
        return kept

    def show(self, copy: Copy) -> None:
        """Show the agent a copy that this place keeps, and whose version the source has been seen to have."""
        if self._showcase is None:
            return
        key = self._samples.key(copy.sample)
        if self.kind in (PlaceKind.SSD, PlaceKind.LMDB):
            first, second = struct.unpack("<QQ", cache_directory.key_digest(key))
            kind = CopyKind.SSD if self.kind is PlaceKind.SSD else CopyKind.LMDB
            self._showcase.kept(copy.sample, kind, (first, second), copy.version, copy.data)
        elif isinstance(self.tier, RamTier) and (where := self.tier.where(key, copy.version)) is not None:
            self._showcase.kept(copy.sample, CopyKind.RAM, where, copy.version, copy.data)

    @property
    def most_bytes_from_elsewhere(self) -> int:
        """The length of the largest copy that other processes may write into the tier now, if it is a SharedTier. They
        may write none (-1) while an agent has to be told what is in it."""
        if self._showcase is not None and self._showcase.is_open:
            return -1
        return self.largest_bytes or sys.maxsize

    def contains(self, sample: int) -> bool:
        return self.tier.contains(self._samples.key(sample))

    def drop(self, sample: int) -> None:
        if self._showcase is not None:
            self._showcase.lost(sample)
        self.tier.drop(self._samples.key(sample))

    @property
    def capacity_bytes(self) -> int:
        return self.tier.capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self.tier.used_bytes

    def footprint_bytes(self, size_bytes: int) -> int:
        return self.tier.footprint_bytes(size_bytes)

    @property
    def errors(self) -> int:
        return self.tier.errors

    @property
    def refusal(self) -> str:
        return self.tier.refusal if isinstance(self.tier, OnDisk) else ""

    def close(self) -> None:
        self.tier.close()


class SharedPlace(NamedTuple):
    """A place that other processes write to and read from.

    Attributes:
        first_fd: the number of its first descriptor, among those of all such places of a mount.
    """

    place: TierPlace
    tier: SharedTier
    first_fd: int


class Places(Sequence[Place]):
    """The places of a mount by number: 0 (`SOURCE`) is the source, then the tiers in the order given, then the peers.

    Attributes:
        source: place 0.
        storing: the others: place `n` is `storing[n - 1]`.
        kinds: of each place, peers among them; workers read it.
        shared: those that other processes of this mount write to and read from, by number.
    """

    def __init__(self, source: SourcePlace, storing: Sequence[StoringPlace] = ()) -> None:
        self.source: Final = source
        self.storing: Final = tuple(storing)
        self._peers: tuple[PeerPlace, ...] = ()
        self._all: tuple[Place, ...] = (source, *self.storing)
        self.kinds = tuple(place.kind for place in self._all)
        self.shared: Final[dict[int, SharedPlace]] = {}
        fds = 0
        for number, place in enumerate(self.storing, 1):
            if isinstance(place, TierPlace) and isinstance(place.tier, SharedTier):
                self.shared[number] = SharedPlace(place, place.tier, fds)
                fds += len(place.tier.shared_fds)
        if len({place.name for place in self._all}) < len(self._all):
            raise ValueError("two places of a mount have the same name")

    def join(self, peers: Sequence[PeerPlace]) -> None:
        """Other nodes are places from now on, behind those that are there, or in place of those that were joined."""
        self._peers = tuple(peers)
        self._all = (self.source, *self.storing, *peers)
        self.kinds = tuple(place.kind for place in self._all)

    def peer(self, number: int) -> PeerPlace | None:
        """The place as a peer, None if it is none."""
        at = number - 1 - len(self.storing)
        return self._peers[at] if 0 <= at < len(self._peers) else None

    @overload
    def __getitem__(self, number: int) -> Place: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Place, ...]: ...
    def __getitem__(self, number: int | slice) -> Place | tuple[Place, ...]:
        return self._all[number]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._all)

    def statistics(self) -> tuple[PlaceStatistics, ...]:
        """Frozen figures of the places that store, in the order of their numbers."""
        return tuple(
            PlaceStatistics(place.kind, place.name, place.capacity_bytes, place.used_bytes, place.errors, place.refusal)
            for place in self.storing
        )

    def close(self) -> None:
        """Close the places that store. The source belongs to the caller, who closes it."""
        self.source.close_ranges()
        for place in self.storing:
            place.close()
