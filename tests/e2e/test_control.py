"""The control file of a real mount: wrong registrations end in the right words, answers belong to whoever asked."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount

from mlfs.errors import ExitCode

FILES = 12


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A mount over a dozen files, for all tests here."""
    root = tmp_path_factory.mktemp("images")
    for index in range(FILES):
        path = root / f"class{index % 3}" / f"{index}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
    with MlfsMount(root) as mounted:
        yield mounted


@pytest.fixture(autouse=True)
def _leave_no_job(mount: MlfsMount) -> Any:
    yield
    for job in mount.status()["jobs"]:
        mount.control({"op": "unregister", "name": job["name"]})


@pytest.mark.promise("signals-heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.wall_clock
def test_a_signal_ends_a_registration_whose_order_takes_long(mount: MlfsMount, number: signal.Signals) -> None:
    words = ["--sampler", "torch-random", "--epochs", "2", "--words-before", "10000000000"]
    command = [sys.executable, "-m", "mlfs.cli.main", "register", str(mount.path), *words]
    process = subprocess.Popen(command, env=mount.env, stderr=subprocess.PIPE, text=True)

    def waits_for_the_daemon() -> bool:
        tasks = Path(f"/proc/{process.pid}/task").glob("*/wchan")
        assert process.poll() is None, process.communicate()
        return any("request_wait_answer" in task.read_text() for task in tasks)

    wait_until(waits_for_the_daemon)
    time.sleep(0.3)  # a look-up waits for an answer as well, a moment only
    wait_until(waits_for_the_daemon)
    process.send_signal(number)
    _, said = process.communicate(timeout=10)  # the order takes half a minute and more
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert said == ("mlfs: interrupted\n" if number == signal.SIGINT else "")
    assert mount.status()["jobs"] == []
    mount.register(seed=0, epochs=1)


@pytest.mark.promise("control-refusal")
@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("not json", ""),
        ("[1]", ""),
        ('{"seed": 0}', "epochs"),
        ('{"seed": "zero", "epochs": 1}', "seed"),
        ('{"seed": 0, "epochs": 0}', "epochs"),
        ('{"seed": 0, "epochs": 1, "world_size": 2, "ranks": [2]}', "ranks"),
        ('{"seed": 0, "epochs": 1, "sampler": "torch-distribute"}', "sampler"),
        ('{"seed": 0, "epochs": 1, "sede": 0}', "sede"),
        ('{"seed": 0, "epochs": 1, "root": "nothing/here"}', "root"),
        ('{"op": "unregister", "name": "nobody"}', "name"),
        ('{"op": "jump"}', "op"),
    ],
)
def test_bad_lines_fail_in_write_and_say_why(mount: MlfsMount, line: str, field: str) -> None:
    control = Path(mount.path) / ".mlfs/control"
    fd = os.open(control, os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="Invalid argument") as caught:
            os.write(fd, line.encode() + b"\n")
        assert caught.value.errno == errno.EINVAL
    finally:
        os.close(fd)
    answer = json.loads(control.read_text())
    assert answer["ok"] is False
    assert answer["field"] == field
    assert "\n" not in answer["error"]
    if field:
        assert field in answer["error"]
    assert mount.status()["jobs"] == []


def ask(mount: MlfsMount, line: str) -> tuple[int, dict[str, Any]]:
    """The errno of the write (0: accepted) and the answer, as the very descriptor that wrote sees it."""
    fd = os.open(mount.path / ".mlfs/control", os.O_RDWR)
    try:
        error = 0
        try:
            assert os.write(fd, line.encode() + b"\n") == len(line.encode()) + 1
        except OSError as refused:
            error = refused.errno or -1
        # From where the descriptor stands, then again from the beginning.
        text = os.read(fd, 1 << 20)
        assert os.read(fd, 1 << 20) == b""
        assert os.pread(fd, 1 << 20, 0) == text
        answer: dict[str, Any] = json.loads(text)
        return error, answer
    finally:
        os.close(fd)


