"""What users read about the commands: every help fits a terminal, and docs/commands.md has all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlfs.cli.commands import build_parser
from mlfs.cli.parser import Parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs/commands.md").read_text()
COMMANDS = (
    "audit",
    "mount", "register", "status", "unregister", "unmount", "order", "record", "replay", "calibrate", "plan", "advise",
    "simulate", "cache", "peers", "ls", "top", "doctor", "report", "completion", "explain",
    "warmup", "refresh", "upgrade", "run",
)  # fmt: skip


def parsers(parser: Parser) -> Iterator[Parser]:
    """A parser and those of its sub-commands."""
    yield parser
    for below in parser.commands.values():
        yield from parsers(below)


def test_every_help_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    checked = set()
    for parser in parsers(build_parser(COMMANDS)):
        checked.add(parser.prog)
        for line in parser.format_help().splitlines():
            assert len(line) <= 80, f"{parser.prog}: {line}"
    assert checked >= {f"mlfs {command}" for command in COMMANDS} | {"mlfs cache verify", "mlfs advise gpus"}


def test_the_page_names_the_commands() -> None:
    named = set(re.findall(r"`(?:mlfs )?([a-z]+)", PAGE.partition("## All commands")[2]))
    assert named == set(COMMANDS)


def test_the_commands_in_readme_are_understood() -> None:
    words = [line.split("#")[0].split()[1:] for line in README.splitlines() if line.startswith("    mlfs ")]
    assert len(words) >= 4
    for argv in words:
        build_parser(argv).parse(argv)


def test_what_stands_behind_two_dashes_is_the_command_of_peers_wherever_its_flags_stand() -> None:
    for own in (["/data", "--peer-timeout", "3"], ["--peer-timeout", "3", "/data"]):
        args = build_parser(["peers"]).parse(["peers", *own, "--", "train", "--peer-timeout", "9", "--", "x"])
        assert (args.mount, args.peer_timeout) == ("/data", 3.0)
        assert args.command_words == ["train", "--peer-timeout", "9", "--", "x"]
