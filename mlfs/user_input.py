"""Reads what a user hands in, and bounds it: files, standard input, JSON, TOML, lines, numbers.

In: a path, `-`, a text. Out: text, lines, values; an OSError, or an `InputError` that says in one line why it cannot be
used. Used by every command that reads what somebody wrote.

A path may lead to anything: a device or a pipe that never ends, a file of a terabyte that was named by mistake. Nothing
is read beyond a bound, so that the answer is one line and not the machine's memory. A pipe that says nothing is waited
for, as one that is typed into a terminal is: Ctrl-C ends that.
"""

from __future__ import annotations

import errno
import io
import json
import os
import select
import sys
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T", bytes, bytearray)
# Longer than any job that is written down, also with a thousand nodes in it.
MOST_JSON_BYTES = 4 << 20
# A scenario with a capacity for each of 32,767 nodes has a third of that. It takes a second or two to parse.
MOST_TOML_BYTES = 1 << 20
# A path has 4,096 bytes at most, of which JSON makes six each.
MOST_LINE_BYTES = 1 << 16
_MOST_DIGITS = 100
_PORTION_BYTES = 1 << 20
_HEARD_WITHIN_S = 0.2


class InputError(ValueError):
    """The input cannot be used; its text says why, for people."""


def read_bytes(path: str, most_bytes: int) -> bytes:
    """The whole of a file; of standard input with `-`. Raises: OSError, also (EFBIG) for more than may be read."""
    if path == "-":
        try:
            return _read_whole(sys.stdin.fileno(), most_bytes)
        except io.UnsupportedOperation:  # a program that embeds this one has put a text in its place
            text = sys.stdin.read(most_bytes + 1).encode("utf-8", "surrogateescape")
            return _bounded(text, most_bytes)
    # O_NONBLOCK: a signal could not end the opening of a FIFO that nobody writes to.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return _read_whole(fd, most_bytes)
    finally:
        os.close(fd)


def _bounded(found: T, most_bytes: int) -> T:
    if len(found) > most_bytes:
        raise OSError(errno.EFBIG, f"it is longer than {_in_words(most_bytes)}, the most that is read")
    return found


def _read_whole(fd: int, most_bytes: int) -> bytes:
    found = bytearray()
    while portion := _read(fd, min(_PORTION_BYTES, most_bytes + 1)):
        found += portion
        _bounded(found, most_bytes)
    return bytes(found)


def _read(fd: int, most_bytes: int) -> bytes:
    """The next bytes. A signal that arrives just before the call is heard as well: read(2) alone would wait on."""
    while True:
        while not select.select([fd], [], [], _HEARD_WITHIN_S)[0]:
            pass  # Python runs the handlers of signals here
        try:
            return os.read(fd, most_bytes)
        except BlockingIOError:
            continue


def answer(question: str) -> str:
    """The line that somebody at the terminal answers, without its end; nothing at the end of standard input."""
    print(question, end="", flush=True)
    try:
        text = _read(sys.stdin.fileno(), MOST_LINE_BYTES)
    except (AttributeError, io.UnsupportedOperation):  # a program that embeds this one has put a text in its place
        text = sys.stdin.readline().encode()
    return text.decode(errors="replace").partition("\n")[0].strip()


def read_json(path: str) -> Any:
    """The value that a file, or with `-` standard input, holds. Raises: OSError, InputError."""
    return parse_json(read_bytes(path, MOST_JSON_BYTES))


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises: InputError."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(_reason(error)) from None


def read_toml(path: str) -> dict[str, Any]:
    """The table that a file holds. Raises: OSError, InputError."""
    return parse_toml(read_bytes(path, MOST_TOML_BYTES))


def parse_toml(text: str | bytes) -> dict[str, Any]:
    """The table of a TOML text. Raises: InputError."""
    try:
        table = tomllib.loads(text if isinstance(text, str) else text.decode())
        _check_numbers(table)
        return table
    except (ValueError, RecursionError) as error:
        raise InputError(_reason(error)) from None


def _check_numbers(value: Any) -> None:
    """TOML's whole numbers have 64 bits; beyond those Python would go on with numbers that nothing else can use."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError(f"the number {shortened(str(value))} has more than 64 bits")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_numbers(item)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not text: byte {error.start} is no UTF-8"
    said = " ".join(str(error).split())
    return "a number in it has too many digits" if "int_max_str_digits" in said or "digits)" in said else said


def read_lines(file: BinaryIO, most_lines: int) -> Iterator[bytes]:
    """The lines of a file, one at a time. Raises: OSError (EFBIG) for a line, or a number of lines, that no such file
    has."""
    for _ in range(most_lines):
        line = file.readline(MOST_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MOST_LINE_BYTES:
            raise OSError(errno.EFBIG, f"it has a line of more than {_in_words(MOST_LINE_BYTES)}")
        yield line
    if file.read(1):
        raise OSError(errno.EFBIG, f"it has more than {most_lines:,} lines, the most that are read")


def whole_number(text: str, least: int, most: int) -> int:
    """The whole number that a text says. Raises: InputError, which says what it must be."""
    try:
        value = int(text) if len(text) <= _MOST_DIGITS else None
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise InputError(f"a whole number from {least} to {most}")
    return value


def shortened(text: str, most: int = 60) -> str:
    """A text as an error can show it: its beginning and its end."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def nearest(word: str, known: Iterable[str]) -> str:
    """ "did you mean X?", or "" when nothing is like it."""
    from difflib import get_close_matches  # only for those who mistype

    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else ""


def _in_words(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"
