"""DLIO's loaders: ranks that read a piece of the files each, and a list of files that is shuffled again each epoch."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from support.explaining import explaining, simulate

from mlfs.explain.explanations import explanations
from mlfs.explain.pieces import told_pieces
from mlfs.explain.question import DataSet
from mlfs.launchers import Whose

N = 1500
DRAWN = [
    (draw.choice((2, 3, 8)), draw.choice((1, 2, 4)), draw.choice((4, 7, 32)), draw.randrange(8))
    for draw in (random.Random(4),)
    for _ in range(10)
]


def heads_of(rank: int, world: int, workers: int, batch: int) -> list[tuple[int, ...]]:
    """What each worker of a rank reads first, as DLIO's dlio_sampler with a DataLoader has it."""
    length = -(-N // world)
    piece = range(rank * length, min(N, (rank + 1) * length))
    batches = [piece[at : at + batch] for at in range(0, len(piece), batch)]
    return [tuple(chain(*batches[worker::workers]))[:40] for worker in range(workers)]


@pytest.mark.parametrize(("world", "workers", "batch", "rank"), DRAWN)
def test_a_node_of_one_rank_knows_its_piece(world: int, workers: int, batch: int, rank: int) -> None:
    rank = 1 + rank % (world - 1)
    heads = heads_of(rank, world, workers, batch)
    finding = told_pieces([DataSet(40, heads[:0]), DataSet(N, tuple(heads))], [Whose(1, rank, world)] * workers)
    assert finding is not None
    assert (finding.data_set, finding.world, finding.ranks, finding.contiguous) == (1, world, (rank,), True)
    assert finding.batch == (batch if workers > 1 else None)
    fields = explanations(finding, ())[0]
    assert (fields["sampler"], fields["world_size"], fields["contiguous"]) == ("sequential", world, True)
    # As if it were another rank's, of another world, told differently by two processes, or told by nobody.
    for readers in (Whose(1, (rank + 1) % world, world), Whose(1, rank, world + 5), Whose(1)):
        assert told_pieces([DataSet(N, tuple(heads))], [readers] * workers) is None
    shuffled = tuple(tuple(random.Random(rank).sample(head, len(head))) for head in heads)
    assert told_pieces([DataSet(N, shuffled)], [Whose(1, rank, world)] * workers) is None


def test_rank_0_alone_reads_as_one_process_would() -> None:
    assert told_pieces([DataSet(N, tuple(heads_of(0, 4, 2, 8)))], [Whose(1, 0, 4)] * 2) is None


def test_a_list_of_files_that_is_shuffled_anew_each_epoch_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dlio_benchmark/utils/config.py, reconfigure: np.random.seed(123 + epoch), np.random.shuffle(file_list)."""
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            files = jobs.manifest.files.tolist()
            for epoch in (1, 2, 3):
                np.random.seed(123 + epoch)
                np.random.shuffle(files)
                for entry in files:
                    await jobs.read(entry, 7)
            (job,) = jobs.running.values()
            assert (job.spec.sampler, job.spec.seed) == ("numpy", 124)
            assert job.spec.reseed
            assert job.spec.in_place
            assert job.score.agreed >= job.score.observed - 40  # those that chose, at the second epoch's start
            assert job.score.observed > 1000

    simulate(body)
