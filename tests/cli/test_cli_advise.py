"""`mlfs advise`: the published examples from the command line, and one line for what cannot be."""

from __future__ import annotations

import json
import math
import shlex
from typing import Any

import pytest
from cli_support import exit_code

from mlfs.cli import client
from mlfs.cli import main as cli
from mlfs.errors import ExitCode


def answer(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, Any]:
    assert cli.main(["advise", *shlex.split(words), "--json"]) == ExitCode.OK
    return dict(json.loads(capsys.readouterr().out))


def test_the_published_examples(capsys: pytest.CaptureFixture[str]) -> None:
    most = answer(capsys, "gpus --efficiency 80% --gpus 4")
    assert most["overhead_at_most"] == pytest.approx(0.0909, abs=5e-5)
    assert answer(capsys, "gpus --overhead 0.10 --speedup 3")["gpus_needed"] == 4
    words = "servers --parameters 180MB --workers 4 --bandwidth 125MB/s --compute-time 2s"
    assert answer(capsys, words)["servers"] == 6


def test_the_formula_is_printed_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", "gpus", "--overhead", "10%", "--gpus", "4"]) == ExitCode.OK
    assert "(1 + 0.1) / (1 + 4 x 0.1) = 0.7857" in capsys.readouterr().out


def test_alexnet_ships(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    found = answer(capsys, "batch alexnet")
    rates = {row["batch"]: row["samples_per_s"] for row in found["batches"]}
    assert rates[found["batch"]] == max(rates.values())
    assert {"gemm", "fft"} <= {name for row in found["batches"] for name in row["algorithms"].values()}
    assert cli.main(["advise", "batch", "--example"]) == ExitCode.OK
    path = tmp_path / "model.toml"
    path.write_text(capsys.readouterr().out)
    assert answer(capsys, f"batch {path}") == found
    path.write_text(path.read_text().replace("12GB", "100MB"))
    assert cli.main(["advise", "batch", str(path)]) == ExitCode.USAGE
    assert "does not fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "gpus --efficiency 1.2 --gpus 4", "gpus --efficiency 0.5", "gpus --overhead -1 --gpus 2", "gpus --gpus 0",
        "gpus --overhead 0.1 --speedup 12", "gpus --overhead much --gpus 2", "gpus --overhead nan --gpus 2",
        "gpus --overhead 0 --speedup 1e300", "gpus --overhead 0.1 --gpus 99999999999999999999",
        "gpus --overhead 1 --from-mount /x --gpus 2",
        "servers --parameters 1G --workers 0 --bandwidth 1G --compute-time 1s",
        "servers --parameters 1G --workers 1 --bandwidth 0 --compute-time 1s",
        "batch", "batch /no/such/file", "workers --from-mount /x --processors 0",
        "workers --from-mount /x --processors 1000000000000",
    ],
)  # fmt: skip
def test_impossible_input_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert exit_code(["advise", *shlex.split(words)]) == ExitCode.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("mlfs")
    assert printed.err.count("\n") == 1


def test_overhead_from_a_mounts_stalls(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: list[dict[str, int]] = [{}] * 4
    status = {"jobs": [{"name": "train", "stalled_s": 4.0, "reading_s": 11.0, "ranks": ranks}, {"reading_s": 0.0}]}
    monkeypatch.setattr(client, "require_mount", lambda path: path)
    monkeypatch.setattr(client, "read_status", lambda path: status)
    found = answer(capsys, "gpus --from-mount /m --gpus 2")
    assert found["overhead"] == pytest.approx(0.1)
    assert found["efficiency"] == pytest.approx(1.1 / 1.2)
    status["jobs"] = []
    assert cli.main(["advise", "gpus", "--from-mount", "/m", "--gpus", "2"]) == ExitCode.USAGE
    assert "no job has read" in capsys.readouterr().err
    assert math.isfinite(found["speedup"])