# What is wrong, its field, and what the line says.
WRONG: list[tuple[dict[str, Any], str, str, str]] = [
    ({"epocs": 3}, "epocs", 'job field "epocs" is unknown', 'did you mean "epochs"?'),
    ({"seed": "zero"}, "seed", 'job field "seed" is "zero", must be a whole number of any size and sign', ""),
    ({"seed": 1.5}, "seed", 'job field "seed" is 1.5, must be a whole number of any size and sign', ""),
    ({"epochs": 0}, "epochs", 'job field "epochs" is 0, must be a whole number, 1 to 1000000', ""),
    ({"ranks": [2], "world_size": 2}, "ranks", 'job field "ranks" is [2], must be different ranks from 0 to 1', ""),
    ({"world_size": 5000}, "ranks", "the world has 5000 ranks, at most 1024 read through one mount", "--from-env"),
    ({"words_before": 4}, "words_before", 'the sampler "torch-distributed" does not read it', "torch-random"),
    ({"sampler": "sequential", "seed": 3}, "seed", 'the sampler "sequential" does not read it', "torch-distributed"),
    ({"sampler": "torch-randm"}, "sampler", 'job field "sampler" is "torch-randm"', 'did you mean "torch-random"?'),
    ({"layout": "image-folder"}, "layout", 'job field "layout" is "image-folder"', 'did you mean "imagefolder"?'),
    ({"preset": "lighting"}, "preset", 'job field "preset" is "lighting"', 'did you mean "lightning"?'),
    ({"root": "class9"}, "root", "there is no directory 'class9' in the source", "relative to where mlfs is mounted"),
    ({"start_epoch": 3}, "start_epoch", "must be less than epochs, which is 3", "count from 0"),
    ({"start_step": 99}, "start_step", "an epoch has 12 steps", "a step is batch_size samples"),
    ({"resume": "1:999"}, "resume", "but an epoch has 12 steps", "together"),
    ({"split": [0.5, 0.4]}, "split", 'job field "split" is [0.5, 0.4], must be the lengths', ""),
    ({"split": [5, 6]}, "split", "adds up to 11, but layout and root give 12 samples", "random_split"),
    (
        {"sampler": "explicit", "order_file": "/nowhere/{epoch}"},
        "order_file",
        "'/nowhere/0' cannot be read",
        "readable",
    ),
    ({"sampler": "explicit"}, "order_file", 'job field "order_file" is missing', "absolute path"),
    ({"version": 2}, "version", 'job field "version" is 2, must be 1', "leave the field out"),
    ({"extensions": ["png"]}, "layout", 'no samples: layout "imagefolder" looked in the source', '"extensions"'),
]


