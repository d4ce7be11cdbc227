"""Real DataLoaders: what each worker process is given to read is enough to find the family, the seed and the shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, get_worker_info

from mlfs.explain.confirm import confirm_sequential, refine
from mlfs.explain.first_reads import MOST_FIRST_READS, MOST_PROCESSES, RECENT_READS, FirstReads, LeftAlone
from mlfs.explain.hypotheses import ranked_fields
from mlfs.explain.question import DataSet
from mlfs.explain.search import find
from mlfs.explain.search_stages import SearchExtent, SeedFound
from mlfs.follow.sentences import in_words
from mlfs.job import parse_job

N = 1500
NO_RANGE = ((0, 0),)


class Indices(Dataset[tuple[int, int]]):
    """Each sample is its index and the worker that read it."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, int]:
        worker = get_worker_info()
        return index, worker.id if worker is not None else -1


def reads_of(*loaders: DataLoader[tuple[int, int]]) -> DataSet:
    """The first reads of each worker of each loader, as the mount would see them."""
    heads: list[tuple[int, ...]] = []
    for loader in loaders:
        by_worker: dict[int, list[int]] = {}
        for batch in loader:
            for index, worker in batch:
                by_worker.setdefault(worker, []).append(index)
        heads += [tuple(reads[:40]) for _, reads in sorted(by_worker.items())]
    return DataSet(N, tuple(heads))


def loader(workers: int = 2, batch: int = 16, **options: Any) -> DataLoader[tuple[int, int]]:
    # Batches stay lists: tensors would come by shared memory, with a socket and a descriptor each.
    return DataLoader(Indices(), batch, num_workers=workers, collate_fn=list, **options)


def distributed(seed: int, ranks: int) -> DataSet:
    samplers: list[Any] = [DistributedSampler(Indices(), ranks, rank, seed=seed) for rank in range(ranks)]
    return reads_of(*(loader(sampler=sampler, batch=8, workers=3) for sampler in samplers))


def default_generator(seed: int) -> DataSet:
    torch.manual_seed(seed)
    return reads_of(loader(shuffle=True))


def shared_generator(seed: int) -> DataSet:
    return reads_of(loader(shuffle=True, generator=torch.Generator().manual_seed(seed), workers=0))


def own_generator(seed: int) -> DataSet:
    sampler = RandomSampler(Indices(), generator=torch.Generator().manual_seed(seed))
    return reads_of(loader(sampler=sampler, batch=4, workers=3))


FAMILIES: list[tuple[Callable[[], DataSet], dict[str, object]]] = [
    (
        lambda: distributed(40_123, 3),
        {"sampler": "torch-distributed", "seed": 40_123, "world_size": 3, "ranks": [0, 1, 2], "batch_size": 8},
    ),
    (
        lambda: default_generator(1234),
        {"sampler": "torch-random", "generator": "default", "seed": 1234, "world_size": 1, "batch_size": 16},
    ),
    (lambda: shared_generator(77), {"sampler": "torch-random", "generator": "shared", "seed": 77, "world_size": 1}),
    (lambda: own_generator(5), {"sampler": "torch-random", "generator": "own", "seed": 5, "batch_size": 4}),
]


@pytest.mark.parametrize(("observe", "expected"), FAMILIES, ids=["distributed", "default", "shared", "own"])
def test_a_loader_is_explained_by_its_own_arguments(
    observe: Callable[[], DataSet], expected: dict[str, object]
) -> None:
    seen = observe()
    found = [
        event for event in find([seen], SearchExtent(NO_RANGE, 1 << 16, latest=1 << 12)) if isinstance(event, SeedFound)
    ]
    assert len(found) == 1
    ranked = ranked_fields(refine(found[0].finding, seen), found[0].draws)
    assert expected in [{key: fields.get(key) for key in expected} for fields in ranked]
    if expected.get("generator") != "own":  # which nothing but the second epoch tells from set_epoch
        assert ranked[0].items() >= expected.items()


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 2), (2, 2)])
def test_reading_in_the_order_of_the_files_is_the_simplest_case(ranks: int, workers: int) -> None:
    samplers: list[Any] = [DistributedSampler(Indices(), ranks, rank, shuffle=False) for rank in range(ranks)]
    seen = reads_of(*(loader(sampler=sampler, workers=workers) for sampler in samplers))
    finding = confirm_sequential([DataSet(N, ((7, 3, 9, 1),)), seen])
    assert finding is not None
    fields = ranked_fields(refine(finding, seen), ())[0]
    assert (fields["sampler"], fields["world_size"]) == ("sequential", ranks)
    assert fields.get("batch_size") == (16 if workers else None)
    assert confirm_sequential([distributed(3, 1)]) is None


def test_who_walks_a_data_set_that_others_shuffle_does_not_show_its_order() -> None:
    walker, shuffled = tuple(range(30)), tuple(range(5)) + tuple(reversed(range(50, 70)))
    assert confirm_sequential([DataSet(N, (walker, (90, 3)))]) is not None
    assert confirm_sequential([DataSet(N, (walker, shuffled))]) is None
    assert confirm_sequential([DataSet(N, (shuffled, walker))]) is None
    wrapped = tuple(range(N - 30, N)) + tuple(range(6))  # it goes on with the next epoch
    assert confirm_sequential([DataSet(N, (walker, wrapped))]) is not None


