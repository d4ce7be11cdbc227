"""A job over rows: an array's rows, read in a sampler's order, are staged ahead of their readers and kept by blocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support import scripts
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.slow import SlowSource

pytestmark = pytest.mark.page_counts
ROWS, ROW_BYTES, EPOCHS = 300, 100_000, 3
TOTAL = ROWS * ROW_BYTES
READER = """
import json, os, sys, time
import numpy as np
path, begin, length, order = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
fd = os.open(path, os.O_RDONLY)
sums = []
for row in order:
    data = os.pread(fd, length, begin + row * length)
    sums.append(int(np.frombuffer(data, np.uint8).sum()))
    time.sleep(0.002)
print(json.dumps(sums))
"""
FORKING = """
import json, os, sys
path, begin, length, order = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
fd = os.open(path, os.O_RDONLY)
for at in range(0, len(order), 4):
    child = os.fork()
    if not child:
        os._exit(any(len(os.pread(fd, length, begin + row * length)) != length for row in order[at : at + 4]))
    assert os.waitpid(child, 0)[1] == 0
"""
LOADER = """
import json, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    array = None
    def __len__(self):
        return int(sys.argv[2])
    def __getitem__(self, index):
        if self.array is None:
            self.array = np.load(sys.argv[1], mmap_mode="r")
        time.sleep(0.001)
        return index, int(np.array(self.array[index]).sum())

torch.manual_seed(7)
for epoch in range(int(sys.argv[3])):
    for indices, sums in DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2):
        print(json.dumps([indices.tolist(), sums.tolist()]))
"""


@pytest.fixture(scope="module")
def backing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rows")
    np.save(root / "train.npy", rows_of(1))
    return root


@contextmanager
def mounted(backing: Path, tmp_path: Path, ram: str) -> Iterator[tuple[SlowSource, MlfsMount]]:
    """A mount of a slow source that holds the array."""
    (tmp_path / "mnt").mkdir()
    with (
        SlowSource(backing, bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", ram, "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        slow.control(reset_counts=True)
        yield slow, mount


def rows_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)


def begin_of(path: Path) -> int:
    return path.stat().st_size - TOTAL


def orders(seed: int) -> list[list[int]]:
    """What numpy's permutations give, epoch by epoch."""
    rng = np.random.default_rng(seed)
    return [rng.permutation(ROWS).tolist() for _ in range(EPOCHS)]


def read(mount: MlfsMount, order: list[int]) -> list[int]:
    """Sums of rows, read by a process of its own."""
    path = mount.path / "train.npy"
    words = [str(path), str(path.stat().st_size % ROW_BYTES), str(ROW_BYTES), json.dumps(order)]
    done = scripts.run([sys.executable, "-c", READER, *words])
    return list(json.loads(done.stdout))


def test_rows_are_staged_in_the_order_of_the_sampler_and_the_source_is_read_once(backing: Path, tmp_path: Path) -> None:
    rows = np.load(backing / "train.npy")
    with mounted(backing, tmp_path, "100MiB") as (slow, mount):
        answer = mount.register(
            name="train", sampler="numpy", seed=5, epochs=EPOCHS, batch_size=4, layout="npy", root="train.npy"
        )
        assert answer["samples"] == ROWS
        begin = begin_of(backing / "train.npy") + orders(5)[0][0] * ROW_BYTES
        assert answer["first_paths"]["0"][0] == f"train.npy\t{begin}\t{ROW_BYTES}"
        for epoch, order in enumerate(orders(5)):
            wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] >= 50)
            assert read(mount, order) == [int(rows[row].sum()) for row in order]
            mount.settle()
            assert slow.counts()["bytes"] <= (1.02 if epoch == 0 else 0) * TOTAL
            slow.control(reset_counts=True)
        status = mount.status()
        assert status["requests"]["read"] <= 1.2 * EPOCHS * ROWS  # one for each row, of a page
        assert (status["jobs"][0]["agreement"], status["jobs"][0]["state"]) == (pytest.approx(1, abs=0.03), "finished")
        assert status["reads"]["all"]["page_cache"]["reads"] >= 0.9 * EPOCHS * ROWS
        assert status["staging"]["used_bytes"] <= 0.03 * TOTAL  # of reads that nobody was told of


