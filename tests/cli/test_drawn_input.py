"""Whatever a user hands in, in whichever field of whichever command or file, is answered in one line and a known code.

The runs are those of drawn_input.py, which finds the fields by itself: a new field is drawn by itself.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.drawn import cases

from mlfs.cli.replay import MOST_OPENS
from mlfs.user_input import MOST_JSON_BYTES, MOST_LINE_BYTES, InputError, parse_json, parse_toml, read_bytes, read_lines

DRAWN = str(Path(__file__).parent / "drawn_input.py")


@pytest.mark.promise("input-bounded")
@pytest.mark.parametrize("seed", range(cases(1)))
def test_each_field_of_each_command_is_answered_in_one_line(tmp_path: Path, seed: int) -> None:
    words = [sys.executable, DRAWN, str(tmp_path), str(seed), "1"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *wrong, ran = done.stdout.splitlines()
    assert wrong == []
    assert int(ran.split()[0]) > 400


def endless(text: bytes) -> io.BufferedReader:
    """A file that never ends."""

    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            part = (text * (len(buffer) // len(text) + 1))[: len(buffer)]
            buffer[:] = part
            return len(part)

    return io.BufferedReader(Endless(), 1 << 16)


@pytest.mark.promise("input-bounded")
def test_what_never_ends_is_read_to_its_bound_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/dev/zero", "/dev/urandom"):
        with pytest.raises(OSError, match="it is longer than 1 MiB"):
            read_bytes(path, 1 << 20)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(endless(b"{}\n")))
    with pytest.raises(OSError, match="it is longer than 4 MiB"):
        read_bytes("-", MOST_JSON_BYTES)
    with pytest.raises(OSError, match="a line of more than 64 KiB"):
        list(read_lines(endless(b"x"), MOST_OPENS))
    lines = []
    with pytest.raises(OSError, match="it has more than 1,000 lines"):
        lines.extend(read_lines(endless(b"[1]\n"), 1000))
    assert 6 * os.pathconf("/", "PC_PATH_MAX") < MOST_LINE_BYTES


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "\\", "", '"\ud800'])
def test_what_cannot_be_parsed_is_said_in_one_line(text: str) -> None:
    given = text.encode("utf-8", "surrogatepass")
    with pytest.raises(InputError) as json_error:
        parse_json(given)
    with pytest.raises(InputError) as toml_error:
        parse_toml(b"a = " + given)
    for error in (json_error, toml_error):
        assert len(str(error.value).splitlines()) == 1
        assert len(str(error.value)) < 200


def test_what_is_within_the_bounds_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 3_000_000)
    assert read_bytes(str(path), 3_000_000) == path.read_bytes()
    with pytest.raises(OSError, match="longer than"):
        read_bytes(str(path), 2_999_999)
    assert list(read_lines(io.BytesIO(b"a\nb\nc"), 3)) == [b"a\n", b"b\n", b"c"]
    assert parse_json(json.dumps({"seed": 10**300})) == {"seed": 10**300}
