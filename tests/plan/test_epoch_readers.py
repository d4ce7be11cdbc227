"""Readers and frequencies, against loops over plain lists."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.plan.epoch_readers import Readers

N_SAMPLES = 9
cluster = st.lists(
    st.lists(st.lists(st.integers(-1, N_SAMPLES - 1), max_size=8), min_size=3, max_size=3), min_size=1, max_size=6
)


def frequency_at(readers: Readers, node: int) -> list[int]:
    """How often a node reads each sample in the epochs that were added."""
    counts = (readers.by_epoch[: readers.filled] == node).sum(axis=0)
    np.add.at(counts, readers.more[readers.more[:, 2] == node, 1], 1)
    return counts.tolist()


def readers_of(reads: list[list[list[int]]], node_of_rank: list[int]) -> Readers:
    readers = Readers(N_SAMPLES, max(node_of_rank) + 1, len(reads))
    for ranks in reads:
        readers.add([(node, np.array(ids, dtype=np.int64)) for node, ids in zip(node_of_rank, ranks, strict=True)])
    return readers


@settings(deadline=None, max_examples=cases(60))
@given(cluster, st.sampled_from([[0, 1, 2], [0, 0, 1], [0, 0, 0]]))
def test_frequencies_count_every_read(reads: list[list[list[int]]], node_of_rank: list[int]) -> None:
    readers = readers_of(reads, node_of_rank)
    count: Counter[tuple[int, int]] = Counter()
    for ranks in reads:
        for rank, ids in enumerate(ranks):
            for sample in ids:
                if sample >= 0:
                    count[sample, node_of_rank[rank]] += 1
    nodes = range(max(node_of_rank) + 1)
    for node in nodes:
        assert frequency_at(readers, node) == [count[s, node] for s in range(N_SAMPLES)]


def test_many_nodes_need_two_bytes_and_too_many_are_refused() -> None:
    readers = Readers(4, 300, 1)
    readers.add([(299, np.array([1, 2])), (0, np.array([3]))])
    assert readers.by_epoch.dtype == np.uint16
    assert readers.by_epoch[0].tolist() == [readers.nobody, 299, 299, 0]
    with pytest.raises(ValueError, match="65535"):
        Readers(4, 2**16, 1)
