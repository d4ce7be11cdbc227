"""Runs commands with drawn values in each of their fields, in this process, with little memory and time for each.

In: a directory to work in, a seed, how many values are drawn for a field. Out: a line for each run that did not end in
one line: the words, the exit code, what was said. Run by test_drawn_input.py, as a process of its own, for it bounds
its own address space. Fields are found by walking the parser and the models of files: a new one is drawn by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlfs.cli.commands import build_full_parser, main
from mlfs.cli.parser import Parser
from mlfs.errors import ConfigError, ExitCode, MlfsError

ROOM_BYTES = 1 << 30  # what a command may take beyond what is loaded already
LONGEST_S = 8
NUMBERS = (
    "9" * 400, "-" + "9" * 400, "9" * 5000, "1e400", "-1e400", "nan", "inf", "10000000000", "1000000000", "1000000",
    "1" + "0" * 18, "-1", "0", "0.0", "1e-320", "1e308", "18446744073709551616",
)  # fmt: skip
TEXTS = ("/dev/zero", "/dev/null", "/dev/urandom", "", " ", "-", "x" * 70_000, "[" * 3000, "%s{0}", "é\n")
TEXTS_IN_FILES = (*TEXTS[:-1], "\0", "a\0b")
# A command that would wait for ever, or end other processes, is not run with these words.
ENDLESS = {("status", "--watch"), ("top", "--every")}
Words = list[str]


class Case(argparse.Namespace):
    """A command line and the field that was drawn in it."""

    words: Words
    field: str


def leaves(parser: Parser, words: Words) -> Iterator[tuple[Words, list[argparse.Action]]]:
    """Each command that can be run, with its fields."""
    for name, child in parser.commands.items():
        yield from leaves(child, [*words, name])
    if not parser.commands:
        yield words, [action for action in parser.fields if action.dest != "help"]


class Ground:
    """Files that commands can be given, and the words with which each command has something to do."""

    def __init__(self, directory: Path) -> None:
        self.tree = directory / "tree"
        for name in ("a/0.jpg", "a/1.jpg", "b/2.jpg"):
            path = self.tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 5000)
        self.out = directory / "out"
        self.out.mkdir()
        self.scenario = SCENARIO
        scenario = directory / "scenario.toml"
        scenario.write_text(toml(SCENARIO))
        record = directory / "a.opens"
        lines = [json.dumps([float(at), 7, 1, name]) for at, name in enumerate(("a/0.jpg", "a/1.jpg", "b/2.jpg"))]
        record.write_text("\n".join(lines) + "\n")
        tree = str(self.tree)
        job = ["--epochs", "2"]
        self.given: dict[str, Words] = {
            "register": [tree, *job, "--dry-run"],
            "order": [tree, *job],
            "plan": [tree, *job, "--step-time", "1s", "--pfs-bandwidth", "1G"],
            "simulate": [str(scenario)],
            "calibrate": [tree, "--seconds", "0.2", "--bytes", "64K", "--output", str(self.out / "c.toml")],
            "replay": [str(record), "--orders", str(self.out / "orders")],
            "record": [tree, str(self.out / "r.opens")],
            "report": [tree, str(self.out / "r.html")],
            "mount": [tree, str(self.out)],
            "peers": [tree, "--", "true"],
            "advise gpus": ["--overhead", "0.1", "--gpus", "4"],
            "advise servers": ["--parameters", "1M", "--workers", "4", "--bandwidth", "1M", "--compute-time", "1s"],
            "advise batch": ["alexnet"],
            "advise workers": ["--from-mount", tree],
            "completion": ["bash"],
            "cache clear": [tree, "--yes"],
        }

    def words(self, command: Words, actions: list[argparse.Action]) -> Words:
        """What the command is given where nothing is drawn."""
        known = self.given.get(" ".join(command))
        if known is not None:
            return known
        return [str(self.tree) for action in actions if not action.option_strings and action.nargs in (None, "+")]

    def with_value(self, command: Words, actions: list[argparse.Action], drawn: argparse.Action, value: str) -> Words:
        """The command line with a value in one field."""
        words = list(self.words(command, actions))
        if drawn.option_strings:
            flag = drawn.option_strings[-1]
            if flag in words:
                del words[words.index(flag) : words.index(flag) + 2]
            at = words.index("--") if "--" in words else len(words)
            return [*command, *words[:at], f"{flag}={value}", *words[at:]]
        position = [action for action in actions if not action.option_strings].index(drawn)
        words[position : position + 1] = [value]
        return [*command, *words]


SCENARIO: dict[str, Any] = {
    "title": "drawn",
    "seed": 1,
    "cluster": {
        "nodes": 2, "gpus": 2, "compute_MBps": 100, "preprocess_MBps": {"1": 10, "2": 20, "4": 30, "8": 40},
        "network_MBps": 100, "preprocess_threads": 2, "node_pfs_MBps": 100, "pfs_MBps": {"1": 10, "2": 20},
        "staging": {"name": "staging", "capacity": "1MB", "read_MBps": 1000, "threads": 2},
        "classes": [{"name": "ram", "capacity": "1MB", "read_MBps": 1000, "write_MBps": 1000, "threads": 2}],
    },
    "data": {"samples": 60, "mean": "10kB", "deviation": "1kB"},
    "job": {"epochs": 2, "batch": 4, "drop_last": False, "order": {"sampler": "torch-distributed", "seed": 1}},
}  # fmt: skip
MODEL: dict[str, Any] = {
    "name": "drawn", "gpu-memory": "1GB", "batches": [8, 16], "input": [32, 32, 3], "classifier": [100, 10],
    "flops": {"gemm": 1e12, "fft": 1e12},
    "layer": [{"name": "c", "filter": 3, "stride": 1, "padding": 1, "filters": 8, "groups": 1}],
}  # fmt: skip


class Number(str):
    """What stands in a file as it is, without quotes."""

    __slots__ = ()


def toml(table: dict[str, Any]) -> str:
    """A table of tables as a text, each value on its line."""
    return "".join(f"{json.dumps(key)} = {in_line(value)}\n" for key, value in table.items())


def in_line(value: Any) -> str:
    """A value as TOML and JSON have it, but for `=` and `:`."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {in_line(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_line, value)) + "]"
    return json.dumps(value)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a document a value stands."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at a place."""
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = replaced(copy[path[0]], path[1:], value)
    return copy


