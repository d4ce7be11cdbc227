"""A job over the windows that nanoGPT's get_batch draws, read by two ranks, of which the first one evaluates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import scripts
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource

pytestmark = [pytest.mark.page_counts, pytest.mark.wall_clock]
BLOCK, BATCH, STEPS, RANKS, WORDS = 1024, 4, 60, 2, 5000
# train.py of nanoGPT, without the model: its weights take WORDS.
SCRIPT = """
import json, os, sys, time
import numpy as np, torch
directory, rank, block, batch, steps, words = sys.argv[1], *map(int, sys.argv[2:])
torch.manual_seed(1337 + rank)
torch.empty(words).uniform_()
read = []

def get_batch(split):
    data = np.memmap(os.path.join(directory, f"{split}.bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block, (batch,))
    x = torch.stack([torch.from_numpy((data[i : i + block]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + block]).astype(np.int64)) for i in ix])
    read.extend([split, int(i), int(one.sum()), int(other.sum())] for i, one, other in zip(ix, x, y))

get_batch("train")
for step in range(steps):
    if step % 25 == 0 and rank == 0:
        for split in ["train", "val"]:
            for k in range(5):
                get_batch(split)
    for micro_step in range(2):
        get_batch("train")
        time.sleep(0.002)
print(json.dumps(read))
"""


def test_windows_of_get_batch_are_staged_ahead_of_it(tmp_path: Path) -> None:
    for name in ("source", "mnt"):
        (tmp_path / name).mkdir()
    content = {"train": 12_000_000, "val": 3_000_000}
    tokens = {name: np.random.default_rng(n).integers(0, 50_304, n).astype(np.uint16) for name, n in content.items()}
    for name, of_split in tokens.items():
        (tmp_path / f"source/{name}.bin").write_bytes(of_split.tobytes())
    total = 2 * sum(content.values())
    with (
        SlowSource(tmp_path / "source", bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "100MiB", "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        answer = mount.register(
            preset="nanogpt", num_samples=BATCH * (1 + 2 * STEPS), batch_size=BATCH, eval_interval=25, eval_batches=5,
            batches_a_step=2, words_before=WORDS, world_size=RANKS, epochs=1,
        )  # fmt: skip
        assert answer["samples"] == RANKS * BATCH * (1 + 2 * STEPS + 3 * 10)
        slow.control(reset_counts=True)
        wait_until(lambda: all(one["ahead"]["samples"] >= 20 for one in mount.status()["jobs"][0]["ranks"]))
        words = [str(BLOCK), str(BATCH), str(STEPS), str(WORDS)]
        readers = [
            scripts.Popen([sys.executable, "-c", SCRIPT, str(mount.path), str(rank), *words], stdout=subprocess.PIPE)
            for rank in range(RANKS)
        ]
        read = [json.loads(reader.communicate()[0]) for reader in readers]
        mount.settle()
        job, source_bytes = mount.status()["jobs"][0], slow.counts()["bytes"]
    for windows in read:
        for split, at, x, y in windows:
            window = tokens[split][at : at + BLOCK + 1].astype(np.int64)
            assert (x, y) == (window[:-1].sum(), window[1:].sum())
    assert source_bytes <= 1.03 * total
    # Windows lie near each other here, so the kernel reads around most of them; those of another seed agree never.
    assert job["agreement"] >= 0.6, job
