"""Nodes that read one array by rows: each node its ranks' rows, of blocks that the others own."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support import scripts
from support.cluster import MountedCluster

ROWS, EPOCHS, BLOCK_BYTES = 240, 2, 1 << 20
READER = """
import json, os, sys, time
import numpy as np
path, begin, length, order = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
fd = os.open(path, os.O_RDONLY)
sums = []
for row in order:
    sums.append(int(np.frombuffer(os.pread(fd, length, begin + row * length), np.uint8).sum()))
    time.sleep(0.002)
print(json.dumps(sums))
"""


@pytest.mark.parametrize(("nodes", "row_bytes"), [(2, 100_000), (3, 40_000), (2, 4096)])
def test_rows_are_right_on_each_node_and_the_source_is_read_once_for_all(
    tmp_path: Path, nodes: int, row_bytes: int
) -> None:
    count = ROWS if row_bytes > 4096 else 2400
    rows = np.random.default_rng(nodes).integers(0, 256, (count, row_bytes), dtype=np.uint8)
    (tmp_path / "source").mkdir()
    np.save(tmp_path / "source/train.npy", rows)
    begin = (tmp_path / "source/train.npy").stat().st_size - rows.nbytes
    with MountedCluster(tmp_path / "source", nodes, tmp_path / "nodes", "--ram", "64M", "--staging", "16M") as cluster:

        def read(node: int, epoch: int) -> None:
            mount = cluster.mounts[node]
            order = [int(line) for line in (mount.path / f".mlfs/order/train/{epoch}/{node}.indices").open()]
            words = [str(mount.path / "train.npy"), str(begin), str(row_bytes), json.dumps(order)]
            done = scripts.run([sys.executable, "-c", READER, *words])
            assert json.loads(done.stdout) == [int(rows[row].sum()) for row in order]

        fields = {"sampler": "torch-distributed", "seed": 3, "epochs": EPOCHS, "batch_size": 4, "world_size": nodes}
        cluster.register(0, name="train", layout="npy", **fields)
        for epoch in range(EPOCHS):
            with ThreadPoolExecutor(nodes) as pool:
                list(pool.map(lambda node, of=epoch: read(node, of), range(nodes)))
        for mount in cluster.mounts:
            mount.settle()
        found = [mount.status() for mount in cluster.mounts]
        # Two nodes may both read a block in the moment in which a plan begins.
        assert sum(status["pfs"]["total_bytes"] for status in found) <= rows.nbytes + BLOCK_BYTES + 4096
        assert all(status["jobs"][0]["agreement"] >= 0.95 for status in found)
