"""A job's access streams: which files each rank reads, in which order, epoch by epoch.

In: a job and the tree. Out: entry ids in read order. The engine asks for its own ranks, the plan and the simulator for
all ranks of the world. Nothing is read but the file of the explicit sampler, and what the caller's hook reads. Any
thread may call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.orders.layouts import samples
from mlfs.orders.layouts.layout import NOTHING, Outside, SampleIds, Tree
from mlfs.orders.layouts.links import Links, Paths
from mlfs.orders.layouts.litdata import find_chunks
from mlfs.orders.order import Order, build_order
from mlfs.orders.served import ServedOrder
from mlfs.orders.split import part_indices
from mlfs.orders.stopping import stoppable
from mlfs.served.refill import Refill

if TYPE_CHECKING:
    from mlfs.job import JobSpec

# Ranks may be in two different epochs, while a third one is prepared.
_EPOCHS_KEPT = 3


class JobStreams:
    """The streams of one job, made when asked for; the last three epochs asked for are kept.

    Attributes:
        spec: the job.
        sample_ids: the tree's entry for each dataset index (of the part that is read, where the data set is split),
            -1 for samples outside of the tree; a row for each, if samples have several files.
        order: the sampler's order over dataset indices.
        files_per_sample: files that a sample takes up in a stream, one after another. Samples with fewer are filled
            up with `NOTHING`, so that batches begin at multiples of `batch_files`.
    """

    def __init__(self, spec: JobSpec, sample_ids: SampleIds, order: Order) -> None:
        self.spec = spec
        self.sample_ids = sample_ids
        self.order = order
        self.files_per_sample = 1 if sample_ids.ndim == 1 else sample_ids.shape[1]
        self._of_epoch = lru_cache(maxsize=_EPOCHS_KEPT)(lambda epoch: dict[int, SampleIds]())  # by rank
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """The job is not wanted any more: what threads compute of its order ends soon, with a StoppedError."""
        self._cancelled.set()

    @property
    def batch_files(self) -> int:
        """Positions of its stream that a rank takes in one step."""
        return self.spec.batch_size * self.files_per_sample

    def length(self, epoch: int) -> int:
        self._check(epoch, 0)
        samples = self.order.stream_length(epoch)
        if self.spec.loader_drop_last:
            samples -= samples % self.spec.batch_size
        return samples * self.files_per_sample

    def epoch_ids(self, epoch: int, rank: int) -> SampleIds:
        """The entries that a rank (any of the world) reads in an epoch, in read order.

        Shape (length(epoch),), read-only. -1 stands for a sample outside of the tree, `NOTHING` (-2) for a place at
        which nothing is read, such as at the end of a rank with fewer samples than others.

        Raises:
            JobError: the order file is missing or wrong.
            ValueError: no such epoch or rank.
        """
        self._check(epoch, rank)
        of_rank = self._of_epoch(epoch)
        ids = of_rank.get(rank)
        if ids is None:  # two threads may both make it; the first one's is kept
            ids = of_rank.setdefault(rank, self.ids_of_ranks(epoch, (rank,))[0])
        return ids

    def ids_of_ranks(self, epoch: int, ranks: Sequence[int]) -> SampleIds:
        """The same of several ranks, a row for each. It is made anew each time, in less time than rank by rank."""
        for rank in ranks:
            self._check(epoch, rank)
        with stoppable(self._cancelled.is_set):
            length = self.order.stream_length(epoch)
            read = length - (length % self.spec.batch_size if self.spec.loader_drop_last else 0)
            ids = np.full((len(ranks), read, *self.sample_ids.shape[1:]), NOTHING, dtype=np.int64)
            for row, rank in zip(ids, ranks, strict=True):
                stream = self.order.rank_stream(epoch, rank)
                if len(stream) > length:
                    message = f"the order of epoch {epoch} has grown while the job runs"
                    raise JobError(message, "register the job again")
                if self.spec.loader_drop_last:
                    stream = stream[: len(stream) - len(stream) % self.spec.batch_size]
                row[: len(stream)] = self.sample_ids[stream]
        ids = ids.reshape(len(ranks), read * self.files_per_sample)
        ids.flags.writeable = False
        return ids

    def dataset_indices(self, epoch: int, rank: int) -> npt.NDArray[np.int64]:
        """The dataset indices that a rank's sampler gives in an epoch, those that the loader drops at the end included.
        Raises as `epoch_ids` does."""
        self._check(epoch, rank)
        with stoppable(self._cancelled.is_set):
            return self.order.rank_stream(epoch, rank)

    def refill(self, epoch: int, ranks: Sequence[int]) -> Refill | None:
        """The fetches of these ranks' node in the order of the tree; None where nothing is read in rounds."""
        if not isinstance(self.order, ServedOrder):
            return None
        entries = [self.epoch_ids(epoch, rank) for rank in ranks]
        with stoppable(self._cancelled.is_set):
            return self.order.refill(epoch, ranks, entries, self.files_per_sample)

    def around(self, order: Order, spec: JobSpec) -> JobStreams:
        """The streams of another job over the same samples, whose own order is given; served, if that job's is."""
        served = self.order.around(order, spec) if isinstance(self.order, ServedOrder) else order
        return JobStreams(spec, self.sample_ids, served)

    def served_figures(self) -> dict[str, float]:
        """The figures of an opportunistic order, once an epoch is known; empty for others."""
        return dict(self.order.figures) if isinstance(self.order, ServedOrder) else {}

    def kept_at(self, n_entries: int) -> npt.NDArray[np.int16] | None:
        """By entry of the tree, the number of the node on whose keeping it a served order rests, -1 for none; None for
        a sampler's own order."""
        if not isinstance(self.order, ServedOrder):
            return None
        kept_at = np.full(n_entries, -1, dtype=np.int16)
        ids = self.sample_ids.reshape(len(self.sample_ids), -1)
        for column in ids.T:
            kept_at[column[column >= 0]] = self.order.kept.node[column >= 0]
        return kept_at

    def _check(self, epoch: int, rank: int) -> None:
        if not 0 <= epoch < self.spec.epochs or not 0 <= rank < self.spec.world_size:
            raise ValueError(
                f"epoch {epoch}, rank {rank}: the job has {self.spec.epochs} epochs, {self.spec.world_size} ranks"
            )


