"""`mlfs order`: the order of a directory on stdout, its ends of lines, its errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DistributedSampler, Subset, random_split

from mlfs.cli import main as cli
from mlfs.errors import ExitCode

FILES = [f"{kind}/{index:02d}.jpg" for kind in ("a", "b", "c") for index in range(11)]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small ImageFolder, and a cache directory of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for path in FILES:
        file = tmp_path / "data" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path / "data"


def order(capfdbinary: pytest.CaptureFixture[bytes], *argv: str | Path) -> list[bytes]:
    assert cli.main(["order", *map(str, argv)]) == 0
    out = capfdbinary.readouterr().out
    assert out.endswith(b"\n")
    return out.split(b"\n")[:-1]


def test_it_is_the_order_of_the_framework(source: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    sampler = DistributedSampler(FILES, 4, 1, seed=9)
    sampler.set_epoch(3)
    expected = [FILES[index].encode() for index in sampler]
    flags = ["--seed", "9", "--world-size", "4"]
    for _ in ("scanned", "from the saved index"):
        assert order(capfdbinary, source, "--epoch", "3", "--rank", "1", *flags) == expected
    assert order(capfdbinary, source, *flags, "--epoch", "3", "--rank", "1", "--head", "2") == expected[:2]
    assert order(capfdbinary, source, *flags, "--ranks", "1", "--start-epoch", "3", "--epochs", "9") == expected
    rest = ["--start-epoch", "3", "--start-step", "2", "--batch-size", "2", "--epochs", "4", "--rank", "1"]
    assert order(capfdbinary, source, *flags, *rest) == expected[4:]
    assert (source.parent / "cache" / "mlfs" / "index").is_dir()


def test_a_part_of_the_data_set_is_random_splits(source: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for lengths in ([0.7, 0.3], [0.3, 0.3, 0.4], [20, 13], [1 / 3, 1 / 3, 1 / 3]):
        parts: list[Subset[str]] = random_split(FILES, lengths, torch.Generator().manual_seed(5))  # type: ignore[arg-type]
        text = ",".join(map(str, lengths))
        for part, subset in enumerate(parts):
            flags = ["--sampler", "sequential", "--split", text, "--split-seed", "5", "--part", str(part)]
            assert order(capfdbinary, source, *flags) == [path.encode() for path in subset]
    flags = ["--split", "20,13", "--part", "1", "--split-seed", "5", "--seed", "2"]
    part = random_split(FILES, [20, 13], torch.Generator().manual_seed(5))[1]  # type: ignore[arg-type]
    expected = [part[index].encode() for index in DistributedSampler(part, 1, 0, seed=2)]
    assert order(capfdbinary, source, *flags) == expected


def test_a_seed_may_be_negative(source: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    expected = [FILES[index].encode() for index in DistributedSampler(FILES, 1, 0, seed=-3)]  # type: ignore[arg-type]
    assert order(capfdbinary, source, "--seed", "-3") == expected


def test_any_name_is_printed_as_it_is_but_a_newline_wants_null(
    source: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (source / "b" / "é\udcff .jpg").touch()
    assert "b/é\udcff .jpg".encode(errors="surrogateescape") in order(capfdbinary, source, "--sampler", "sequential")
    (source / "b" / "x\ny.jpg").touch()
    assert cli.main(["order", str(source)]) == ExitCode.FAILURE
    said = capfdbinary.readouterr()
    assert said.err == b"mlfs: the path 'b/x\\ny.jpg' holds a newline and cannot be printed on one line (give --null)\n"
    assert b"x\ny" not in said.out
    assert cli.main(["order", str(source), "-z"]) == 0
    paths = capfdbinary.readouterr().out.split(b"\0")
    assert b"b/x\ny.jpg" in paths
    assert len(paths) == len(FILES) + 3


def test_a_sample_outside_keeps_its_place(
    source: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "elsewhere").touch()
    (source / "a" / "00x.jpg").symlink_to(tmp_path / "elsewhere")
    assert order(capfdbinary, source, "--sampler", "sequential", "--head", "3") == [
        b"a/00.jpg",
        b"(outside of the source)",
        b"a/01.jpg",
    ]


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["--rank", "4", "--world-size", "4"], ExitCode.BAD_JOB, "--rank is 4, must be 0 to 3: the job has 4 ranks"),
        (["--epoch", "4", "--epochs", "4"], ExitCode.BAD_JOB, "--epoch is 4, must be 0 to 3"),
        (["--sampler", "sequental"], ExitCode.BAD_JOB, 'did you mean "sequential"?'),
        (["--root", "none"], ExitCode.BAD_JOB, "there is no directory 'none' in the source"),
        (["--start-step", "99"], ExitCode.BAD_JOB, "an epoch has 33 steps"),
        (["--split", "20,14"], ExitCode.BAD_JOB, "adds up to 34, but layout and root give 33 samples"),
        (["--words-before", "3"], ExitCode.BAD_JOB, '"words_before" is 3, must be left out'),
    ],
)
def test_what_is_wrong_is_one_line(
    source: Path, argv: list[str], code: ExitCode, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["order", str(source), *argv]) == code
    said = capfd.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1


def test_a_source_that_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["order", str(tmp_path / "none")]) == ExitCode.SOURCE
    assert "No such file" in capfd.readouterr().err


def test_a_big_world_needs_no_list_of_ranks(source: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    expected = [FILES[index].encode() for index in DistributedSampler(FILES, 5000, 4999)]
    assert order(capfdbinary, source, "--world-size", "5000", "--rank", "4999") == expected


def test_a_reader_that_goes_away_is_no_error(source: Path) -> None:
    command = [sys.executable, "-m", "mlfs.cli.main", "order", str(source), "--null"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_ctrl_c_is_one_line(tmp_path: Path) -> None:
    # The job is read from a pipe: once its other end can be opened, the command is inside of its work.
    pipe = tmp_path / "job.json"
    os.mkfifo(pipe)
    code = """import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # the shell that started the tests may have had it ignored
from mlfs.cli.main import main
sys.exit(main(sys.argv[1:]))"""
    command = [sys.executable, "-c", code, "order", str(tmp_path), "--json-file", str(pipe)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with open(pipe, "wb"):
        process.send_signal(signal.SIGINT)
        out, said = process.communicate()
    assert (out, said, process.returncode) == (b"", b"mlfs: interrupted\n", ExitCode.INTERRUPTED)