@pytest.mark.parametrize(("fields", "field", "says", "hint"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_registration_is_einval_and_one_line(
    mount: MlfsMount, fields: dict[str, Any], field: str, says: str, hint: str
) -> None:
    error, answer = ask(mount, json.dumps({"epochs": 3, **fields}))
    assert error == errno.EINVAL
    assert answer["ok"] is False
    assert answer["field"] == field
    assert says in answer["error"]
    assert hint in answer["hint"]
    assert "\n" not in answer["error"] + answer["hint"]
    assert mount.status()["jobs"] == []


@pytest.mark.parametrize(
    ("line", "says", "hint"),
    [
        ("{", "not valid JSON", "one JSON object a line"),
        ("[1]", "not a JSON object", '{"seed": 0, "epochs": 90}'),
        ('{"op": "registr", "epochs": 1}', "'registr' is unknown", 'did you mean "register"?'),
        ('{"op": "unregister", "name": "nobody"}', "no job 'nobody' is registered", "registered: none"),
        ('{"op": "unregister"}', "no job is registered", "registered: none"),
    ],
)
def test_lines_that_are_no_command(mount: MlfsMount, line: str, says: str, hint: str) -> None:
    error, answer = ask(mount, line)
    assert error == errno.EINVAL
    assert says in answer["error"]
    assert hint in answer["hint"]


def test_the_commands_words_are_the_mounts(mount: MlfsMount) -> None:
    for words, says in (
        (["--seed", "3", "--epochs", "3", "--words-before", "4"], '"words_before" is 4, must be left out'),
        (["--seed", "3"], 'job field "epochs" is missing'),
    ):
        done = mount.run("register", str(mount.path), *words, check=False)
        assert done.returncode == ExitCode.BAD_JOB
        assert done.stdout == ""
        assert done.stderr.startswith("mlfs: ")
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
    assert mount.status()["jobs"] == []


def test_a_preset_is_shown_in_what_was_understood(mount: MlfsMount) -> None:
    done = mount.run("register", str(mount.path), "--preset", "lightning", "--epochs", "2", "--batch-size", "4")
    for line in (
        "preset",
        "lightning",
        "sampler",
        "torch-distributed",
        "set_epoch",
        "rank 0 is predicted to read first",
    ):
        assert line in done.stdout
    assert "words_before" not in done.stdout
    assert mount.status()["jobs"][0]["spec"]["preset"] == "lightning"
    mount.run("unregister", str(mount.path), "train")


def test_an_answer_is_that_of_the_descriptor_that_asked(mount: MlfsMount) -> None:
    def register(number: int) -> None:
        name = f"job{number}"
        if number % 2:
            error, answer = ask(mount, json.dumps({"name": name, "epochs": 3, "seed": name}))
            assert error == errno.EINVAL
            assert f'"seed" is "{name}"' in answer["error"]
        else:
            error, answer = ask(mount, json.dumps({"name": name, "epochs": 3, "seed": number}))
            assert (error, answer["job"]["name"], answer["job"]["seed"]) == (0, name, number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(register, range(24)))
    jobs = mount.status()["jobs"]
    assert sorted(job["name"] for job in jobs) == sorted(f"job{number}" for number in range(0, 24, 2))
    for job in jobs:
        assert ask(mount, json.dumps({"op": "unregister", "name": job["name"]}))[0] == 0


def test_an_order_of_the_mount_is_what_the_mount_predicts(mount: MlfsMount) -> None:
    flags = ["--seed", "3", "--world-size", "2", "--sampler", "torch-distributed"]
    mount.run("register", str(mount.path), *flags, "--epochs", "2", "--name", "seen")
    # Mounted over itself: the source cannot be seen, the mount is.
    printed = mount.run("order", str(mount.path / "class1" / ".."), *flags, "--epoch", "1", "--rank", "1").stdout
    assert printed == (mount.path / ".mlfs/order/seen/1/1").read_text()
    mount.run("unregister", str(mount.path), "seen")


def test_the_order_files_of_all_epochs_must_be_there(mount: MlfsMount, tmp_path: Path) -> None:
    for epoch in range(2):
        (tmp_path / f"{epoch}.txt").write_text("3\n1\n2\n")
    job = {"sampler": "explicit", "order_file": str(tmp_path / "{epoch}.txt")}
    error, answer = ask(mount, json.dumps({"epochs": 3, **job}))
    assert (error, answer["field"]) == (errno.EINVAL, "order_file")
    assert "2.txt' cannot be read: No such file or directory" in answer["error"]
    assert mount.status()["jobs"] == []
    assert ask(mount, json.dumps({"epochs": 2, **job}))[0] == 0


def test_a_million_epochs_are_registered(mount: MlfsMount) -> None:
    fields = {"epochs": 1_000_000, "start_epoch": 999_999, "sampler": "torch-random", "generator": "own"}
    error, answer = ask(mount, json.dumps(fields))
    assert (error, len(answer["first_paths"]["0"])) == (0, 5)
    assert mount.status()["jobs"][0]["ranks"][0]["epoch"] == 999_999


def test_a_shell_reads_the_answer_through_its_descriptor(mount: MlfsMount) -> None:
    control = Path(mount.path) / ".mlfs/control"
    script = f"""exec 3<>{control}; echo '{{"epochs": 2, "name": "sh"}}' >&3; read answer <&3; echo "$answer" """
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["job"]["name"] == "sh"
    assert json.loads(control.read_text())["job"]["name"] == "sh"  # a new descriptor: the last answer of all
    assert ask(mount, '{"unregister": "sh"}')[0] == 0


def test_unmount_waits_for_its_timeout_and_not_for_a_registration(mount: MlfsMount) -> None:
    fields = ["--name", "far", "--epochs", "1", "--sampler", "torch-random", "--generator", "own"]
    command = ["register", str(mount.path), *fields, "--words-before", str(10**10)]
    registering = subprocess.Popen(
        [sys.executable, "-m", "mlfs.cli.main", *command], env=mount.env, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: ask(mount, '{"unregister": ""}')[1]["hint"] == "registered: far")  # it is computed now
        busy = mount.run("unmount", str(mount.path), "--timeout", "100ms", check=False)
        assert busy.returncode == ExitCode.BUSY
        assert f"pid {registering.pid}" in busy.stderr
        assert registering.poll() is None
        assert mount.status()["state"] == "serving"
    finally:
        assert ask(mount, '{"unregister": "far"}')[0] == 0
        assert "unregistered" in registering.communicate(timeout=60)[1]
    assert registering.returncode == ExitCode.BAD_JOB
    assert mount.status()["jobs"] == []