def _sizes(tree: Tree, sample_ids: SampleIds) -> npt.NDArray[np.int64]:
    """Bytes by dataset index: of all files of the sample that lie in the tree."""
    entries = np.maximum(sample_ids, 0)
    are_rows = entries >= len(tree.mode)
    sizes = np.where(sample_ids >= 0, tree.size[np.where(are_rows, 0, entries)], 0)
    if are_rows.any():
        sizes[are_rows] = tree.rows.columns(sample_ids[are_rows])[2]
    return sizes if sizes.ndim == 1 else sizes.sum(axis=1)


def _files(tree: Tree, sample_ids: SampleIds) -> npt.NDArray[np.int64]:
    """The entry of each sample's first file, by dataset index."""
    ids = sample_ids.reshape(len(sample_ids), -1)[:, 0].copy()
    are_rows = ids >= len(tree.mode)
    if are_rows.any():
        ids[are_rows] = tree.rows.columns(ids[are_rows])[0]
    return ids


def _directories(tree: Tree, sample_ids: SampleIds) -> npt.NDArray[np.int64]:
    """A number for the directory of each sample's first file, in the order of their paths, by dataset index; -1 for
    samples elsewhere."""
    first = _files(tree, sample_ids).tolist()
    above = [tree.path(entry).rpartition(b"/")[0] if entry >= 0 else None for entry in first]
    numbers = {path: number for number, path in enumerate(sorted({path for path in above if path is not None}))}
    found = (-1 if path is None else numbers[path] for path in above)
    return np.fromiter(found, dtype=np.int64, count=len(first))


class _PathIndex:
    """Finds the dataset index of a path, for orders that are written as paths."""

    def __init__(self, spec: JobSpec, tree: Tree, links: Links, sample_ids: SampleIds, outside: Outside | None) -> None:
        self._paths = Paths(tree, links, spec.root)
        self._spec, self._tree, self._links, self._outside = spec, tree, links, outside
        self._sample_ids = sample_ids  # rows have no path

    def __call__(self, path: bytes) -> int:
        """The dataset index of a path, relative to the job's root or absolute; -1 when it is not a sample's."""
        entry = self._paths.plain(path)
        index = self._index_of[entry] if entry >= 0 else -1
        if index < 0:  # through a link, with a "..", or absolute: the slow way
            entry = self._paths.followed(path)
            index = self._index_of[entry] if entry >= 0 else -1
        return int(index)

    def sizes(self) -> npt.NDArray[np.int64]:
        return _sizes(self._tree, self._sample_ids)

    def files(self) -> npt.NDArray[np.int64]:
        return _files(self._tree, self._sample_ids)

    def counts(self) -> npt.NDArray[np.int64] | None:
        if self._spec.layout != "litdata":
            return None
        return find_chunks(self._spec, self._tree, self._links, self._outside).counts

    def directories(self) -> npt.NDArray[np.int64]:
        return _directories(self._tree, self._sample_ids)

    @cached_property
    def _index_of(self) -> npt.NDArray[np.int64]:
        """The first dataset index of each entry, -1 for entries that are no samples."""
        index_of = np.full(len(self._tree.mode), -1, dtype=np.int64)
        flat = self._sample_ids.reshape(-1)
        ids, first = np.unique(flat, return_index=True)
        here = (ids >= 0) & (ids < len(index_of))
        index_of[ids[here]] = first[here] // max(1, flat.size // max(1, len(self._sample_ids)))
        return index_of


