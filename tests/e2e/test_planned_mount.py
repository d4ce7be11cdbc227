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


def test_one_rank_of_many_keeps_what_it_reads_most(source: Path) -> None:
    capacity, epochs = 20, 12
    flags = ["--ram", str(capacity * PAGES_BYTES), "--staging", "1M"]
    with MlfsMount(source, *flags) as mount:
        mount.register(seed=3, epochs=epochs, batch_size=4, layout="sorted", world_size=3, ranks=[1])
        assert wait_until(lambda: bool(mount.status()["plan"].get("samples") == capacity), WAIT_S)
        orders = [(mount.path / f".mlfs/order/train/{e}/1").read_text().splitlines() for e in range(epochs)]
        counts = Counter(name for order in orders for name in order)
        best = sum(sorted(counts.values(), reverse=True)[:capacity])
        assert mount.status()["plan"] | {"reads_kept": best, "reads": counts.total()} == mount.status()["plan"]
        for order in orders:
            for name in order:
                assert (mount.path / name).read_bytes()
        assert wait_until(lambda: not any(mount.status()["under_way"].values()), WAIT_S)
        (ram,) = mount.status()["tiers"]
        assert ram["used_bytes"] <= ram["capacity_bytes"]
        assert ram["samples"] == capacity
        mount.control({"op": "unregister", "name": "train"})
        assert mount.status()["plan"] == {"keeps": "first read, first kept", "being_counted": []}
