"""Writes the manual pages of `mlfs`, its commands and `mount.mlfs` from their --help, into docs/man.

In: the parsers. Out: a page in section 1 for each command, and one in section 8 for what mount(8) runs, as groff reads
them. The pages are kept with the sources, because a wheel is built where the libraries of mlfs need not be. A test
compares them with what would be written now.

    python scripts/man_pages.py
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from argparse_manpage.manpage import Manpage

from mlfs.cli import commands, mount_helper

FOLDER = Path(__file__).parent.parent / "docs/man"
_SUMMARY = "a clairvoyant read-only file system in front of training data"
_HELPER_SUMMARY = "what mount(8) runs to mount a data set with mlfs"


def pages() -> dict[str, str]:
    """All pages by the names of their files."""
    os.environ["COLUMNS"] = (
        "80"  # lines are filled anew where they are shown; here they only have to be always the same
    )
    top = commands.build_full_parser()
    named = _commands_of(top)
    summaries = {choice.dest: choice.help or "" for choice in _subparsers_of(top)._choices_actions}
    found = {"mlfs.1": _page(top, "mlfs", _SUMMARY, 1, [f"mlfs-{name}" for name in named])}
    for name, parser in named.items():
        found[f"mlfs-{name}.1"] = _page(parser, f"mlfs-{name}", summaries[name], 1, ["mlfs"])
    helper = mount_helper.build_parser()
    found["mount.mlfs.8"] = _page(helper, "mount.mlfs", _HELPER_SUMMARY, 8, ["mlfs-mount"])
    return found


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return dict(_subparsers_of(parser).choices)


def _subparsers_of(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _page(parser: argparse.ArgumentParser, title: str, summary: str, section: int, others: list[str]) -> str:
    page = Manpage(
        parser,
        {
            "project_name": "mlfs",
            "description": summary,
            "manual_title": "mlfs",
            "manual_section": section,
            "date": " ",  # a date would make every page new with every build
        },
        format="pretty" if title == "mlfs" else "single-commands-section",
    )
    page.prog = title  # after the usage was made, which has the words as they are typed
    text, _, notes = str(page).partition("\n.SH COMMENTS\n")
    if title == "mlfs":
        text = text.partition("\n.SH COMMAND ")[0]  # each command has a page
    text += f"\n.SH NOTES\n{_examples_as_they_stand(notes)}" if notes else "\n"
    also = ", ".join(rf"\fB{_escaped(other)}\fR(1)" for other in others)
    return f"{text}.SH SEE ALSO\n{also}\n"


def _examples_as_they_stand(text: str) -> str:
    """Lines that are indented keep their ends."""
    return re.sub(r"(?:^ .*\n)+", lambda lines: f".nf\n{lines[0]}.fi\n", text, flags=re.MULTILINE)


def _escaped(text: str) -> str:
    return text.replace("-", r"\-")


def main() -> None:
    """Write them, and remove pages of commands that are gone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = pages()
    for path in FOLDER.iterdir():
        if path.name not in found:
            path.unlink()
    for name, text in found.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
