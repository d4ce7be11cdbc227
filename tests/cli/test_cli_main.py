"""The command as a whole: help, exit codes, one line for each error, any bytes, quick."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

import pytest

from mlfs.cli import client, commands
from mlfs.cli import main as cli
from mlfs.errors import ExitCode, MlfsError
from mountd import mounts


def mlfs(*argv: str | bytes, **more: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "mlfs", *argv], capture_output=True, check=False, env={**os.environ, **more}
    )


@pytest.mark.parametrize(
    "command", ["mount", "register", "order", "unregister", "status", "unmount", "cache", "record", "replay"]
)
def test_each_command_has_a_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert f"mlfs {command}" in text
    if command != "cache":
        assert "examples:" in text


def test_each_flag_says_its_default() -> None:
    names = ("mount", "register", "order", "status", "unmount")
    parser = commands.build_parser(names)
    required = {"--help", "--epochs"}
    for name in names:
        for action in parser.commands[name].fields:
            flag = next(iter(action.option_strings[-1:]), None) if len(action.option_strings) < 2 else None
            flag = flag or next((f for f in action.option_strings if not f.startswith("--no-")), None)
            if flag and flag not in required | {"-h"}:
                assert "(default: " in str(action.help), f"{name} {flag} does not say its default"


def test_the_help_lists_all_commands_and_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "--version"):
        with pytest.raises(SystemExit) as end:
            cli.main([flag])
        assert end.value.code == 0
    text = capsys.readouterr().out
    for command in ("mount", "register", "order", "unregister", "status", "unmount", "cache"):
        assert re.search(rf"^    {command}\b", text, re.MULTILINE)
    assert re.search(r"^mlfs \d+\.\d+", text, re.MULTILINE)


def test_the_help_imports_nothing_heavy_and_little_at_all() -> None:
    def loaded(code: str) -> set[str]:
        command = [sys.executable, "-c", f"import sys, argparse; {code}; print(*sys.modules)"]
        return set(subprocess.run(command, capture_output=True, check=True).stdout.decode().split())

    ours = loaded("from mlfs.cli.commands import build_parser; build_parser([]).format_help()")
    assert not ours & {"numpy", "pydantic", "rich", "trio", "pyfuse3", "lmdb", "mlfs.config", "mountd.mounts"}
    # What makes it quick, told by what does not depend on the machine: 40 modules when this was written.
    assert len(ours - loaded("pass")) < 80


def test_bad_usage_is_2() -> None:
    for argv in ([], ["mout"], ["unmount"], ["register", "/x", "--seed", "one"], ["register", "/x", "--sed", "1"]):
        done = mlfs(*argv)
        assert done.returncode == ExitCode.USAGE
        assert done.stderr.count(b"\n") == 1
        assert b"--help says more)" in done.stderr or b"did you mean" in done.stderr
    done = mlfs("mount")
    assert done.returncode == ExitCode.USAGE
    assert b"no source" in done.stderr


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["mout"], "mlfs: COMMAND is 'mout', must be one of mount, "),
        (["mount", "/x", "--ramm", "3G"], "mlfs mount: there is no flag --ramm (did you mean --ram?)"),
        (["register", "/x", "--epoch=3"], "mlfs register: there is no flag --epoch (did you mean --epochs?)"),
        (
            ["register", "/x", "--zzzzzzz"],
            "mlfs register: there is no flag --zzzzzzz (mlfs register --help lists them)",
        ),
        (["cache", "list", "/x", "--jsn"], "mlfs cache list: there is no flag --jsn (did you mean --json?)"),
        (["register", "/x", "--seed", "1.5"], "mlfs register: --seed is '1.5', must be a whole number of any size"),
        (["register", "/x", "--seed"], "mlfs register: --seed needs a value"),
        (["unmount", "a", "b\nc"], "mlfs unmount: 'b\\nc' is one word too many"),
        (["unmount", "a", "b\x1b"], "mlfs unmount: 'b\\x1b' is one word too many"),
    ],
)
def test_bad_usage_is_one_line_with_the_nearest_right_word(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    said = capsys.readouterr().err
    assert end.value.code == ExitCode.USAGE
    assert said.startswith(line)
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MlfsError("it is so", "do this", ExitCode.SOURCE), 3, "mlfs: it is so (do this)\n"),
        (MlfsError("a\nb\x1b[31m"), 1, "mlfs: a\\nb\\x1b[31m\n"),
        (KeyboardInterrupt(), 130, "mlfs: interrupted\n"),
        (
            ValueError("odd"),
            1,
            "mlfs: unexpected ValueError: odd (run it again as `mlfs --debug ...` for the traceback)\n",
        ),
    ],
)
def test_each_error_is_one_line_and_a_code(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("mlfs.cli.unmount.run", fail)
    assert cli.main(["unmount", "/x"]) == code
    stderr = capsys.readouterr().err
    assert stderr.startswith(line)
    assert stderr.count("\n") == 1
    assert cli.main(["--debug", "unmount", "/x"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_paths_of_any_bytes_are_printed_escaped() -> None:
    done = mlfs("unmount", b"/no\xff\nwhere", LC_ALL="C.UTF-8")
    assert done.returncode == ExitCode.NOT_MOUNTED
    assert b"/no\\xff\\nwhere is not an mlfs mount" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = """import sys, mlfs.cli.main as m, mlfs.cli.status as s
s.run = lambda args: [print('x' * 100) for _ in range(10000)] and 0
sys.exit(m.main(['status', '/x']))"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_an_output_that_cannot_be_written_is_one_line() -> None:
    full = subprocess.run(
        f"{sys.executable} -m mlfs.cli.main simulate --list > /dev/full", shell=True, capture_output=True, check=False
    )
    assert full.returncode == ExitCode.FAILURE
    assert full.stderr == b"mlfs: the output cannot be written: No space left on device\n"
    closed = subprocess.run(
        f"{sys.executable} -m mlfs.cli.main simulate --list >&-", shell=True, capture_output=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (ExitCode.OK, b"")


def test_a_refusal_names_few_of_the_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [mounts.MountEntry(i, 0, "0:9", f"/m{i}", "fuse.mlfs", f"mlfs:/s{i}") for i in range(9)]
    monkeypatch.setattr("mountd.interface.mount_table", lambda: table)
    monkeypatch.setattr("mountd.mounts.mount_table", lambda: table)
    hint = client.not_mounted("/nowhere").hint
    assert hint == "mlfs mounts here: /m0, /m1, /m2 and 6 more"