def samples_of(spec: JobSpec, tree: Tree, source: bytes | None = None, outside: Outside | None = None) -> SampleIds:
    """The data set of a job: the part of the samples that it reads. Args and Raises: as `build_streams`."""
    return _but_cached(spec, _part_of_samples(spec, tree, source, outside))


def _part_of_samples(spec: JobSpec, tree: Tree, source: bytes | None, outside: Outside | None) -> SampleIds:
    sample_ids = samples(spec, tree, source, outside)
    part = part_indices(spec, len(sample_ids), lambda: _directories(tree, sample_ids))
    if part is not None:
        sample_ids = sample_ids[part]
    sample_ids.flags.writeable = False
    return sample_ids


def _but_cached(spec: JobSpec, sample_ids: SampleIds) -> SampleIds:
    """The same without those that the script keeps in memory."""
    if spec.cached_samples is None:
        return sample_ids
    read = sample_ids.copy()
    read[: spec.cached_samples] = NOTHING
    read.flags.writeable = False
    return read


def build_streams(
    spec: JobSpec,
    tree: Tree,
    source: bytes | None = None,
    outside: Outside | None = None,
    check: Callable[[JobStreams], None] | None = None,
) -> JobStreams:
    """Find a job's samples and make its streams; the first epoch is computed, so that what is wrong comes out now.

    Args:
        spec: the job.
        tree: the source tree (`mlfs.tree.manifest.Manifest`).
        source: the absolute path of the source, for absolute links and for absolute paths in order files.
        outside: what is behind links that leave the source, see `mlfs.tree.source_files.SourceFiles`.
        check: called with the streams before anything of them is computed, such as `mlfs.orders.streams.check_reach`.

    Raises:
        JobError: one line about what cannot be used.
    """
    whole = _part_of_samples(spec, tree, source, outside)
    sample_ids = _but_cached(spec, whole)
    resolve = _PathIndex(spec, tree, Links(tree, source, outside), whole, outside)
    order = build_order(spec, len(sample_ids), resolve)
    if spec.serve is not None:
        entries = sample_ids if sample_ids.ndim == 1 else sample_ids[:, 0]
        order = ServedOrder(order, spec, _sizes(tree, sample_ids), entries)
    streams = JobStreams(spec, sample_ids, order)
    if check is not None:
        check(streams)
    steps = -(-streams.length(spec.start_epoch) // streams.batch_files)
    if spec.start_step > steps:
        step = spec.batch_size * spec.world_size
        done = f"{spec.start_step * step:,} samples, {spec.start_step} steps"
        hint = f"a step is batch_size samples of each rank, {step:,} together"
        raise JobError(f"the job goes on behind {done}, but an epoch has {steps} steps", hint, "start_step")
    streams.epoch_ids(spec.start_epoch, spec.ranks[0])
    return streams


# -- how long an order may be: what a registration may ask a mount to compute and to keep in memory


# A position takes 50 to 60 bytes while its epoch is prepared, and 80 to 120 in an opportunistic order: so the least
# limit is half a GiB to one GiB. Beyond that a run may read each of its samples so many times an epoch: its order takes
# no more, in proportion, than the tree itself.
LEAST_POSITIONS: Final = 1 << 23
MOST_READS: Final = 8


def check_reach(streams: JobStreams) -> None:
    """Refuse a job whose epochs are too long to be kept in memory. Raises: JobError."""
    spec, samples = streams.spec, len(streams.sample_ids)
    most = max(LEAST_POSITIONS, MOST_READS * samples * streams.files_per_sample)
    a_rank = streams.length(spec.start_epoch)
    positions = a_rank * (len(spec.ranks) if spec.serve is None else spec.world_size)  # a served order is all ranks'
    if positions <= most:
        return
    if a_rank > most:
        fields = ("num_samples", "order_file", "repeats")
        field = next((field for field in fields if getattr(spec, field) is not None), "world_size")
        field = "batch_size" if spec.batch_size > samples else field
    else:
        field = "ranks" if spec.serve is None else "serve"
    message = f'job field "{field}" is out of reach: an epoch has {positions:,} reads of {samples:,} samples'
    raise JobError(message, f"at most {most:,} reads an epoch can be followed on one node", field)
