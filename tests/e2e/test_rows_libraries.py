"""Jobs over rows of HDF5, Parquet and Arrow files, which their own libraries read through a mount, and of FFCV's: the
bytes are right, the source is read once, and the job is followed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import scripts
from support.beton import write_beton
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource

pytestmark = pytest.mark.page_counts
EPOCHS = 2
CHUNK = 80_000


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 256, shape, np.uint8)


def sums(content: np.ndarray) -> list[int]:
    return content.reshape(len(content), -1).sum(axis=1, dtype=np.int64).tolist()


# Each of these writes a file and returns what a reader finds in each sample: the sum of its bytes.


def contiguous(path: Path) -> list[int]:
    content = noise(300, CHUNK)
    with h5py.File(path, "w") as file:
        file["image"] = content
    return sums(content)


def chunked(path: Path) -> list[int]:
    """A chunk for each row, compressed, and masks in two chunks for each."""
    content, mask = noise(200, CHUNK), noise(200, 2, CHUNK // 4)
    with h5py.File(path, "w") as file:
        file.create_dataset("image", data=content, chunks=(1, CHUNK), compression="gzip", compression_opts=1)
        file.create_dataset("mask", data=mask, chunks=(1, 1, CHUNK // 4))
    return [one + other for one, other in zip(sums(content), sums(mask), strict=True)]


def row_groups(path: Path) -> list[int]:
    content = noise(240, CHUNK)
    table = pa.table({"image": [row.tobytes() for row in content], "label": range(len(content))})
    pq.write_table(table, path, row_group_size=2, compression="none")
    return sums(content.reshape(-1, 2 * CHUNK))


def hf_rows(path: Path) -> list[int]:
    """As datasets keeps a data set of images."""
    content = noise(300, CHUNK)
    table = pa.table({"image": [{"bytes": row.tobytes(), "path": "a.jpg"} for row in content]})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return sums(content)


def batches(path: Path) -> list[int]:
    content = noise(240, CHUNK)
    table = pa.table({"image": [row.tobytes() for row in content]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sums(content.reshape(-1, 2 * CHUNK))


def beton(path: Path) -> list[int]:
    content = noise(300, CHUNK)
    write_beton(path, [[row.tobytes()] for row in content], 1 << 21)
    return sums(content)


class Format(NamedTuple):
    name: str
    make: Callable[[Path], list[int]]
    fields: dict[str, Any]
    opening: str
    sample: str


H5 = "import h5py; file = h5py.File(path)"
ARROW = "import pyarrow as pa"
OF_BYTES = "sum(int(np.frombuffer(one.as_buffer(), np.uint8).sum()) for one in {})"
FORMATS = [
    Format("a.h5", contiguous, {"layout": "hdf5"}, H5, "int(file['image'][at].sum())"),
    Format(
        "b.h5", chunked, {"layout": "hdf5", "columns": ["image", "mask"]}, H5,
        "int(file['image'][at].sum()) + int(file['mask'][at].sum())",
    ),
    Format(
        "a.parquet", row_groups, {"layout": "parquet"}, "import pyarrow.parquet as pq; file = pq.ParquetFile(path)",
        OF_BYTES.format("file.read_row_group(at)['image']"),
    ),
    Format(
        "hf.arrow", hf_rows, {"layout": "arrow"}, f"{ARROW}; file = pa.ipc.open_stream(pa.memory_map(path)).read_all()",
        OF_BYTES.format("[file['image'][at]['bytes']]"),
    ),
    Format(
        "a.arrow", batches, {"layout": "arrow-batches"}, f"{ARROW}; file = pa.ipc.open_file(path)",
        OF_BYTES.format("file.get_batch(at)['image']"),
    ),
    Format(
        "a.beton", beton, {"layout": "ffcv"},
        "head = np.fromfile(path, '<u8', 3); file = np.memmap(path, np.uint8, 'r')\n"
        "places = np.fromfile(path, '<u8', int(head[1]) * 2, offset=24 + 1041).reshape(-1, 2).astype(int)",
        "int(file[places[at, 0] : places[at].sum()].sum())",
    ),
]  # fmt: skip
READER = """
import json, sys, time
import numpy as np
path, order = sys.argv[1], json.loads(sys.argv[2])
{opening}
sums = []
for at in order:
    sums.append({sample})
    time.sleep(0.002)
