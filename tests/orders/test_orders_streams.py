"""Streams: from a job and a tree to the entries each rank reads; the registry; what the package imports."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from orders_support import entries_of, job, make_file, manifest_of, torchvision_samples
from torch.utils.data import DistributedSampler

from mlfs.errors import JobError
from mlfs.job.catalogue import BUILT_IN
from mlfs.orders.order import Indices
from mlfs.orders.streams import JobStreams, build_streams


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number in range(23):
        make_file(tmp_path, f"class{number % 3}/{number}.jpg")
    os.symlink("../class0/0.jpg", tmp_path / "class1/linked.jpg")
    os.symlink("nowhere", tmp_path / "class1/broken.jpg")
    return tmp_path


def test_a_stream_is_the_sampler_over_torchvisions_files(source: Path) -> None:
    manifest = manifest_of(source)
    streams = build_streams(job(epochs=3, seed=7, world_size=4, ranks="1,3", batch_size=2), manifest)
    entries = entries_of(manifest, str(source), torchvision_samples(str(source)))
    assert len(entries) == 25
    for rank in range(4):
        sampler = DistributedSampler(entries, 4, rank, seed=7)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            ids = streams.epoch_ids(epoch, rank)
            assert ids.tolist() == [entries[index] for index in sampler]
            assert ids.dtype == np.int64
            assert len(ids) == streams.length(epoch) == 7
    assert (streams.spec.ranks, streams.spec.epochs, streams.spec.batch_size) == ((1, 3), 3, 2)
    assert streams.sample_ids.tolist() == entries


def test_nobody_can_change_a_stream_by_accident(source: Path) -> None:
    streams = build_streams(job(), manifest_of(source))
    for array in (streams.epoch_ids(0, 0), streams.sample_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5


@pytest.mark.parametrize(("epoch", "rank"), [(-1, 0), (2, 0), (0, -1), (0, 2)])
def test_epochs_and_ranks_that_are_not_the_jobs_are_refused(source: Path, epoch: int, rank: int) -> None:
    streams = build_streams(job(epochs=2, world_size=2, ranks=[0]), manifest_of(source))
    with pytest.raises(ValueError, match="the job has 2 epochs, 2 ranks"):
        streams.epoch_ids(epoch, rank)


class CountingOrder:
    """Counts how often a stream is made."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def stream_length(self, epoch: int) -> int:
        return 1

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        self.made.append((epoch, rank))
        return np.array([epoch], dtype=np.int64)


def test_three_epochs_are_kept_with_all_their_ranks() -> None:
    order = CountingOrder()
    streams = JobStreams(job(epochs=5, world_size=2), np.arange(5), order)
    for _ in range(3):
        for epoch in range(3):
            assert [streams.epoch_ids(epoch, rank).tolist() for rank in range(2)] == [[epoch]] * 2
    assert order.made == [(epoch, rank) for epoch in range(3) for rank in range(2)]
    streams.epoch_ids(3, 0)  # lets go of epoch 0, the longest not asked for
    streams.epoch_ids(2, 0)
    streams.epoch_ids(0, 0)
    assert order.made[6:] == [(3, 0), (0, 0)]


def test_threads_that_ask_at_the_same_time_get_the_same(source: Path) -> None:
    streams = build_streams(job(epochs=20, world_size=2), manifest_of(source))
    expected = [streams.epoch_ids(epoch, 1).tolist() for epoch in range(20)]
    wrong: list[int] = []

    def ask() -> None:
        wrong.extend(epoch for epoch in range(20) if streams.epoch_ids(epoch, 1).tolist() != expected[epoch])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(("n", "batch_size", "read"), [(25, 10, 20), (25, 5, 25), (25, 26, 0)])
def test_a_loader_that_drops_its_last_batch_reads_whole_ones(source: Path, n: int, batch_size: int, read: int) -> None:
    manifest = manifest_of(source)
    whole = build_streams(job(batch_size=batch_size), manifest)
    cut = build_streams(job(batch_size=batch_size, loader_drop_last=True), manifest)
    assert (whole.length(0), cut.length(0)) == (n, read)
    assert cut.epoch_ids(0, 0).tolist() == whole.epoch_ids(0, 0)[:read].tolist()


def test_a_start_beyond_the_epoch_is_refused(source: Path) -> None:
    manifest = manifest_of(source)
    assert build_streams(job(batch_size=10, start_step=3), manifest).length(0) == 25
    with pytest.raises(JobError, match="an epoch has 3 steps") as caught:
        build_streams(job(batch_size=10, start_step=4), manifest)
    assert caught.value.field == "start_step"


def python(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that also finds the packages at `path`."""
    repository = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [repository, *path]))}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_no_framework_is_imported() -> None:
    code = """if True:
        import sys
        from mlfs.job import parse_job
        from mlfs.job.catalogue import BUILT_IN
        from mlfs.orders.order import build_order
        for sampler in BUILT_IN:
            if not sampler.required:
                build_order(parse_job({"epochs": 1, "sampler": sampler.name}), 9).rank_stream(0, 0)
        import mlfs.orders.streams, mlfs.orders.order_file, mlfs.tree.source_files
        frameworks = {"accelerate", "datasets", "lightning", "paddle", "tensorflow", "timm", "transformers"}
        print(sorted((frameworks | {"torch", "torchvision", "pyfuse3", "trio", "numba"}) & set(sys.modules)))
    """
    done = python(code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


PLUGIN = """
import numpy as np

class Reversed:
    def __init__(self, spec, n_samples, resolve):
        self.n = n_samples
    def stream_length(self, epoch):
        return self.n
    def rank_stream(self, epoch, rank):
        return np.arange(self.n)[::-1]
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A package that is installed and adds samplers."""
    site = tmp_path / "site"
    info = site / "more_orders-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: more-orders\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mlfs.orders]\nreversed = more_orders:Reversed\nbroken = no_such_module:X\nsequential = more_orders:Reversed\n"
    )
    (site / "more_orders.py").write_text(PLUGIN)
    return site


def test_another_package_can_add_a_sampler_but_not_replace_one(plugin: Path) -> None:
    code = """if True:
        from mlfs.job import parse_job
        from mlfs.job.names import sampler_names
        from mlfs.orders.order import build_order
        print(sampler_names())
        for sampler in ("reversed", "sequential"):
            print(build_order(parse_job({"epochs": 1, "sampler": sampler}), 3).rank_stream(0, 0).tolist())
    """
    done = python(code, plugin)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        str([own.name for own in BUILT_IN] + ["broken", "reversed"]),
        "[2, 1, 0]",
        "[0, 1, 2]",
    ]


def test_a_sampler_that_cannot_be_loaded_names_its_package(plugin: Path) -> None:
    code = """if True:
        from mlfs.errors import JobError
        from mlfs.job import parse_job
        from mlfs.orders.order import build_order
        try:
            build_order(parse_job({"epochs": 1, "sampler": "broken"}), 3)
        except JobError as error:
            print(error.field, error)
    """
    done = python(code, plugin)
    assert done.stderr == ""
    assert done.stdout.startswith('sampler the sampler "broken" cannot be loaded: ModuleNotFoundError')
    assert "no_such_module:X" in done.stdout
