"""A job over Megatron's GPTDataset: samples of several pieces of documents, read from a mapped .bin by two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.fuse import wait_until
from support.megatron import gpt_indices, gpt_sample, write_indexed
from support.mounts import MlfsMount
from support.slow import SlowSource

pytestmark = [pytest.mark.page_counts, pytest.mark.wall_clock]
SEQUENCE, BATCH, RANKS, STEPS, SEED = 16_384, 4, 2, 75, 1234
# As GPTDataset.__getitem__ with a memory map, for the batches that MegatronPretrainingSampler deals to a rank.
READER = """
import json, sys, time
import numpy as np
path, rank, ranks, batch, steps = sys.argv[1], *map(int, sys.argv[2:6])
documents, samples, shuffled = (np.load(f"{sys.argv[6]}{what}_index.npy") for what in ("document", "sample", "shuffle"))
lengths = np.load(f"{sys.argv[6]}lengths.npy")
begins = np.concatenate([[0], np.cumsum(lengths)])
tokens = np.memmap(path, np.uint16, "r")
sums = []
for first in range(rank * batch, steps * ranks * batch, ranks * batch):
    for at in shuffled[first : first + batch]:
        (one, offset), (last, end) = samples[at], samples[at + 1]
        total = 0
        for number in range(one, last + 1):
            document = documents[number]
            low = begins[document] + (offset if number == one else 0)
            high = begins[document] + (end + 1 if number == last else lengths[document])
            total += int(tokens[low:high].astype(np.int64).sum())
        sums.append(total)
        time.sleep(0.002)
print(json.dumps(sums))
"""


def test_samples_of_a_gpt_dataset_are_staged_ahead_of_its_ranks(tmp_path: Path) -> None:
    for name in ("source", "mnt"):
        (tmp_path / name).mkdir()
    lengths = np.random.default_rng(3).integers(8000, 40_000, 600)
    tokens = write_indexed(tmp_path / "source/text", lengths)
    total, samples = 2 * len(tokens), STEPS * RANKS * BATCH
    indices = gpt_indices(lengths, len(lengths), SEQUENCE, samples, SEED)
    for what, index in zip(("document", "sample", "shuffle"), indices, strict=True):
        np.save(tmp_path / f"{what}_index.npy", index)
    np.save(tmp_path / "lengths.npy", lengths)
    with (
        SlowSource(tmp_path / "source", bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "100MiB", "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        answer = mount.register(
            layout="megatron-gpt", root="text.idx", sequence_length=SEQUENCE, num_samples=samples, seed=SEED, epochs=1,
            draw="none", dealing="batches", batch_size=BATCH, world_size=RANKS, drop_last=True,
        )  # fmt: skip
        assert answer["samples"] == len(indices[2])
        slow.control(reset_counts=True)
        wait_until(lambda: all(one["ahead"]["samples"] >= 20 for one in mount.status()["jobs"][0]["ranks"]))
        words = [str(mount.path / "text.bin"), "{rank}", str(RANKS), str(BATCH), str(STEPS), f"{tmp_path}/"]
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READER, *(word.format(rank=rank) for word in words)], stdout=subprocess.PIPE
            )
            for rank in range(RANKS)
        ]
        read = [json.loads(reader.communicate()[0]) for reader in readers]
        mount.settle()
        job = mount.status()["jobs"][0]
        source_bytes = slow.counts()["bytes"]
    expected = [int(gpt_sample(tokens, lengths, indices, at).astype(np.int64).sum()) for at in range(len(indices[2]))]
    for rank, sums in enumerate(read):
        firsts = range(rank * BATCH, samples, RANKS * BATCH)
        assert sums == [total for first in firsts for total in expected[first : first + BATCH]]
    assert source_bytes <= 1.03 * total
    assert job["agreement"] >= 0.8, job
    assert job["state"] == "finished"
