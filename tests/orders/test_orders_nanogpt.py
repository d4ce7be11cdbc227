"""The layout "nanogpt": windows that get_batch draws, compared with torch's own draws in nanoGPT's loop."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from orders_support import job, manifest_of

from mlfs.errors import JobError
from mlfs.orders.layouts.nanogpt import windows
from mlfs.orders.streams import build_streams
from mlfs.tree.source_files import SourceFiles

BLOCK, BATCH = 4096, 3


def drawn_by_torch(rank: int, tokens: tuple[int, int], steps: int, a_step: int, interval: int, evaluated: int) -> list:
    """As nanoGPT's train.py: (0 for train, 1 for val, first token) of each window."""
    torch.manual_seed(1337 + rank)
    torch.empty(1000).uniform_()  # the model's weights
    read: list[tuple[int, int]] = []

    def get_batch(split: int) -> None:
        ix = torch.randint(tokens[split] - BLOCK, (BATCH,))
        read.extend((split, int(at)) for at in ix)

    get_batch(0)
    for step in range(steps):
        if rank == 0 and step % interval == 0:
            for split in (0, 1):
                for _ in range(evaluated):
                    get_batch(split)
        for _ in range(a_step):
            get_batch(0)
    return read


@pytest.mark.parametrize("tokens", [(50_000, 9000), ((1 << 28) + BLOCK, 9000), (9_035_582_198, 4_434_897)])
def test_windows_are_those_that_get_batch_draws(tokens: tuple[int, int]) -> None:
    for rank in (0, 1):
        expected = drawn_by_torch(rank, tokens, steps=11, a_step=2, interval=4, evaluated=5)
        spec = job(
            preset="nanogpt", epochs=1, num_samples=BATCH * 23, batch_size=BATCH, sequence_length=BLOCK,
            eval_interval=4, eval_batches=5, batches_a_step=2, words_before=1000, world_size=2,
        )  # fmt: skip
        files, positions = windows(spec, rank, tokens)
        assert list(zip(files.tolist(), positions.tolist(), strict=True)) == expected


def test_ranks_have_windows_of_their_own_and_rank_0_those_of_evaluations(tmp_path: Path) -> None:
    for name, count in (("train", 60_000), ("val", 9000)):
        (tmp_path / f"{name}.bin").write_bytes(np.arange(count, dtype=np.uint16).tobytes())
    fields = {"num_samples": BATCH * 7, "batch_size": BATCH, "sequence_length": BLOCK, "world_size": 2, "epochs": 1}
    tree = manifest_of(tmp_path)
    spec = job(preset="nanogpt", **fields, eval_interval=2, eval_batches=4, batches_a_step=2)
    streams = build_streams(spec, tree, os.fsencode(tmp_path), SourceFiles(os.fsencode(tmp_path)))
    for rank in (0, 1):
        ids = streams.epoch_ids(0, rank)
        numbers, positions = windows(spec, rank, (60_000, 9000))
        files, offsets, lengths = tree.rows.columns(ids[: len(positions)])
        assert [tree.path(file) for file in files.tolist()] == [b"val.bin" if one else b"train.bin" for one in numbers]
        assert offsets.tolist() == (2 * positions).tolist()
        assert set(lengths.tolist()) == {2 * (BLOCK + 1)}
        assert (ids[len(positions) :] == -2).all()
    assert len(streams.epoch_ids(0, 0)) == BATCH * (7 + 2 * 2 * 4)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_samples": None}, '"num_samples" is missing'),
        ({"root": "train.bin"}, "no train.bin"),
        ({"eval_interval": 1}, "or no val.bin"),
        ({"sequence_length": 30_000}, "shorter than a window"),
        ({"num_samples": 1 << 25, "batch_size": 1 << 10}, "windows are too many"),
    ],
)
def test_what_is_not_nanogpts_is_refused(tmp_path: Path, fields: dict[str, object], said: str) -> None:
    (tmp_path / "train.bin").write_bytes(bytes(40_000))
    given = {"num_samples": 10, "sequence_length": BLOCK, "layout": "nanogpt", "sampler": "sequential"} | fields
    spec = job(epochs=1, **{name: value for name, value in given.items() if value is not None})
    with pytest.raises(JobError, match=said):
        build_streams(spec, manifest_of(tmp_path), os.fsencode(tmp_path), SourceFiles(os.fsencode(tmp_path)))