def dealt(piece: Sequence[int], workers: int, batch: int) -> list[tuple[int, ...]]:
    """What a loader's workers read first: they take batches in turn."""
    batches = [piece[at : at + batch] for at in range(0, len(piece), batch)]
    return [tuple(chain(*batches[worker :: max(1, workers)]))[:40] for worker in range(max(1, workers))]


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(("workers", "batch"), [(0, 1), (1, 4), (2, 4), (4, 7), (3, 32)])
def test_ranks_that_read_a_piece_each_are_told_from_workers_of_one(ranks: int, workers: int, batch: int) -> None:
    """As DLIO's do under mpirun. A worker is a fork of the tests, and so dear that only two ranks have real ones."""
    length = -(-N // ranks)
    pieces = [range(rank * length, min(N, (rank + 1) * length)) for rank in range(ranks)]
    seen = DataSet(N, tuple(chain(*(dealt(piece, workers, batch) for piece in pieces))))
    one = DataSet(N, tuple(dealt(range(N), workers, batch)))
    if ranks == 2:
        real = (loader(sampler=piece, workers=workers, batch=batch) for piece in pieces)  # type: ignore[arg-type]
        assert reads_of(*real) == seen
        assert reads_of(loader(workers=max(1, workers), batch=batch)) == one
    for heads in (seen.heads, tuple(head[:12] for head in reversed(seen.heads))):
        finding = confirm_sequential([DataSet(N, heads)])
        assert finding is not None
        fields = ranked_fields(refine(finding, seen), ())[0]
        assert (fields["sampler"], fields["world_size"], fields["contiguous"]) == ("sequential", ranks, True)
        assert fields.get("batch_size") == (batch if workers > 1 else None)
    assert "a piece for each rank" in in_words(parse_job(fields))
    finding = confirm_sequential([one])
    assert finding is not None
    assert not finding.contiguous
    assert finding.world == 1


def test_what_is_kept_of_the_reads_is_bounded() -> None:
    reads = FirstReads()
    for entry in range(20_000):
        reads.add(entry, pid=entry % 1000, parent=1)
        reads.add(entry, pid=entry % 1000, parent=1)  # opened twice: one read
    assert reads.total >= 20_000
    assert len(reads.processes) == MOST_PROCESSES
    assert len(reads.recent) == RECENT_READS
    assert max(len(process.first) for process in reads.processes.values()) <= MOST_FIRST_READS


def test_who_walks_the_directories_in_many_processes_crowds_nobody_out() -> None:
    reads = FirstReads()
    shuffled = [(at * 389) % 1000 for at in range(40)]
    for entry in range(500):
        reads.add(entry, pid=10_000 + entry, parent=9)  # find -exec cat
        if entry % 12 == 0 and entry // 12 < len(shuffled):
            reads.add(shuffled[entry // 12], pid=5, parent=1)
    assert reads.processes[5].first == shuffled
    assert 5 not in reads.walkers()
    assert reads.walkers() == reads.processes.keys() - {5}
    assert reads.ready(10) == {5}
    alone = reads.of(lambda pid: pid == 5)
    assert (alone.total, alone.opened, len(alone.recent)) == (40, 40, 40)
    assert alone.joined(reads).processes.keys() == reads.processes.keys()


def test_who_is_not_understood_is_looked_at_again_in_another_pass() -> None:
    left_alone = LeftAlone(600)
    left_alone.add([7, 8])
    assert not any(left_alone.begins(entry, 7) for entry in (*range(300), 299))  # the last one opened twice
    assert not left_alone.begins(5000, 7)  # a row
    # The first reads of its next pass are of files that it had not read in this one.
    assert not any(left_alone.begins(entry, 7) for entry in (400, 500, 410, 510))
    assert [*left_alone.begins(5, 7)] == [400, 500, 410, 510, 5]
    assert [[*left_alone.begins(entry, process)] for entry, process in ((6, 7), (5, 9))] == [[6], [5]]
    assert not any(left_alone.begins(entry, 8) for entry in (*range(20), 5, *range(20, 600), 7))  # drawn, maybe again
    assert len(left_alone) == 1


def test_a_worker_that_has_read_less_is_waited_for_unless_it_idles() -> None:
    """It may be the one that reads from a rank's start."""
    reads = FirstReads()
    for entry in range(10):
        reads.add(entry, pid=3, parent=1)
    reads.add(100, pid=2, parent=1)
    assert not reads.ready(10)
    idles = reads.of(lambda _: True)
    for entry in range(101, 110):
        reads.add(entry, pid=2, parent=1)
    assert reads.ready(10) == {2, 3}
    for entry in range(10, 79):
        idles.add(entry, pid=3, parent=1)
    assert idles.ready(10)


def test_a_look_at_one_sample_by_the_main_process_does_not_hold_up_inferring() -> None:
    reads = FirstReads()
    reads.add(7, pid=1, parent=0)
    for entry in range(40):
        reads.add(entry, pid=2, parent=1)
        reads.add(100 + entry, pid=3, parent=1)
    assert not FirstReads().ready(10)
    assert reads.ready(10)
    assert reads.heads(10)[0] == list(range(40))
