"""Names that would steer a terminal, make lines of their own or run backwards: shown escaped by commands and logs."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import re
from pathlib import Path
from typing import TextIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mounts import MlfsMount

from mlfs.cli import main as cli
from mlfs.printable import PrintableStream, printable, printable_lines
from mountd import log_file

# Clear the screen, set the title, a new line, back to the line's start, right to left, a line separator, no text.
HOSTILE = [
    "\x1b[2J",
    "\x1b]0;x\x07",
    "\nmlfs: all is well",
    "\rok",
    "\u202e\u2066",
    "\u2028",
    "\x9b31m",
    "\udcff\udc80",
]


@given(st.lists(st.sampled_from([*HOSTILE, "a", " ", "é", "\\"])).map("".join))
def test_what_is_shown_prints_itself(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    stream = io.StringIO()
    print(text, "two\nlines", file=cast(TextIO, PrintableStream(stream)))
    assert stream.getvalue() == printable_lines(text) + " two\nlines\n"


def test_a_log_has_a_line_for_each_record(tmp_path: Path) -> None:
    logger = logging.getLogger("mlfs.test_printable")
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    root.handlers.clear()
    try:
        log_file.log_to(str(tmp_path / "log"), "text", 1 << 20, 1)
        for text in HOSTILE:
            logger.warning("file %s", text)
            try:
                raise ValueError(text)
            except ValueError:
                logger.exception("it failed")
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = before
    lines = (tmp_path / "log").read_text().split("\n")
    assert all(line.isprintable() for line in lines)
    assert all(re.match(r"#|\d{4}-.* (WARNING|ERROR) mlfs\.test_printable: (file|it failed)|  \| |$", x) for x in lines)
    assert len([line for line in lines if ": file " in line]) == len(HOSTILE)


def test_commands_show_names_escaped(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    name = "".join(random.Random(4).sample(HOSTILE, len(HOSTILE))).replace("/", "")
    source = tmp_path / name
    source.mkdir()
    (source / f"f{name}").write_bytes(b"x")
    words = {
        "mount": [str(source), str(tmp_path / "missing\x1b[2J\n")],
        "unmount": [str(source)],
        "status": [str(source)],
        "cache": ["list", str(source)],
        "replay": [str(source / f"f{name}")],
        "order": [str(source), "--layout", "sorted", "--sampler", f"x{name}"],
        f"un{name}": [],
    }
    for command, rest in words.items():
        with contextlib.suppress(SystemExit):
            cli.main([command, *rest])
    with MlfsMount(source) as mount:
        mount.register(name="train", epochs=1, layout="sorted")
        assert not list(mount.path.glob("missing"))
        for command in ("status", "ls", "register"):
            done = mount.run(command, *([] if command == "ls" else [str(mount.path)]), check=False)
            assert all(line.isprintable() for line in (done.stdout + done.stderr).split("\n")), command
    printed = capfdbinary.readouterr()
    for line in (printed.out + printed.err).decode().split("\n"):
        assert line.isprintable(), line
        assert not line.startswith("mlfs: all is well")
    assert os.path.isdir(source)