def test_a_loader_of_workers_over_a_mapped_array_is_followed(backing: Path, tmp_path: Path) -> None:
    rows = np.load(backing / "train.npy")
    with mounted(backing, tmp_path, "100MiB") as (slow, mount):
        mount.register(name="train", sampler="torch-random", seed=7, epochs=2, batch_size=4, layout="npy")
        words = [str(mount.path / "train.npy"), str(ROWS), "2"]
        done = scripts.run([sys.executable, "-c", LOADER, *words])
        batches = [json.loads(line) for line in done.stdout.splitlines()]
        read = [pair for indices, sums in batches for pair in zip(indices, sums, strict=True)]
        assert sorted(read) == sorted(2 * [(row, int(rows[row].sum())) for row in range(ROWS)])
        mount.settle()
        job = mount.status()["jobs"][0]
        assert slow.counts()["bytes"] <= 1.02 * TOTAL
        assert (job["agreement"], job["state"]) == (pytest.approx(1, abs=0.05), "finished")
        assert job["loader"]["num_workers"]["value"] == 2


def test_what_no_tier_can_keep_costs_the_source_the_pages_of_its_rows(backing: Path, tmp_path: Path) -> None:
    rows = np.load(backing / "train.npy")
    with mounted(backing, tmp_path, "8MiB") as (slow, mount):
        mount.register(name="train", sampler="numpy", seed=5, epochs=2, batch_size=4, layout="npy")
        for order in orders(5)[:2]:
            assert read(mount, order) == [int(rows[row].sum()) for row in order]
        mount.settle()
        kept_bytes = mount.status()["tiers"][0]["used_bytes"]
        print(slow.counts()["bytes"] / TOTAL, kept_bytes / TOTAL)
        # A row of 100,000 bytes lies in 25 or 26 pages.
        assert slow.counts()["bytes"] <= 1.06 * (2 * TOTAL - kept_bytes) + kept_bytes


def test_a_file_that_changes_under_a_job_gives_no_old_rows(tmp_path: Path) -> None:
    source, before, after = tmp_path / "source", rows_of(1), rows_of(2)
    for path in (source, tmp_path / "mnt"):
        path.mkdir()
    np.save(source / "train.npy", before)
    with MlfsMount(source, "--ram", "100MiB", "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount:
        mount.register(name="train", sampler="numpy", seed=5, epochs=EPOCHS, batch_size=4, layout="npy")
        order = orders(5)[0]
        assert read(mount, order) == [int(before[row].sum()) for row in order]
        np.save(tmp_path / "new.npy", after)
        os.rename(tmp_path / "new.npy", source / "train.npy")
        mount.run("refresh", str(mount.path))
        for order in orders(5)[1:]:
            assert read(mount, order) == [int(after[row].sum()) for row in order]


def test_rows_that_processes_read_which_are_gone_take_no_room_for_as_long_as_the_file_is_open(
    backing: Path, tmp_path: Path
) -> None:
    """Workers of each epoch have a descriptor of the process that has begun them."""
    (tmp_path / "mnt").mkdir()
    with MlfsMount(backing, "--ram", "100MiB", "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount:
        mount.register(name="train", sampler="numpy", seed=5, epochs=1, batch_size=4, layout="npy", root="train.npy")
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] >= 50)
        path, order = mount.path / "train.npy", json.dumps(orders(5)[0])
        words = [str(path), str(path.stat().st_size % ROW_BYTES), str(ROW_BYTES), order]
        subprocess.run([sys.executable, "-S", "-c", FORKING, *words], check=True)  # it has nothing that forks slowly
        mount.settle()
        status = mount.status()
        assert status["reads"]["all"]["page_cache"]["reads"] >= 0.8 * ROWS
        assert status["staging"]["used_bytes"] <= 0.03 * TOTAL