print(json.dumps(sums))
"""

LOADER = """
import json, sys, time
import h5py
from torch import manual_seed
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    file = None
    def __len__(self):
        return int(sys.argv[2])
    def __getitem__(self, index):
        if self.file is None:
            self.file = h5py.File(sys.argv[1])
        time.sleep(0.001)
        return index, int(self.file["image"][index].sum())

manual_seed(7)
for epoch in range(2):
    for indices, sums in DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2):
        print(json.dumps([indices.tolist(), sums.tolist()]))
"""


@pytest.mark.parametrize("of", FORMATS, ids=lambda of: of.name)
def test_what_libraries_read_is_staged_ahead_of_them(tmp_path: Path, of: Format) -> None:
    for name in ("source", "mnt"):
        (tmp_path / name).mkdir()
    expected = of.make(tmp_path / "source" / of.name)
    total = (tmp_path / "source" / of.name).stat().st_size
    with (
        SlowSource(tmp_path / "source", bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "100MiB", "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        job = {"name": "train", "sampler": "numpy", "seed": 5, "epochs": EPOCHS, "batch_size": 4, **of.fields}
        assert mount.register(**job)["samples"] == len(expected)
        slow.control(reset_counts=True)
        rng = np.random.default_rng(5)
        for epoch in range(EPOCHS):
            order = rng.permutation(len(expected)).tolist()
            wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] >= 20)
            reader = READER.format(opening=of.opening, sample=of.sample)
            command = [sys.executable, "-c", reader, str(mount.path / of.name), json.dumps(order)]
            done = scripts.run(command)
            assert json.loads(done.stdout) == [expected[at] for at in order]
            mount.settle()
            assert slow.counts()["bytes"] <= (1.03 if epoch == 0 else 0.01) * total
            slow.control(reset_counts=True)
        status = mount.status()
    job = status["jobs"][0]
    assert (job["agreement"], job["state"]) == (pytest.approx(1, abs=0.05), "finished")
    assert status["reads"]["all"]["page_cache"]["reads"] >= 0.8 * EPOCHS * len(expected)


def test_workers_of_a_loader_read_rows_that_share_chunks(tmp_path: Path) -> None:
    """Four rows lie in each chunk, which is staged for each of them."""
    for name in ("source", "mnt"):
        (tmp_path / name).mkdir()
    content = noise(800, CHUNK // 4)
    with h5py.File(tmp_path / "source/a.h5", "w") as file:
        file.create_dataset("image", data=content, chunks=(4, CHUNK // 4), compression=1)
    expected = sums(content)
    with (
        SlowSource(tmp_path / "source", bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "100MiB", "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        mount.register(sampler="torch-random", seed=7, epochs=2, batch_size=4, layout="hdf5", root="a.h5")
        slow.control(reset_counts=True)
        command = [sys.executable, "-c", LOADER, str(mount.path / "a.h5"), str(len(expected))]
        done = scripts.run(command)
        batches = [json.loads(line) for line in done.stdout.splitlines()]
        read = [pair for indices, found in batches for pair in zip(indices, found, strict=True)]
        assert sorted(read) == sorted(2 * list(enumerate(expected)))
        mount.settle()
        job = mount.status()["jobs"][0]
        assert slow.counts()["bytes"] <= 1.03 * (tmp_path / "source/a.h5").stat().st_size
    assert (job["agreement"], job["state"]) == (pytest.approx(1, abs=0.05), "finished")
