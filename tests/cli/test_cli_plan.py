"""`mlfs plan`: real sizes, given or calibrated bandwidths, and what the text says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from cli_support import exit_code

from mlfs.cli import main as cli
from mlfs.errors import ExitCode
from mlfs.measure import calibration
from mlfs.measure.calibration import Calibration, SourceSpeeds, StorageSpeeds
from mountd import mounts

FILES, SIZE = 40, 10_000


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for index in range(FILES):
        path = tmp_path / "source" / f"c{index % 2}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(SIZE))
    return tmp_path / "source"


def plan(source: Path, words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["plan", str(source), *shlex.split(words), "--json"]) == ExitCode.OK
    return dict(json.loads(capsys.readouterr().out))


def test_given_bandwidths(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--nodes 2 --world-size 4 --batch-size 5 --epochs 3 --step-time 1s --pfs-bandwidth 40KB"
    found = plan(source, words, capsys)
    assert (found["samples"], found["data_bytes"], found["steps"]) == (FILES, FILES * SIZE, 2)
    assert found["first_epoch"]["seconds"] == 10
    assert found["later_epochs"]["rules"] == "pfs"
    assert (found["seconds"], found["stall_s"], found["pfs_bytes"]) == (30, 24, 3 * FILES * SIZE)
    assert found["first_batch_s"] == pytest.approx(2 * 5 * SIZE / 20_000)
    assert not found["fits"]
    roomy = plan(source, f"{words} --ram 240K", capsys)  # 40 samples of 3 pages are 480 KiB
    assert roomy["fits"]
    assert (roomy["seconds"], roomy["pfs_bytes"]) == (14, FILES * SIZE)
    assert roomy["later_epochs"]["rules"] == "compute"
    assert not plan(source, f"{words} --ram 239K", capsys)["fits"]
    assert not plan(source, f"{words} --ram 240K --no-peers", capsys)["fits"]
    gains = {gain["what"]: gain["saved_s"] for gain in found["marginal"]}
    assert gains["ram"] == pytest.approx(16)
    assert gains["pfs"] > gains["ram"]
    assert gains["network"] == 0
    assert list(gains.values()) == sorted(gains.values(), reverse=True)


def test_nodes_that_share_nothing_fetch_what_they_read_for_the_first_time(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--nodes 2 --world-size 4 --batch-size 5 --epochs 2 --step-time 1s --pfs-bandwidth 40KB --ram 1M --no-peers"
    found = plan(source, words, capsys)
    assert found["fits"]
    assert found["later_epochs"]["pfs_bytes"] == pytest.approx(FILES * SIZE / 2)  # of what a node reads, half is new
    assert cli.main(["plan", str(source), *shlex.split(words)]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "it fits: RAM" in said
    assert "fetches each sample itself the first time that it reads it" in said


def test_a_mount_elsewhere_has_the_figures_of_its_source(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    far = SourceSpeeds(path="/data/a b%", read=((1, 5e6),))
    made = Calibration(made="then", source=far, memory=StorageSpeeds(read=((1, 1e9),), write=((1, 1e9),)))
    calibration.save(made, calibration.default_path(far.path))
    entry = mounts.MountEntry(1, 1, "0:1", str(source), mounts.FSTYPE, "mlfs:/data/a%20b%25")
    monkeypatch.setattr("mountd.interface.enclosing_mlfs", lambda _path: [entry])
    assert plan(source, "--epochs 2 --step-time 1s", capsys)["pfs_bytes_per_s"] == 5e6


def test_a_cluster_may_be_larger_than_what_one_mount_serves(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(source, "--nodes 1024 --world-size 8192 --epochs 2 --step-time 1s --pfs-bandwidth 1GB", capsys)
    assert (found["nodes"], found["world_size"], found["steps"]) == (1024, 8192, 1)
    assert cli.main(["plan", str(source), "--step-time", "1s", "--pfs-bandwidth", "1GB"]) == ExitCode.USAGE
    assert "--epochs" in capsys.readouterr().err


def test_the_calibration_of_the_source_is_found(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = Calibration(
        made="then",
        source=SourceSpeeds(path=str(source), read=((1, 10_000.0), (2, 20_000.0))),
        memory=StorageSpeeds(read=((1, 1e9),), write=((1, 1e9),)),
        ssd=(StorageSpeeds(path="/s", read=((1, 5e3), (4, 1e4)), write=((1, 1e3),)),),
    )
    calibration.save(measured, calibration.default_path(str(source)))
    found = plan(source, "--epochs 2 --step-time 0 --ssd 1G", capsys)
    assert found["calibrated"] == "then"
    assert found["first_epoch"]["seconds"] == FILES * SIZE / 20_000
    assert found["later_epochs"]["busy_s"]["ssd"] == FILES * SIZE / 1e4
    assert found["crossover_nodes"] is None
    faster = plan(source, "--epochs 2 --step-time 0 --ssd 1G --ssd-bandwidth 80K --nodes 2 --pfs-bandwidth 1G", capsys)
    assert faster["first_epoch"]["seconds"] == FILES * SIZE / 2 / 20_000  # a node draws what it was measured to


def test_what_people_read(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--nodes 2 --epochs 5 --step-time 250ms --ram 64K --ssd 64K --pfs-bandwidth 1MB"
    assert cli.main(["plan", str(source), *shlex.split(words)]) == ExitCode.OK
    text = capsys.readouterr().out
    for said in ("40 samples", "each other", "it does not fit", "limit: ", "p = R / V", "one unit more", "first batch"):
        assert said in text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--epochs 1 --step-time 1s", ExitCode.USAGE, "mlfs calibrate"),
        ("--epochs 1 --step-time 1s --pfs-bandwidth 0", ExitCode.USAGE, "bandwidth"),
        ("--epochs 1 --step-time soon --pfs-bandwidth 1G", ExitCode.USAGE, "soon"),
        ("--epochs 1 --step-time 1s --pfs-bandwidth 1G --nodes 0", ExitCode.USAGE, "--nodes"),
        ("--epochs 1 --step-time 1s --pfs-bandwidth 1G --nodes 3 --world-size 2", ExitCode.USAGE, "ranks"),
        ("--epochs 0 --step-time 1s --pfs-bandwidth 1G", ExitCode.BAD_JOB, "epochs"),
        ("--epochs 1 --step-time 1s --pfs-bandwidth 1G --calibration /no/such", ExitCode.USAGE, "/no/such"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    source: Path, words: str, code: ExitCode, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["plan", str(source), *shlex.split(words)]) == code
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_what_takes_long_says_how_far_it_is(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--epochs 1 --step-time 1s --pfs-bandwidth 1G --world-size 2001 --batch-size 1"
    assert cli.main(["plan", str(source), *shlex.split(words)]) == ExitCode.OK
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("mlfs.cli.progress.PROGRESS_AFTER_S", -1.0)
    assert cli.main(["plan", str(source), *shlex.split(words)]) == ExitCode.OK
    assert "of 2,001 ranks" in capsys.readouterr().err