def drawn_value(rng: random.Random) -> str:
    return rng.choice(NUMBERS) if rng.random() < 0.7 else rng.choice(TEXTS)


def of_flags(ground: Ground, rng: random.Random, count: int) -> Iterator[Words]:
    """Each field of each command with some values."""
    for command, actions in leaves(build_full_parser(), []):
        yield [*command, *ground.words(command, actions)]
        for action in actions:
            takes_value = action.nargs != 0
            for _ in range(count if takes_value else 0):
                value = drawn_value(rng)
                if not any((command[0], flag) in ENDLESS for flag in action.option_strings) or not value.isascii():
                    yield ground.with_value(command, actions, action, value)


def of_files(ground: Ground, directory: Path, rng: random.Random, count: int) -> Iterator[Words]:
    """Each value in each kind of file that commands read."""
    from mlfs.config import KEYS
    from mlfs.job import JobSpec
    from mlfs.job.catalogue import BUILT_IN
    from mlfs.job.spec import COMMON

    def written(name: str, text: str) -> str:
        path = directory / name
        path.write_text(text)
        return str(path)

    for _ in range(count):
        for path in places(SCENARIO):
            if path:
                yield ["simulate", written("s.toml", toml(replaced(SCENARIO, path, in_file(rng))))]
        for path in places(MODEL):
            if path:
                yield ["advise", "batch", written("m.toml", toml(replaced(MODEL, path, in_file(rng))))]
        for key in KEYS:
            yield ["mount", str(ground.tree), "--config", written("c.toml", toml({key: in_file(rng)}))]
        for field in JobSpec.model_fields:
            text = "{" + f'"epochs": 2, {json.dumps(field)}: {in_line(in_file(rng))}' + "}"
            yield ["order", str(ground.tree), "--json-file", written("j.json", text)]
        for own in BUILT_IN:
            job: dict[str, Any] = {"epochs": 2, "sampler": own.name, "batch_size": 2}
            job |= {field: written(field, "0\n1\n2\n") for field in own.required if field.endswith("_file")}
            for field in rng.sample(sorted(own.fields | COMMON), 6):
                text = ", ".join(
                    f"{json.dumps(key)}: {in_line(value)}" for key, value in (job | {field: in_file(rng)}).items()
                )
                yield ["order", str(ground.tree), "--json-file", written("j.json", "{" + text + "}")]
        for field in range(4):
            opened: list[Any] = [1.0, 7, 1, "a"]
            opened[field] = in_file(rng)
            record = written("r.opens", f'[0.5, 7, 1, "b"]\n{in_line(opened)}\n')
            yield ["replay", record, "--orders", str(ground.out / "orders")]


