"""`mlfs simulate`: what it prints, what it refuses, what it draws, how it ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import exit_code

from mlfs.cli.main import main

QUICK = ["simulate", "thesis-s1", "--shrink", "10"]


def test_json_has_the_seconds_of_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--policy", "nopfs", "--policy", "mlfs,lower-bound", "--sharing", "paper", "--json"]) == 0
    out = capsys.readouterr()
    said = json.loads(out.out)
    assert out.err == ""
    assert list(said["policies"]) == ["nopfs", "mlfs", "lower-bound"]
    assert said["policies"]["lower-bound"]["seconds"] <= said["policies"]["mlfs"]["seconds"]
    assert said["policies"]["nopfs"]["hit_ratio"].keys() == {"peer:ram", "peer:ssd", "local:ram", "local:ssd"}
    assert len(said["policies"]["mlfs"]["epochs"]) == 10


@pytest.mark.parametrize(("more", "said"), [("--policy=nopfs", "nopfs, epoch"), ("--detailed", "in detail, epoch")])
def test_what_takes_long_says_how_far_it_is(
    more: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["simulate", "thesis-s1", "--shrink", "100", more]
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("mlfs.cli.progress.PROGRESS_AFTER_S", -1.0)
    monkeypatch.setattr("mlfs.cli.progress.PLAIN_PROGRESS_EVERY_S", -1.0)
    assert main(words) == 0
    assert re.search(rf"mlfs: simulating: \d+%, {said} \d+", capsys.readouterr().err)


def test_a_table_of_all_policies_and_why_some_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "thesis-s3", "--shrink", "1000"]) == 0
    out = capsys.readouterr().out
    assert "deepio_opportunistic" in out
    assert "lbann_dynamic: the data set exceeds the memory" in out


def test_the_list_names_scenarios_and_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list"]) == 0
    out = capsys.readouterr().out
    assert "nopfs-imagenet22k" in out
    assert "locality_aware" in out


def test_pictures_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bars, chart = tmp_path / "bars.png", tmp_path / "map.png"
    assert main([*QUICK, "--plot", str(bars)]) == 0
    sizes = ["--ram", "0,1MB,10MB", "--ssd", "0,10MB"]
    assert main([*QUICK, "--policy", "mlfs", *sizes, "--plot", str(chart), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["ram"] == ["0", "1MB", "10MB"]
    assert [len(row) for row in said["seconds"]] == [3, 3]
    assert said["seconds"][1][2] <= said["seconds"][0][0]
    for picture in (bars, chart):
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["thesis-s5"], "no scenario 'thesis-s5' (did you mean thesis-s"),
        (["thesis-s1", "--policy", "nofps"], "no policy 'nofps' (did you mean nopfs?)"),
        (["thesis-s1", "--sharing", "fair"], "--sharing: no rule 'fair'"),
        ([], "no scenario is given"),
        (["/nowhere/x.toml"], "/nowhere/x.toml: No such file or directory"),
        (["thesis-s1", "--seed", "-1"], "--seed is '-1', must be a whole number"),
        (["thesis-s1", "--shrink", "0"], "--shrink is '0', must be a whole number from 1"),
        (["thesis-s1", "--ram", "1GB"], "a map shows one policy"),
        (["thesis-s1", "--ram", "1GB", "--policy", "mlfs"], "a map needs --ram, --ssd"),
        (["thesis-s1", "--ram", "x", "--ssd", "0", "--policy", "mlfs"], "capacity: 'x' is not a size"),
        ([*QUICK[1:], "--policy", "mlfs", "--plot", "/nowhere/a.png"], "--plot /nowhere/a.png: No such file"),
        ([*QUICK[1:], "--policy", "mlfs", "--plot", "a.xyz"], "--plot a.xyz: "),
        ([*QUICK[1:], "--policy", "mlfs", "--plot", "/"], "--plot /: Is a directory"),
    ],
)
def test_a_refusal_is_one_line(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["simulate", *args]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_ctrl_c_ends_it_in_one_line(tmp_path: Path) -> None:
    """Interrupted in the middle of an epoch: the program says so itself when it is there."""
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from mlfs.cli.main import main\n"
        "from mlfs.lab.sim import run\n"
        "def tally(*args):\n"
        "    print('in the middle', flush=True)\n"
        "    sys.stdin.read()\n"
        "run.tally = tally\n"
        "sys.exit(main(['simulate', 'thesis-s1', '--policy', 'naive', '--plot', sys.argv[1]]))\n"
    )
    picture = tmp_path / "a.png"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(picture)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "mlfs: interrupted\n"
    assert not picture.exists()
