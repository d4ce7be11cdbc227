"""The order of MosaicML's StreamingDataset over its shards.

In: the job's seed, shuffle, canonical and physical nodes; how many samples each shard has, as the layout "mds" says.
Out: each rank's dataset indices. Made by `mlfs.orders.order`.

A data set is cut into as many parts as there are canonical nodes, shards are dealt to them once for the whole run, and
each epoch shuffles within them. The samples of a rank are dealt to its workers by whole batches, as a DataLoader does
it, so workers change nothing here. It is what `batching_method="random"` gives for one stream that is read once.

Source: streaming/base/partition/orig.py, streaming/base/shuffle (naive, py1s, py2s, py1br, py1e), dataset.py (_resume:
what is not given); mosaicml-streaming 0.13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mlfs.errors import JobError
from mlfs.job.refusals import refuse
from mlfs.orders.order import EPOCHS_KEPT, Indices, KnowsFiles, Resolve

if TYPE_CHECKING:
    from mlfs.job import JobSpec

MOST_CANONICAL_NODES = 1 << 20
"""Parts into which a data set is cut, each of which takes memory: more than any cluster has nodes, 64 times."""
Span = tuple[int, int]
Generator = np.random.Generator


class MosaicMLOrder:
    """The order of one job."""

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None) -> None:
        nodes = spec.physical_nodes or 1
        of_shards = spec.shuffle_algo in ("py1s", "py2s")
        canonical = spec.canonical_nodes or (64 * nodes if of_shards else nodes)
        if canonical > MOST_CANONICAL_NODES:
            refuse("canonical_nodes", canonical, f"1 to {MOST_CANONICAL_NODES}", "leave it out if the script does")
        if spec.world_size % nodes or (canonical % nodes and nodes % canonical):
            message = f'job field "physical_nodes" is {nodes}: it does not divide the ranks, or the canonical nodes'
            raise JobError(message, "give the nodes that the job runs on", "physical_nodes")
        self._spec, self._samples, self._nodes, self._canonical = spec, n_samples, nodes, canonical
        self._block = spec.block_size or max(4_000_000 // canonical, 1 << 18)
        self._shards = _shard_sizes(n_samples, resolve)
        self._dealt = _dealt(n_samples, canonical, nodes, spec.world_size // nodes)
        self._of_epoch = lru_cache(maxsize=EPOCHS_KEPT)(self._shuffled)

    def stream_length(self, epoch: int) -> int:
        return int(self._dealt.shape[1])

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        stream: Indices = self._dealt[rank]
        if self._spec.shuffle:
            stream = self._of_epoch(epoch)[stream]
        return stream

    def _shuffled(self, epoch: int) -> Indices:
        """The sample that stands in the place of each."""
        seed, algorithm = self._spec.seed, self._spec.shuffle_algo or "py1e"
        if algorithm == "naive":
            return np.random.default_rng(seed + epoch).permutation(self._samples)
        if algorithm == "py2s":
            return _py2s(self._shards, self._canonical, seed, epoch)
        ends = np.cumsum(self._shards).tolist()
        spans: list[Span] = list(pairwise([0, *ends]))
        np.random.default_rng(seed).shuffle(spans)
        parts = _cut(spans, self._samples, self._canonical)
        drawn = np.random.default_rng(seed + epoch)
        for part in parts:
            drawn.shuffle(part)
        return _WITHIN_PARTS[algorithm](parts, drawn, self._block)


def _shard_sizes(n_samples: int, resolve: Resolve | None) -> list[int]:
    """The samples of each file, one file after the other."""
    if not isinstance(resolve, KnowsFiles) or not n_samples:
        return [n_samples]
    begins = np.flatnonzero(np.diff(resolve.files(), prepend=-2)).tolist()
    return [end - begin for begin, end in pairwise([*begins, n_samples])]


def _dealt(samples: int, canonical: int, nodes: int, ranks_of_node: int) -> Indices:
    """The places that each rank reads, shape (ranks, samples of a rank)."""
    a_part = -(-samples // canonical)
    ratio = max(1, nodes // canonical)
    padding = -a_part % ratio
    if samples > canonical or (samples == canonical and canonical >= nodes):
        begins = np.arange(canonical) * samples // canonical
        ends = np.arange(1, canonical + 1) * samples // canonical
        ids = begins[:, None] + np.arange(a_part + padding)
        ids[:, a_part - 1] -= ends - begins < a_part  # short parts repeat their last one
        if padding:
            ids[:, -padding:] = ids[:, -padding - ratio + 1 - padding : -padding - ratio + 1]
    else:
        ids = np.resize(np.arange(samples), (canonical, a_part + padding))
    ids = ids.T.reshape(-1, nodes).T
    lacking = -ids.shape[1] % ranks_of_node
    if lacking:
        if ranks_of_node + lacking - 1 <= ids.shape[1]:
            more = ids[:, ids.shape[1] - ranks_of_node - lacking + 1 : ids.shape[1] - ranks_of_node + 1]
        else:
            more = np.tile(ids, -(-lacking // ids.shape[1]))[:, :lacking]
        ids = np.concatenate([ids, more], axis=1)
    ids = ids.reshape(nodes, -1, ranks_of_node).transpose(0, 2, 1)
    return np.ascontiguousarray(ids.reshape(nodes * ranks_of_node, -1), dtype=np.int64)


def _cut(spans: list[Span], samples: int, parts: int) -> list[list[Span]]:
    """Spans dealt to parts of equal size, in their order; one that does not fit is cut."""
    found: list[list[Span]] = []
    left, so_far = spans[::-1], 0
    for part in range(parts):
        end, mine = samples * (part + 1) // parts, list[Span]()
        while left and so_far + left[-1][1] - left[-1][0] <= end:
            mine.append(left.pop())
            so_far += mine[-1][1] - mine[-1][0]
        if left and so_far < end:
            begin, stop = left.pop()
            mine.append((begin, begin + end - so_far))
            left.append((begin + end - so_far, stop))
            so_far = end
        found.append(mine)
    return found


def _of(spans: list[Span]) -> Indices:
    return np.concatenate([np.empty(0, np.int64), *(np.arange(*span) for span in spans)])


def _py1s(parts: list[list[Span]], drawn: Generator, block: int) -> Indices:
    """Each span is shuffled by itself."""
    pieces = [np.arange(*span) for part in parts for span in part]
    for piece in pieces:
        drawn.shuffle(piece)
    return np.concatenate(pieces)


def _py1br(parts: list[list[Span]], drawn: Generator, block: int) -> Indices:
    """Each part is shuffled in blocks of about that size, which begin at a place of its own."""
    low, high = int(0.75 * block), int(1.25 * block)
    stagger = drawn.integers(0, low, (len(parts),))
    pieces = []
    for shift, part in zip(stagger, parts, strict=True):
        ids = _of(part)
        ends, ranges = 0, []
        while ends < len(ids):
            size = drawn.integers(low, high)
            begin, stop = max(ends - shift, 0), min(ends + size - shift, len(ids))
            ranges.append((begin, stop))
            ends += stop - begin
        for begin, stop in ranges:
            drawn.shuffle(ids[begin:stop])
        pieces.append(ids)
    return np.concatenate(pieces)


def _py1e(parts: list[list[Span]], drawn: Generator, block: int) -> Indices:
    """The samples of each span are spread over a range of about the block's size around it."""
    pieces = []
    for part in parts:
        spans = [np.arange(*span) for span in part]
        for span in spans:
            drawn.shuffle(span)
        samples = sum(map(len, spans))
        places, begin = np.arange(samples).astype(np.float64), 0
        for span in spans:
            size = len(span)
            cutoff = max(0, (drawn.integers(int(0.75 * block), int(1.25 * block)) - size) / 2)
            low, high = max(-cutoff, -begin), min(cutoff, samples - begin - size)
            places[begin : begin + size] += drawn.uniform(low=low, high=high, size=size)
            begin += size
        pieces.append(np.concatenate(spans)[np.argsort(places)] if spans else np.empty(0, np.int64))
    return np.concatenate(pieces)


_WITHIN_PARTS: Final[Mapping[str, Callable[[list[list[Span]], Generator, int], Indices]]] = {
    "py1s": _py1s,
    "py1br": _py1br,
    "py1e": _py1e,
}


def _py2s(shards: list[int], canonical: int, seed: int, epoch: int) -> Indices:
    """Shards and their samples are shuffled once for the run, and in each part once an epoch."""
    ends = np.cumsum(shards).tolist()
    pieces: list[Any] = [np.arange(end - size, end) for size, end in zip(shards, ends, strict=True)]
    fixed = np.random.default_rng(seed)
    order = list(range(len(pieces)))
    fixed.shuffle(order)
    pieces = [pieces[at] for at in order]
    for piece in pieces:
        fixed.shuffle(piece)
    flat, drawn, found = np.concatenate(pieces), np.random.default_rng(seed + epoch), []
    places = np.cumsum([0, *map(len, pieces)]).tolist()
    for part in _cut(list(pairwise(places)), len(flat), canonical):
        of_part = [flat[begin:end].copy() for begin, end in part]
        order = list(range(len(of_part)))
        drawn.shuffle(order)
        for at in order:
            drawn.shuffle(of_part[at])
            found.append(of_part[at])
    return np.concatenate(found)