def in_file(rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return rng.choice(TEXTS_IN_FILES)
    if rng.random() < 0.1:
        return rng.choice([[], {}, [[]], True, Number("[" * 2000 + "]" * 2000)])
    return Number(rng.choice(NUMBERS).replace("nan", "0"))


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def late(_number: int, _frame: object) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def run(words: Words) -> tuple[int, str]:
    """The exit code, and what was written to standard error."""
    out, err = io.StringIO(), io.StringIO()
    out.buffer = io.BytesIO()  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with at_most(LONGEST_S):
                code = main(words)
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException as error:
            return 99, f"{type(error).__name__}: {error}"
    return code, err.getvalue()


def complaint(code: int, said: str) -> str:
    """What is wrong with how a command ended; empty where nothing is."""
    if "TimeoutError" in said and said.count("mlfs: ") > 1:
        return ""  # it was at work, has said how far it was, and ended when it was interrupted
    if code == ExitCode.FAILURE and not said:
        return ""  # a check that found something, which it has printed
    if code not in set(ExitCode) - {ExitCode.FAILURE, ExitCode.INTERRUPTED}:
        return "exit code"
    lines = [line for line in said.splitlines() if line.startswith("mlfs")]
    if "unexpected" in said or "Traceback" in said:
        return "unforeseen"
    if code and (not lines or len(said.splitlines()) != len(lines)):
        return "not in whole lines of mlfs"
    return "a line without end" if any(len(line) > 2000 for line in lines) else ""


def without_mounts() -> None:
    """What is asked of a mount is answered as by one that has just gone; nothing is mounted."""
    client, interface = importlib.import_module("mlfs.cli.client"), importlib.import_module("mountd.interface")

    def gone(*_: Any, **__: Any) -> Any:
        raise MlfsError("it is gone", "", ExitCode.NOT_MOUNTED)

    def enough(*_: Any, **__: Any) -> Any:
        raise ConfigError("so far all is well", "")

    client.require_mount = interface.resolve  # type: ignore[attr-defined]
    client.send = client.read_status = client.read_file = gone  # type: ignore[attr-defined]
    interface.check_mount = enough  # type: ignore[attr-defined]


def cases(directory: Path, seed: int, count: int) -> Iterator[Words]:
    ground, rng = Ground(directory), random.Random(seed)
    yield from of_flags(ground, rng, count)
    yield from of_files(ground, directory, rng, count)


def bounded() -> None:
    """Have this process take little more memory than it has now, once all is loaded."""
    for name in (
        "numba",
        "mlfs.orders.streams",
        "mlfs.lab.sim.run",
        "rich.table",
        "scipy.optimize",
    ):
        importlib.import_module(name)
    with open("/proc/self/statm") as statm:
        now = int(statm.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (now + ROOM_BYTES, now + ROOM_BYTES))


if __name__ == "__main__":
    directory, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    os.environ["XDG_CACHE_HOME"] = str(directory / "cache")
    os.chdir(directory)
    without_mounts()
    bounded()
    ran = 0
    sys.stdin = io.StringIO("")
    for words in cases(directory, seed, count):
        began = time.monotonic()
        code, said = run(words)
        ran += 1
        wrong = complaint(code, said)
        if os.environ.get("SLOW") and time.monotonic() - began > 1:
            print(f"SLOW {time.monotonic() - began:.1f} {[word[:60] for word in words]}")
        if wrong:
            named = [Path(word) for word in words if word.startswith(str(directory))]
            files = [path.read_text()[:1000] for path in named if path.suffix in (".json", ".toml")]
            print(json.dumps([wrong, code, [word[:80] for word in words], said[-300:], *files]), flush=True)
    print(f"{ran} runs")