@pytest.mark.parametrize(("rows", "ram"), [(33, "0"), (100, "100MiB"), (400, "0")])
def test_rows_of_a_file_that_has_another_length_by_now_are_read_right(tmp_path: Path, rows: int, ram: str) -> None:
    source, before = tmp_path / "source", rows_of(1)
    after = np.random.default_rng(2).integers(0, 256, (rows, ROW_BYTES), dtype=np.uint8)
    for path in (source, tmp_path / "mnt"):
        path.mkdir()
    np.save(source / "train.npy", before)
    with MlfsMount(source, "--ram", ram, "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount:
        mount.register(name="train", sampler="numpy", seed=5, epochs=EPOCHS, batch_size=4, layout="npy")
        assert not [text for text in logs(mount) if "is not told any more" in text]
        first, *others = orders(5)
        assert read(mount, first) == [int(before[row].sum()) for row in first]
        np.save(tmp_path / "new.npy", after)
        os.rename(tmp_path / "new.npy", source / "train.npy")
        mount.run("refresh", str(mount.path))
        for order in others:
            there = [row for row in order if row < rows]
            assert read(mount, there) == [int(after[row].sum()) for row in there]
            mount.settle()  # nothing stays under way


def logs(mount: MlfsMount) -> list[str]:
    return [path.read_text() for path in mount.state.rglob("*.log")]


WINDOWS = """
import json, sys
import numpy as np
tokens, size = np.memmap(sys.argv[1], np.uint8, "r"), int(sys.argv[2])
print(json.dumps([int(tokens[begin : begin + size].astype(np.int64).sum()) for begin in json.loads(sys.argv[3])]))
"""


@pytest.mark.parametrize("row_bytes", [2000, 4096, 4100])
def test_rows_of_a_page_and_less_are_served_from_memory_before_the_source_is_asked_by_a_reader(
    tmp_path: Path, row_bytes: int
) -> None:
    for path in (tmp_path / "source", tmp_path / "mnt"):
        path.mkdir()
    rows = np.random.default_rng(6).integers(0, 256, (4_500_000 // row_bytes, row_bytes), dtype=np.uint8)
    np.save(tmp_path / "source/train.npy", rows)
    with (
        SlowSource(tmp_path / "source", bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "100MiB", "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        slow.control(reset_counts=True)
        mount.register(name="train", sampler="numpy", seed=5, epochs=2, batch_size=16, layout="npy")
        rng, path = np.random.default_rng(5), mount.path / "train.npy"
        begin = path.stat().st_size - rows.nbytes
        for _ in range(2):
            wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] >= 500)
            order = rng.permutation(len(rows)).tolist()
            words = [str(path), str(begin), str(row_bytes), json.dumps(order)]
            command = [sys.executable, "-c", READER.replace("time.sleep(0.002)", "time.sleep(0.0002)"), *words]
            done = scripts.run(command)
            assert json.loads(done.stdout) == [int(rows[row].sum()) for row in order]
        mount.settle()
        status, sizes = mount.status(), slow.counts()["bytes"] / rows.nbytes
        print(sizes, status["jobs"][0]["agreement"], status["reads"]["all"], status["stalls"], status["requests"])
        assert sizes <= 1.02
        assert (status["jobs"][0]["agreement"], status["jobs"][0]["state"]) == (pytest.approx(1, abs=0.05), "finished")
        assert status["reads"]["all"]["page_cache"]["reads"] >= 0.9 * 2 * len(rows)


def test_windows_of_a_mapped_file_at_any_offset_are_followed_and_right(tmp_path: Path) -> None:
    for path in (tmp_path / "source", tmp_path / "mnt"):
        path.mkdir()
    size, draw = 2050, np.random.default_rng(8)
    tokens = draw.integers(0, 256, 30_000_000, dtype=np.uint8)
    (tmp_path / "source/train.bin").write_bytes(tokens.tobytes())
    windows = draw.integers(0, len(tokens) - size, 600).tolist()
    (tmp_path / "windows").write_text("".join(f"train.bin\t{begin}\t{size}\n" for begin in windows))
    with (
        SlowSource(tmp_path / "source", bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "100MiB", "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        slow.control(reset_counts=True)
        fields = {"layout": "ranges", "manifest_file": str(tmp_path / "windows"), "sampler": "sequential"}
        mount.register(name="train", epochs=1, batch_size=12, **fields)
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] >= 500)
        words = [str(mount.path / "train.bin"), str(size), json.dumps(windows)]
        done = scripts.run([sys.executable, "-c", WINDOWS, *words])
        assert json.loads(done.stdout) == [int(tokens[begin : begin + size].sum()) for begin in windows]
        mount.settle()
        status = mount.status()
        print(slow.counts()["bytes"] / len(tokens), status["jobs"][0]["agreement"], status["requests"])
        assert slow.counts()["bytes"] <= 1.02 * len(tokens)
        assert status["jobs"][0]["agreement"] >= 0.9


MDS = """
import json, sys
import numpy as np
# As streaming/base/format/mds/reader.py reads a sample.
for path, index in json.loads(sys.argv[1]):
    with open(path, "rb", 0) as file:
        file.seek(4 * (1 + index))
        begin, end = np.frombuffer(file.read(8), np.uint32)
        file.seek(begin)
        print(int(np.frombuffer(file.read(end - begin), np.uint8).sum()))
"""


def test_samples_of_mds_shards_that_are_opened_for_each_are_staged(tmp_path: Path) -> None:
    source, draw, shards = tmp_path / "source", np.random.default_rng(3), 3
    for path in (source, tmp_path / "mnt"):
        path.mkdir()
    samples = [
        [draw.integers(0, 256, draw.integers(50_000, 150_000), np.uint8) for _ in range(60)] for _ in range(shards)
    ]
    for number, of_shard in enumerate(samples):
        ends = np.cumsum([4 * (len(of_shard) + 2), *map(len, of_shard)]).astype(np.uint32)
        head = np.uint32(len(of_shard)).tobytes() + ends.tobytes()
        (source / f"{number}.mds").write_bytes(head + b"".join(one.tobytes() for one in of_shard))
    index = {"shards": [{"raw_data": {"basename": f"{number}.mds"}} for number in range(shards)]}
    (source / "index.json").write_text(json.dumps(index))
    total = sum(path.stat().st_size for path in source.iterdir())
    with (
        SlowSource(source, bandwidth="400M") as slow,
        MlfsMount(slow.path, "--ram", "100MiB", "--staging", "16MiB", mountpoint=tmp_path / "mnt") as mount,
    ):
        slow.control(reset_counts=True)
        mount.register(name="train", sampler="mosaicml", epochs=2, batch_size=4, layout="mds", canonical_nodes=1)
        for epoch in range(2):
            order = [int(line) for line in (mount.path / f".mlfs/order/train/{epoch}/0.indices").read_text().split()]
            assert sorted(order) == list(range(60 * shards))
            asked = [(str(mount.path / f"{index // 60}.mds"), index % 60) for index in order]
            done = scripts.run([sys.executable, "-c", MDS, json.dumps(asked)])
            assert [*map(int, done.stdout.split())] == [int(samples[at // 60][at % 60].sum()) for at in order]
        mount.settle()
        job = mount.status()["jobs"][0]
        assert slow.counts()["bytes"] <= 1.03 * total
        assert (job["agreement"], job["state"]) == (pytest.approx(1, abs=0.05), "finished")
