"""`mlfs register`: flags, environment and JSON file become one control line; answers become words and exit codes."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_support import Mounts

from mlfs.cli import job_flags
from mlfs.cli import main as cli
from mlfs.cli.job_flags import parse_ranks
from mlfs.cli.register import understood
from mlfs.errors import ConfigError, ExitCode, JobError
from mlfs.job import JobSpec, job_schema
from mlfs.launchers import env_fields


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "MPI_")) or name.endswith(("RANK", "WORLD_SIZE")):
            monkeypatch.delenv(name)


def test_rows_that_are_predicted_are_shown_in_words() -> None:
    first = {"0": ["train.npy\t128\t2048", "cat/1.jpg", "a\tname\twith tabs"]}
    lines = understood("/data", {"job": {"name": "train"}, "first_paths": first})
    shown = lines[lines.index("rank 0 is predicted to read first:") + 1 :][:3]
    assert shown == ["  train.npy (2,048 bytes from 128 on)", "  cat/1.jpg", "  a\tname\twith tabs"]


def dry(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert cli.main(["register", "/data", "--dry-run", *flags]) == 0
    command = json.loads(capsys.readouterr().out)
    assert isinstance(command, dict)
    return command


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("0", [0]), ("0-3", [0, 1, 2, 3]), ("0,2,5-7", [0, 2, 5, 6, 7]), (" 3 , 1-1,1", [1, 3])],
)
def test_ranks(text: str, ranks: list[int]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "0,,1", "0-99999999"])
def test_bad_ranks_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--ranks"):
        parse_ranks(text)


def test_only_what_was_given_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(capsys) == {"op": "register"}
    flags = [
        "--sampler",
        "torch-distributed",
        "--seed",
        "0",
        "--epochs",
        "90",
        "--batch-size",
        "64",
        "--world-size",
        "4",
        "--ranks",
        "0-3",
    ]
    expected = {"sampler": "torch-distributed", "seed": 0, "epochs": 90, "batch_size": 64, "world_size": 4}
    assert dry(capsys, *flags) == {"op": "register", **expected, "ranks": [0, 1, 2, 3]}


def test_every_flag_has_its_field(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    flags = [
        "--name",
        "val",
        "--root",
        "val",
        "--layout",
        "sorted",
        "--no-shuffle",
        "--drop-last",
        "--start-epoch",
        "3",
        "--start-step",
        "5",
    ]
    assert dry(capsys, *flags, "--order-file", "o.txt", "--extensions", "jpg,.PNG, ") == {
        "op": "register",
        "name": "val",
        "root": "val",
        "layout": "sorted",
        "shuffle": False,
        "drop_last": True,
        "start_epoch": 3,
        "start_step": 5,
        "order_file": "/o.txt",
        "extensions": [".jpg", ".png"],
    }
    assert dry(capsys, "--shuffle", "--no-drop-last") == {"op": "register", "shuffle": True, "drop_last": False}


@pytest.mark.parametrize("field", JobSpec.model_fields)
def test_each_field_of_a_job_has_its_flag(field: str, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"bool": [], "int": ["3"], "float": ["0.5"], "tuple": ["1,2"], "str": ["/x"]}
    kind = job_flags.kind_of(field).__name__
    if field in job_flags.NO_FLAGS:
        return
    sent = dry(capsys, "--" + field.replace("_", "-"), *values[kind])[field]
    expected = {"bool": True, "int": 3, "float": 0.5, "tuple": [1, 2], "str": "/x"}[kind]
    assert sent == {"extensions": [".1", ".2"], "columns": ["1", "2"]}.get(field, expected)


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["register", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(job_schema()))
    assert cli.main(["register"]) == ExitCode.USAGE
    assert "no mount point is given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}, [4, 5, 6, 7]),
        ({"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NODEID": "3"}, [6, 7]),
        ({"WORLD_SIZE": "1", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "8", "SLURM_NODEID": "0"}, list(range(8))),
        ({"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "5,3", "SLURM_NODEID": "1"}, [5, 6, 7]),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "3", "RANK": "6", "LOCAL_RANK": "1"}, [5, 6, 7]),
        ({"PMI_SIZE": "8", "PMI_RANK": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, [2, 3]),
    ],
)
def test_ranks_from_the_launcher(environment: dict[str, str], ranks: list[int]) -> None:
    assert env_fields(environment) == {"world_size": 8, "ranks": ranks}


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"WORLD_SIZE": "8", "GROUP_RANK": "1"}, "LOCAL_WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE and GROUP_RANK are not set"),
        ({"SLURM_NTASKS": "8", "SLURM_NODEID": "0"}, "SLURM_NTASKS_PER_NODE is not set"),
        ({"PMI_SIZE": "8", "PMI_RANK": "3"}, "MPI_LOCALRANKID and MPI_LOCALNRANKS are not set"),
        ({}, "neither"),
        ({"WORLD_SIZE": "x", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}, "WORLD_SIZE='x'"),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}, "do not go together"),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "0", "GROUP_RANK": "0"}, "do not go together"),
    ],
)
def test_what_is_missing_in_the_environment_is_named(environment: dict[str, str], says: str) -> None:
    with pytest.raises(JobError, match=says) as error:
        env_fields(environment)
    assert "--world-size" in error.value.hint


def test_flags_win_over_environment_over_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"op": "register", "seed": 1, "epochs": 5, "world_size": 2, "ranks": [0]}')
    assert dry(capsys, "--json-file", str(path), "--seed", "2")["seed"] == 2
    for name, value in (("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4"), ("GROUP_RANK", "0")):
        monkeypatch.setenv(name, value)
    command = dry(capsys, "--json-file", str(path), "--from-env", "--ranks", "1")
    assert command == {"op": "register", "seed": 1, "epochs": 5, "world_size": 8, "ranks": [1]}
    monkeypatch.setattr("sys.stdin", io.StringIO('{"name": "x"}'))
    assert dry(capsys, "--json-file", "-") == {"op": "register", "name": "x"}


@pytest.mark.parametrize(("text", "code"), [("{", 9), ("[1]", 9), (None, 2)])
def test_a_bad_json_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, code: int
) -> None:
    path = tmp_path / "job.json"
    if text is not None:
        path.write_text(text)
    for flag in ("--json-file", "--resume"):
        assert cli.main(["register", "/data", "--dry-run", flag, str(path)]) == code
        assert capsys.readouterr().err.startswith(f"mlfs: {flag} {path}")
    path.write_text('{"model": [1, 2]}')
    assert cli.main(["register", "/data", "--dry-run", "--resume", str(path)]) == 9
    assert capsys.readouterr().err.startswith(f"mlfs: --resume {path} says no place")


def test_where_a_run_goes_on_is_sent_as_it_was_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(capsys, "--resume", "12:43520") == {"op": "register", "resume": "12:43520"}
    (tmp_path / "job.json").write_text('{"seed": 1, "start_epoch": 3, "start_step": 5}')
    (tmp_path / "state").write_text('{"epoch": 12, "rng": [1, 2], "sampler": {"index": 340, "num_replicas": 4}}')
    command = dry(capsys, "--json-file", str(tmp_path / "job.json"), "--resume", str(tmp_path / "state"))
    assert command == {"op": "register", "seed": 1, "resume": {"epoch": 12, "index": 340, "num_replicas": 4}}
    (tmp_path / "job.json").write_text('{"seed": 1, "resume": 12}')
    command = dry(capsys, "--json-file", str(tmp_path / "job.json"), "--start-epoch", "13")
    assert command == {"op": "register", "seed": 1, "start_epoch": 13}


def test_what_the_mount_understood_is_printed(open_dir: Path, tiny: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(open_dir / "m")
    os.mkdir(path)
    tiny.start(path)
    assert cli.main(["register", path, "--name", "train", "--seed", "3", "--ranks", "0-2", "--drop-last"]) == 0
    out = capsys.readouterr().out
    assert f"registered job train at {path}" in out
    for line in (r"  seed         3", "  ranks        0-2", "  drop_last    yes", "rank 2 is predicted", "  a/2-4.jpg"):
        assert line in out
    assert cli.main(["register", path, "--seed", "-1"]) == ExitCode.BAD_JOB
    assert capsys.readouterr().err == "mlfs: seed: must not be negative (give 0 or more)\n"
    assert cli.main(["unregister", path, "train", "--name", "val"]) == ExitCode.USAGE
    for words in (["train"], ["--name", "train"], []):
        assert cli.main(["unregister", path, *words]) == 0
    assert cli.main(["status", path, "--json"]) == 0
    out = capsys.readouterr().out
    commands = json.loads(out[out.index("{") :])["commands"]
    # The refused one was noted as well.
    by_name = {"op": "unregister", "name": "train"}
    assert commands[-3:] == [by_name, by_name, {"op": "unregister"}]
    assert len(commands) == 5


def test_where_nothing_is_mounted(open_dir: Path, tiny: Mounts, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(open_dir / "m")
    os.mkdir(path)
    server = tiny.start(path)
    for argv, says in (
        (["register", str(open_dir)], path),
        (["register", f"{path}/data.bin"], f"inside the mount {path}"),
        (["status", "/proc"], "type proc"),
    ):
        assert cli.main(argv) == ExitCode.NOT_MOUNTED
        assert says in capsys.readouterr().err
    tiny.kill(server)
    assert cli.main(["register", path, "--seed", "1"]) == ExitCode.NOT_MOUNTED
    assert f"mlfs unmount {path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("user", "says"),
    [
        (1000, "only the user who mounted it"),
        (0, "/data was mounted by user 77, and FUSE keeps root out, too (do it as"),
    ],
)
def test_only_the_owner_may_register(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], user: int, says: str
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("mlfs.cli.client.require_mount", lambda path: path)
        patch.setattr("mlfs.cli.client.os.open", refuse)
        patch.setattr("mlfs.cli.client.os.geteuid", lambda: user)
        patch.setattr("mlfs.cli.client.interface.user_of", lambda path: 77)
        code = cli.main(["register", "/data", "--seed", "1"])
    assert code == ExitCode.NOT_PERMITTED
    assert says in capsys.readouterr().err
