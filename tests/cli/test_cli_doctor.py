"""`mlfs doctor`: each thing that can be wrong is found, said with its way out, and decides the exit code."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from mlfs import doctor
from mlfs.cli import main as cli
from mlfs.doctor import CheckResult, Level, Machine, SourceMount
from mlfs.errors import ExitCode

GIB = 1 << 30


class MadeUp(Machine):
    """A machine where all is right but for what the test says."""

    is_root = True

    def __init__(self, **wrong: Any) -> None:
        self.told: dict[str, Any] = {
            "kernel": "6.12.0-13-amd64",
            "devices": {"/dev/fuse"},
            "openable": True,
            "programs": {"fusermount3", "mpiexec"},
            "modules": {"numba", "mpi4py"},
            "open_files": (1024, 1048576),
            "address_space_bytes": -1,
            "memory": (64 * GIB, None),
            "free_bytes": 500 * GIB,
            "writable": True,
            "clock": True,
            "files": {},
        } | wrong

    def read(self, path: str) -> str | None:
        text: str | None = self.told["files"].get(path)
        return text

    def exists(self, path: str) -> bool:
        return path in self.told["devices"]

    def is_openable(self, path: str) -> bool:
        return bool(self.told["openable"])

    def program(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.told["programs"] else None

    def has_module(self, name: str) -> bool:
        return name in self.told["modules"]

    def kernel(self) -> str:
        return str(self.told["kernel"])

    def open_files(self) -> tuple[int, int]:
        limits: tuple[int, int] = self.told["open_files"]
        return limits

    def address_space_bytes(self) -> int:
        return int(self.told["address_space_bytes"])

    def memory(self) -> tuple[int, int | None]:
        known: tuple[int, int | None] = self.told["memory"]
        return known

    def free_bytes(self, directory: str) -> int | None:
        free: int | None = self.told["free_bytes"]
        return free

    def is_writable(self, directory: str) -> bool:
        return bool(self.told["writable"])

    def clock_is_set(self) -> bool | None:
        kept: bool | None = self.told["clock"]
        return kept


# What is wrong, what the finding about it is called, how bad it is, a word of its way out.
WRONG: list[tuple[dict[str, Any], str, Level, str]] = [
    ({"kernel": "4.19.0"}, "kernel", Level.STOPS, "5.9"),
    ({"devices": set()}, "FUSE", Level.STOPS, "modprobe"),
    ({"openable": False}, "FUSE", Level.STOPS, "chmod"),
    ({"programs": {"mpiexec"}}, "FUSE", Level.STOPS, "fuse3"),
    ({"programs": {"fusermount3"}}, "MPI", Level.COSTS, "mpich"),
    ({"modules": {"mpi4py"}}, "numba", Level.COSTS, "mlfs[fast]"),
    ({"modules": {"numba"}}, "MPI", Level.COSTS, "mlfs[mpi]"),
    ({"open_files": (64, 64)}, "open files", Level.COSTS, "ulimit -n"),
    ({"address_space_bytes": 4 * GIB}, "address space", Level.COSTS, "ulimit -v"),
    ({"memory": (400 << 20, 400 << 20)}, "memory", Level.COSTS, "--staging"),
    ({"free_bytes": GIB}, "cache /scratch", Level.COSTS, "free"),
    ({"free_bytes": None}, "cache /scratch", Level.COSTS, "mkdir"),
    ({"writable": False}, "cache /scratch", Level.COSTS, "another directory"),
    ({"clock": False}, "clock", Level.COSTS, "NTP"),
    ({"files": {"/sys/fs/cgroup/pids.max": "17\n"}}, "threads", Level.COSTS, "pids.max"),
    ({"files": {"/sys/module/damon_reclaim/parameters/enabled": "Y\n"}}, "reclaim", Level.COSTS, "damon_reclaim"),
]


def looked_at(machine: Machine) -> list[CheckResult]:
    return list(doctor.findings(machine, ["/scratch"]))


def test_a_machine_where_all_is_right() -> None:
    for kernel in ("6.18.0", "5.15.0-91-generic"):
        assert {finding.level for finding in looked_at(MadeUp(kernel=kernel))} == {Level.OK}
        (said,) = [finding.said for finding in looked_at(MadeUp(kernel=kernel)) if finding.what == "kernel"]
        assert ("when a server dies" in said) == (kernel < "6")


@pytest.mark.parametrize(("wrong", "what", "level", "word"), WRONG, ids=lambda value: str(value)[:30])
def test_what_is_wrong_is_found(wrong: dict[str, Any], what: str, level: Level, word: str) -> None:
    found = [finding for finding in looked_at(MadeUp(**wrong)) if finding.level is not Level.OK]
    assert [(finding.what, finding.level) for finding in found] == [(what, level)]
    assert word in found[0].way_out


def test_several_things_that_are_wrong_are_all_found() -> None:
    draw = random.Random(5)
    for _ in range(50):
        chosen = draw.sample(WRONG, draw.randint(2, 6))
        wrong: dict[str, Any] = {}
        for one, *_ in chosen:
            wrong = one | wrong  # of two that change the same, the first one chosen stays
        whats = {what for one, what, *_ in chosen if all(wrong[key] is value for key, value in one.items())}
        assert {finding.what for finding in looked_at(MadeUp(**wrong)) if finding.level is not Level.OK} >= whats


def test_users_are_told_how_to_share_a_mount() -> None:
    class User(MadeUp):
        is_root = False

    assert "user_allow_other" in next(f.way_out for f in looked_at(User()) if f.what == "--allow-other")
    allowed = User(files={"/etc/fuse.conf": "# as root\nuser_allow_other\n"})
    assert next(f.level for f in looked_at(allowed) if f.what == "--allow-other") is Level.OK


@pytest.mark.parametrize(
    ("is_root", "kernel", "said"),
    [(True, "6.8.0", "without a request"), (False, "6.8.0", "only root is told"), (False, "6.7.9", "needs Linux 6.8")],
)
def test_who_has_the_silent_channel(is_root: bool, kernel: str, said: str) -> None:
    machine = MadeUp(kernel=kernel)
    machine.is_root = is_root
    assert said in next(finding.said for finding in looked_at(machine) if finding.what == "--channel silent")


@pytest.mark.parametrize(
    ("mount", "newest_s", "levels", "word"),
    [
        (SourceMount("nfs4", frozenset({"relatime"})), 0.0, [Level.OK], "network"),
        (SourceMount("nfs", frozenset({"relatime", "noac"})), 0.0, [Level.OK, Level.COSTS], "noac"),
        (SourceMount("ext4", frozenset({"rw"})), 0.0, [Level.OK, Level.COSTS], "atime"),
        (SourceMount("tmpfs", frozenset({"relatime"})), 0.0, [Level.COSTS], "memory"),
        (SourceMount("lustre", frozenset({"ro"})), 1e6 + 60, [Level.OK, Level.COSTS], "future"),
        (SourceMount("lustre", frozenset({"ro"})), None, [Level.STOPS], "cannot be read"),
    ],
)
def test_the_file_system_of_a_source(mount: SourceMount, newest_s: float, levels: list[Level], word: str) -> None:
    found = list(doctor.source("/data", mount, newest_s, now_s=1e6))
    assert [finding.level for finding in found] == levels
    assert word in found[-1].said


def test_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").touch()
    assert cli.main(["doctor", str(tmp_path), "--cache", str(tmp_path), "--json"]) == ExitCode.OK
    found = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["FUSE"]["level"] == "ok"
    assert "free" in found[f"cache {tmp_path}"]["said"]
    assert found[f"source {tmp_path}"]["level"] in ("ok", "costs")


def test_what_stops_mlfs_decides_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", str(tmp_path / "nothing")]) == ExitCode.FAILURE
    said = capsys.readouterr().out
    assert f"source {tmp_path}/nothing: cannot be read" in said
    assert "to mend it:" in said
