"""A mount that was calibrated, and one whose node reads some samples more often than others."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount

pytestmark = pytest.mark.page_counts

FILES, SIZE = 60, 20_000
PAGES_BYTES = -(-SIZE // 4096) * 4096
WAIT_S = 120


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    for index in range(FILES):
        (root / f"{index:03d}.bin").write_bytes(os.urandom(SIZE))
    return root


def test_a_calibration_is_found_and_advice_comes_from_the_mount(source: Path, tmp_path: Path) -> None:
    mount = MlfsMount(source, "--ram", "16M", "--staging", "4M", state=tmp_path / "state")
    short = ["--seconds", "0.5s", "--bytes", "1M", "--readers", "4", "--threads", "2"]
    made = json.loads(mount.run("calibrate", str(source), *short, "--json").stdout)
    with mount:
        rates = mount.status()["rates"]
        assert rates["pfs"]["calibrated"] == [[n, round(rate)] for n, rate in made["source"]["read"]]
        assert rates["ram"]["calibrated"] == [[n, round(rate)] for n, rate in made["memory"]["read"]]
        refused = mount.run("calibrate", str(source), *short, check=False)
        assert refused.returncode == 3
        assert "is in an mlfs mount" in refused.stderr
        mount.register(seed=1, epochs=2, batch_size=4, layout="sorted")
        for epoch in range(2):
            for name in (mount.path / f".mlfs/order/train/{epoch}/0").read_text().splitlines():
                assert len((mount.path / name).read_bytes()) == SIZE
            assert wait_until(lambda n=FILES * (epoch + 1): mount.status()["jobs"][0]["observed_opens"] == n, WAIT_S)
        assert wait_until(lambda: not any(mount.status()["under_way"].values()), WAIT_S)
        job = mount.status()["jobs"][0]
        words = ["advise", "gpus", "--from-mount", str(source), "--gpus", "4", "--json"]
        asked = mount.run(*words, check=False)
        assert job["reading_s"] > 0
        if job["stalled_s"] >= job["reading_s"]:  # a machine so slow that nothing but waiting was done
            assert "no time to compute" in asked.stderr
        else:
            ratio = job["stalled_s"] / (job["reading_s"] - job["stalled_s"])
            assert json.loads(asked.stdout)["overhead"] == pytest.approx(ratio)
        said = mount.run("plan", str(source), "--epochs", "3", "--step-time", "1ms", "--layout", "sorted").stdout
        assert "calibrated" in said
        measured = {name for name, rates in mount.status()["rates"].items() if rates["measured"]}
    check_it_outlives_the_mount(mount, source, made, measured)
    broken = MlfsMount(source, "--calibration", str(tmp_path / "none.toml"), state=tmp_path / "other")
    refused = broken.run("mount", str(source), *broken.flags, check=False)
    assert refused.returncode == 2
    assert "none.toml" in refused.stderr
    broken.clean_up()


def check_it_outlives_the_mount(mount: MlfsMount, source: Path, made: dict[str, Any], measured: set[str]) -> None:
    """What was measured is there for `mlfs plan` and the next mount, beside the calibration."""
    words = ["plan", str(source), "--epochs", "3", "--step-time", "1ms", "--layout", "sorted", "--json"]
    told = json.loads(mount.run(*words).stdout)
    assert told["calibrated"] == made["made"]
    assert told["refined"] or not measured
    assert json.loads(mount.run(*words, "--calibration", made["file"]).stdout)["refined"] is None
    with mount:
        for name, rates in mount.status()["rates"].items():
            assert rates["refined"] or name not in measured


def register_one_of_three(mount: MlfsMount, epochs: int) -> list[list[str]]:
    """A node runs one rank of three. Returns what it reads, epoch by epoch."""
    mount.register(seed=3, epochs=epochs, batch_size=4, layout="sorted", world_size=3, ranks=[1])
    assert wait_until(lambda: "reads" in mount.status()["plan"], WAIT_S)
    return [(mount.path / f".mlfs/order/train/{e}/1").read_text().splitlines() for e in range(epochs)]


def read_all(mount: MlfsMount, orders: list[list[str]]) -> None:
    """Read it, and wait until nothing is under way."""
    for order in orders:
        for name in order:
            assert (mount.path / name).read_bytes() == (mount.source / name).read_bytes()
    assert wait_until(lambda: not any(mount.status()["under_way"].values()), WAIT_S)
    for tier in mount.status()["tiers"]:
        assert tier["used_bytes"] <= tier["capacity_bytes"]


def test_one_rank_of_many_keeps_what_it_reads_most(source: Path, tmp_path: Path) -> None:
    """In memory and on a disk: nothing is evicted where a disk keeps some of it."""
    in_memory, on_disk, epochs = 15, 5, 12
    flags = ["--ram", str(in_memory * PAGES_BYTES), "--ssd", f"{tmp_path / 'ssd'}:{on_disk * PAGES_BYTES}"]
    with MlfsMount(source, *flags, "--staging", "1M", mountpoint=empty(tmp_path)) as mount:
        orders = register_one_of_three(mount, epochs)
        counts = Counter(name for order in orders for name in order)
        best = sum(sorted(counts.values(), reverse=True)[: in_memory + on_disk])
        plan = mount.status()["plan"]
        assert plan | {"samples": in_memory + on_disk, "reads_kept": best, "reads": counts.total()} == plan
        read_all(mount, orders)
        assert [tier["samples"] for tier in mount.status()["tiers"]] == [in_memory, on_disk]
        mount.control({"op": "unregister", "name": "train"})
        assert mount.status()["plan"] == {"keeps": "first read, first kept", "being_counted": []}


def test_one_rank_of_many_with_memory_only_reads_less_than_any_copies_that_stay_could_save(
    source: Path, tmp_path: Path
) -> None:
    room, epochs = 20, 12
    flags = ["--ram", str(room * PAGES_BYTES), "--staging", "1M"]
    with MlfsMount(source, *flags, mountpoint=empty(tmp_path)) as mount:
        orders = register_one_of_three(mount, epochs)
        plan = mount.status()["plan"]
        assert plan["evicts"]
        assert plan["source_share"] < plan["source_share_keeping"]
        read_all(mount, orders)
        counts = Counter(name for order in orders for name in order)
        stay = counts.total() - sum(sorted((count - 1 for count in counts.values()), reverse=True)[:room])
        assert mount.status()["fetches"]["pfs"]["count"] < stay + mount.taken_back()


def empty(tmp_path: Path) -> Path:
    """A directory to mount at."""
    (tmp_path / "mount").mkdir()
    return tmp_path / "mount"
