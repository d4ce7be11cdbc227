"""Every example of README.md and docs/ is run, or the table NOT_RUN says why not; every flag that they name is there.

An example is a line of a block that calls mlfs. It runs in this process over a small data set, one mount for all of
them; what only a shell does (pipes, redirections) is left out. Examples of --help, and commands in running text, are
parsed by the real parser.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.mounts import MlfsMount
from support.trees import content, make_tree

from mlfs.cli.commands import build_full_parser, main
from mlfs.cli.parser import Parser

ROOT = Path(__file__).parents[1]
PICTURES = ("architecture.md",)  # whose blocks are drawings
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in PICTURES)]
DATA = "/data/imagenet"
# The beginning of an example -> why no test runs it. Its flags are parsed all the same.
NOT_RUN = {
    "mlfs peers": "it needs an MPI library and other nodes: tests/peers/test_cluster.py",
    "mlfs record": "it goes on until Ctrl-C: tests/e2e/test_record.py",
    "mlfs advise gpus --from-mount": "it needs a training that reads: tests/cli/test_cli_advise.py",
    "mlfs advise workers": "it needs a training that reads: tests/plan/test_workers_advised.py",
    "mlfs simulate --like": "it needs a training that reads: tests/e2e/test_loader_workers.py",
    "mlfs simulate small-cluster": "20 epochs of ImageNet take minutes: tests/lab/sim/test_scenario.py loads it",
    "mlfs simulate thesis-s4 --shrink 50": "it takes a minute: tests/lab/sim/test_detailed.py",
    "mlfs simulate environment-grid": "nine simulations: tests/cli/test_cli_simulate.py draws such a map",
    "mlfs simulate thousand-nodes": "it takes a minute: tests/lab/sim/test_thousand_nodes.py",
}
# What makes an example short, where it would take long only because its data set is a real one.
SHORTENED = {
    "mlfs simulate thesis-s2": "--shrink 100",
    "mlfs simulate thesis-s3": "--shrink 100",
    "mlfs plan": "--pfs-bandwidth 2GB",
}
# Commands that look at the source; the others get the mount.
OF_THE_SOURCE = ("mount", "order", "plan", "calibrate", "simulate", "doctor", "explain")
CALL = re.compile(r"(?:^|[\s'|;&(])(mlfs [a-z][a-z-]*\b.*)")


def joined(text: str) -> str:
    return re.sub(r"\\\n\s*", " ", text)


def command_in(line: str) -> str | None:
    """The call of mlfs in a line of a block, without comments, pipes and what a page says beside it."""
    found = CALL.search(line)
    if found is None:
        return None
    before = line[: found.start(1)].strip()
    if before and not re.match(r"(mpiexec|srun|trap|\$|[A-Z_]+=)", before):
        return None
    text = re.split(r"\s#\s|\s{3,}|' EXIT", found[1].strip())[0]
    shorter = re.split(r"\s[|<>&]|;", text)[0]
    return (shorter if shorter.count("'") % 2 == 0 else text).strip()


def blocks() -> Iterator[tuple[str, str]]:
    """(page, command) for each example in a block."""
    for page in PAGES:
        is_fenced = False
        for line in joined(page.read_text()).splitlines():
            if line.strip().startswith("```"):
                is_fenced = not is_fenced
                continue
            command = command_in(line.strip()) if is_fenced or line.startswith("    ") else None
            if command and command.split()[1] in known():
                yield page.name, command


def known() -> dict[str, Parser]:
    return PARSER.commands


PARSER = build_full_parser()
BLOCKS = list(blocks())
IN_TEXT = [
    (page.name, " ".join(found[1].split()))
    for page in PAGES
    for found in re.finditer(r"`(mlfs [a-z][^`]*)`", page.read_text())
]
IN_HELP = [
    (name, command)
    for name, parser in known().items()
    for line in joined(parser.epilog or "").splitlines()
    if line.startswith("  ") and (command := command_in(line.strip()))
]


def parsed(command: str) -> Any:
    """As the command line would be taken. Raises SystemExit."""
    return PARSER.parse(shlex.split(command)[1:])


def check_flags(command: str) -> None:
    """Whether its command and its flags are there; for what is cut short by an ellipsis or stands for many."""
    words = [word.strip("[],.;") for word in command.split()[1:]]
    parser = PARSER
    for word in words:
        parser = parser.commands.get(word, parser)
    assert parser is not PARSER, command
    there = {option for action in parser.fields for option in action.option_strings}
    own = words[: words.index("--")] if "--" in words else words
    flags = {word.partition("=")[0] for word in own if word.startswith("-") and len(word) > 1 and word != "--"}
    assert flags <= there, command


@pytest.mark.parametrize(("page", "command"), [*BLOCKS, *IN_HELP])
def test_an_example_is_understood(page: str, command: str) -> None:
    if "..." in command or command.count("'") % 2:  # cut short, or it goes on in the next line
        check_flags(command)
        return
    error, code = io.StringIO(), 0
    with contextlib.redirect_stderr(error):
        try:
            parsed(command)
        except SystemExit as left:
            code = int(left.code or 0)
    assert code == 0, f"{page}: {command}: {error.getvalue()}"


@pytest.mark.parametrize(("page", "command"), IN_TEXT)
def test_a_command_in_the_text_is_there_with_its_flags(page: str, command: str) -> None:
    assert page
    check_flags(command)


def test_the_table_is_about_examples_that_are_there() -> None:
    commands = [command for _, command in BLOCKS]
    assert len(commands) > 30
    assert {"README.md", "plan.md", "simulator.md", "watching.md"} <= {page for page, _ in BLOCKS}
    for beginning in (*NOT_RUN, *SHORTENED):
        assert any(command.startswith(beginning) for command in commands), beginning


def to_run() -> list[str]:
    """Each once; what ends the mount comes last, and what gives a job to it first."""
    commands = [command for _, command in BLOCKS if not any(command.startswith(begin) for begin in NOT_RUN)]
    commands += [command for _, command in IN_TEXT if command.startswith("mlfs order SOURCE --")]
    place = {"register": 0, "unmount": 2}
    return sorted(dict.fromkeys(commands), key=lambda command: place.get(command.split()[1], 1))


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{part}/class{number % 3}/{number}.jpg" for part in ("train", "val") for number in range(200)]
    source = make_tree(tmp_path / "source", {name: content(name, 400) for name in names})
    np.save(source / "train.npy", np.zeros((600, 10_000), np.uint8))
    (tmp_path / "pfs").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run1.opens").write_text("".join(f'[{at}.0, 7, 1, "{name}"]\n' for at, name in enumerate(names)))
    (tmp_path / "state.json").write_text('{"epoch": 12, "index": 40, "num_replicas": 2}')
    (tmp_path / "job.json").write_text('{"epochs": 90, "world_size": 2, "seed": 0}')
    assert main(["order", str(source), "--seed", "7", "--epochs", "1"]) == 0  # what a script of that seed has read
    (tmp_path / "read.txt").write_text(capsys.readouterr().out)
    mount = MlfsMount(source)
    mount.mount()
    failed = []
    try:
        for name, value in mount.env.items():
            monkeypatch.setenv(name, value)
        for command in to_run():
            words = shlex.split(command.replace(" ...", ""))[1:]
            data = str(source if words[0] in OF_THE_SOURCE else mount.path)
            words = [
                re.sub("^(SOURCE|MOUNT)$", data, word).replace(DATA, data).replace("/pfs/", f"{tmp_path}/pfs/")
                for word in words
            ]
            if words[0] == "mount":
                words[2:2] = [] if str(mount.path) == str(source) else [str(mount.path)]
                assert parsed(shlex.join(["mlfs", *words]))
                continue  # it is mounted, and other settings would be refused
            if "register" in words and "--epochs" not in words:
                words += ["--epochs", "20"]
            words += next((more.split() for begin, more in SHORTENED.items() if command.startswith(begin)), [])
            try:
                code = main(words)
            except SystemExit as left:
                code = int(left.code or 0)
            said = capsys.readouterr().err
            if code != 0:
                failed.append(f"{command}: {code}, {said}")
        assert failed == []
        assert not mount.is_mounted  # by the last of them
    finally:
        mount.clean_up()
