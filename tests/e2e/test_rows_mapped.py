"""A job over rows whose script maps the array, as np.load(mmap_mode="r") does, and reads it by a DataLoader's workers.

The kernel reads around each page that is missing in a mapping: the READs of the rows beside come together with that of
the row which is read, and only that one counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from support import scripts
from support.fuse import wait_until
from support.mounts import MlfsMount

ROWS, ROW_BYTES, EPOCHS, SEED = 400, 30_000, 3, 42
SCRIPT = f"""
import json, sys
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.rows = np.load(sys.argv[1], mmap_mode="r")
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        return index, int(self.rows[index].astype(np.int64).sum())

torch.manual_seed({SEED})
loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2)
epochs = [[list(map(torch.Tensor.tolist, batch)) for batch in loader] for _ in range({EPOCHS})]
print(json.dumps([[pair for batch in epoch for pair in zip(*batch)] for epoch in epochs]))
"""


@pytest.mark.wall_clock  # a tripwire is laid again a moment later: on a machine that stands still rows are not seen
def test_rows_of_a_mapped_array_are_followed(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data/train.npy", rows)
    sums = rows.astype(np.int64).sum(axis=1).tolist()
    with MlfsMount(tmp_path / "data") as mount:
        fields = {"sampler": "torch-random", "seed": SEED, "epochs": EPOCHS, "batch_size": 8, "num_workers": 2}
        mount.register(layout="npy", root="train.npy", **fields)
        orders = [(mount.path / f".mlfs/order/train/{epoch}/0.indices").read_text().split() for epoch in range(EPOCHS)]
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] >= ROWS // 2)
        command = [sys.executable, "-c", SCRIPT, str(mount.path / "train.npy")]
        done = scripts.run(command)
        mount.settle()
        status = mount.status()["jobs"][0]
    seen = json.loads(done.stdout)
    assert [[index for index, _ in epoch] for epoch in seen] == [list(map(int, order)) for order in orders]
    assert all(total == sums[index] for epoch in seen for index, total in epoch)
    # A tripwire that the kernel takes in passing is laid again a moment later: a row that is read before is not seen.
    assert status["agreement"] >= 0.8, status
    assert status["state"] == "finished"
