"""`mlfs explain`: what a script prints of its own order tells how to register it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mlfs.cli import main as cli
from mlfs.errors import ExitCode
from mlfs.job import parse_job
from mlfs.orders.order import build_order

N = 120
FILES = [f"c{index // 30}/{index % 30:02d}.jpg" for index in range(N)]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for path in FILES:
        file = tmp_path / "data" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path / "data"


def python_in_place(seed: int) -> Callable[[int], list[int]]:
    rng, indices = random.Random(seed), list(range(N))

    def epoch(number: int) -> list[int]:
        rng.shuffle(indices)
        return list(indices)

    return epoch


def torch_reseeded(seed: int) -> Callable[[int], list[int]]:
    return lambda epoch: torch.randperm(N, generator=torch.Generator().manual_seed(seed + epoch)).tolist()


LOOPS: dict[str, tuple[Callable[[int], list[int]], dict[str, object]]] = {
    "numpy by seed and epoch": (
        lambda epoch: np.random.default_rng([1234, epoch]).permutation(N).tolist(),
        {"generator": "numpy", "seeding": "[seed,epoch]", "seed": 1234},
    ),
    "numpy, the same": (
        lambda epoch: np.random.RandomState(7).permutation(N).tolist(),
        {"generator": "numpy-legacy", "seeding": "same", "seed": 7},
    ),
    "Python, in place": (python_in_place(42), {"sampler": "python-random", "seed": 42}),
    "torch, reseeded": (torch_reseeded(3407), {"sampler": "torch-distributed", "seed": 3407}),
    "Python's sample": (
        lambda epoch: random.Random(2024 + epoch).sample(range(N), 50),
        {"generator": "python", "draw": "sample", "num_samples": 50, "seed": 2024},
    ),
    "in order": (lambda epoch: list(range(N)), {"sampler": "sequential"}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_two_epochs_tell_the_order_and_every_further_one(
    name: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    epoch_of, fields = LOOPS[name]
    epochs = [epoch_of(epoch) for epoch in range(4)]
    text = "\n".join("".join(f"{index}\n" for index in epoch) for epoch in epochs[:2])
    (tmp_path / "read.txt").write_text(text)
    assert cli.main(["explain", str(source), str(tmp_path / "read.txt"), "--json"]) == ExitCode.OK
    jobs = json.loads(capsys.readouterr().out)
    assert any(fields.items() <= job.items() for job in jobs), jobs
    for job in jobs:
        order = build_order(parse_job({"epochs": 4, **job}), N)
        # What was read may be an epoch's beginning: of samples that begin alike both fit.
        begins = [order.rank_stream(epoch, 0)[: len(reads)].tolist() for epoch, reads in enumerate(epochs)]
        assert begins == epochs


def test_paths_tell_as_well_and_the_line_that_registers_is_printed(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = np.random.default_rng(2025).permutation(N)
    lines = [FILES[order[0]], f"{source}/{FILES[order[1]]}", *(FILES[index] for index in order[2:15])]
    (tmp_path / "read.txt").write_text("\n".join(lines))
    asked = ["explain", str(source), str(tmp_path / "read.txt"), "--draw", "permutation", "--seeding", "goes-on"]
    assert cli.main(asked) == ExitCode.OK
    said = capsys.readouterr().out
    assert said == (
        "1 order fits the 15 reads of 1 epoch:\n"
        "  mlfs register MOUNT --seed 2025 --draw permutation --seeding goes-on --generator numpy --epochs N\n"
    )


@pytest.mark.parametrize("flags", [[], ["--root", "train"]])
def test_paths_below_a_directory_of_the_source_name_the_data_set(
    flags: list[str], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `mlfs order` prints them, which a user compares with: `train` beside `val`, paths relative to the source."""
    for index, path in enumerate(FILES):
        file = source.parent / "both" / ("train" if index % 4 else "val") / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    both = str(source.parent / "both")
    job = ["--root", "train", "--generator", "numpy", "--seeding", "goes-on", "--seed", "42"]
    assert cli.main(["order", both, *job, "--epochs", "1", "--head", "15"]) == ExitCode.OK
    (tmp_path / "read.txt").write_text(capsys.readouterr().out)
    assert cli.main(["explain", both, str(tmp_path / "read.txt"), *flags, *job[2:], "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert {(job["root"], job["seed"]) for job in found} == {("train", 42)}
    indices = np.random.default_rng(42).permutation(N * 3 // 4)[:15].tolist()
    (tmp_path / "read.txt").write_text("\n".join(map(str, indices)))
    assert cli.main(["explain", both, str(tmp_path / "read.txt"), *flags, *job[2:], "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == found


def test_a_directory_of_few_samples_that_is_read_later_is_part_of_the_data_set(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in [*(f"many/{path}" for path in FILES), "rare/c/0.jpg", "rare/c/1.jpg"]:
        file = source.parent / "both" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    both, job = str(source.parent / "both"), ["--generator", "numpy", "--seeding", "goes-on", "--seed", "42"]
    assert cli.main(["order", both, *job, "--epochs", "1", "--head", "15"]) == ExitCode.OK
    read = capsys.readouterr().out
    assert "rare/" not in read
    (tmp_path / "read.txt").write_text(read)
    assert cli.main(["explain", both, str(tmp_path / "read.txt"), *job, "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert {(job.get("root", ""), job["seed"]) for job in found} == {("", 42)}


def test_how_many_epochs_are_known_changes_nothing_but_what_is_printed(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "read.txt").write_text("\n".join(map(str, torch_reseeded(7)(0))))
    asked = ["explain", str(source), str(tmp_path / "read.txt"), "--sampler", "torch-distributed", "--json"]
    assert cli.main(asked) == ExitCode.OK
    jobs = json.loads(capsys.readouterr().out)
    assert cli.main([*asked, "--epochs", "90"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == [job | {"epochs": 90} for job in jobs]


def test_one_rank_of_several_tells_how_the_order_is_dealt(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = [np.array_split(np.random.RandomState(1 + epoch).permutation(N), 3)[1] for epoch in range(2)]
    (tmp_path / "read.txt").write_text("\n\n".join("\n".join(map(str, piece)) for piece in pieces))
    asked = ["explain", str(source), str(tmp_path / "read.txt"), "--world-size", "3", "--rank", "1", "--json"]
    assert cli.main(asked) == ExitCode.OK
    (job,) = json.loads(capsys.readouterr().out)
    assert job["dealing"] == "contiguous"
    assert (job["generator"], job["seeding"], job["seed"]) == ("numpy-legacy", "seed+epoch", 1)


def endless(seed: int, rank: int, world: int) -> list[int]:
    """mmengine/dataset/sampler.py, InfiniteSampler; detectron2's TrainingSampler."""
    generator = torch.Generator().manual_seed(seed)
    passes = [torch.randperm(N, generator=generator).tolist() for _ in range(9)]
    return [index for a_pass in passes for index in a_pass][rank::world]


@pytest.mark.parametrize("cut", [None, 56, 88])
@pytest.mark.parametrize(("world", "rank"), [(1, 0), (7, 3)])
def test_a_list_without_an_end_is_followed_past_its_passes(
    world: int, rank: int, cut: int | None, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = endless(1337, rank, world)
    pieces = [stream[at : at + cut] for at in range(0, 3 * cut, cut)] if cut else [stream[:130]]
    (tmp_path / "read.txt").write_text("\n\n".join("\n".join(map(str, piece)) for piece in pieces))
    ranks = ["--world-size", str(world), "--rank", str(rank)] if world > 1 else []
    asked = ["explain", str(source), str(tmp_path / "read.txt"), "--batch-size", "8", *ranks, "--json"]
    assert cli.main(asked) == ExitCode.OK
    jobs = json.loads(capsys.readouterr().out)
    assert {job["seed"] for job in jobs} == {1337}
    for job in jobs:
        order = build_order(parse_job({"epochs": 12, **job}), N)
        given = [index for epoch in range(12) for index in order.rank_stream(epoch, rank).tolist()]
        assert stream[: len(given)] == given[: len(stream)]


@pytest.mark.parametrize(
    ("text", "flags", "code", "said"),
    [
        ("1\n2\n3\n", [], ExitCode.FAILURE, "has 3 reads"),
        ("", [], ExitCode.FAILURE, "has 0 reads"),
        ("1\nnothing.jpg\n", [], ExitCode.USAGE, "line 2: 'nothing.jpg' is no sample"),
        ("1\n", ["--rank", "1"], ExitCode.BAD_JOB, "--rank is 1, must be 0 to 0"),
        ("9" * 5000, [], ExitCode.USAGE, "is no sample"),
        ("120\n", [], ExitCode.USAGE, "line 1: '120' is no sample"),
        ("".join(f"{index}\n" for index in (9, 3, 5, 1, 0, 7, 2, 8, 4)), ["--seed", "5"], ExitCode.FAILURE, "none of"),
        ("1\n", ["--draw", "shufle"], ExitCode.BAD_JOB, 'did you mean "shuffle"?'),
        ("1\n", ["--sampler", "grains"], ExitCode.BAD_JOB, 'did you mean "grain"?'),
        ("1\n", ["--words-before", "-3"], ExitCode.BAD_JOB, "must be a whole number, 0 to"),
    ],
)
def test_what_tells_nothing_is_said_in_one_line(
    text: str, flags: list[str], code: ExitCode, said: str, source: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "read.txt").write_text(text)
    assert cli.main(["explain", str(source), str(tmp_path / "read.txt"), *flags]) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out
