"""Reads what a user hands in, and bounds it: files, standard input, JSON, TOML, lines, numbers.

In: a path, `-`, a text. Out: text, lines, values; an OSError, or an `InputError` that says in one line why it cannot be
used. Used by every command that reads what somebody wrote, and by orders that rest on a file.

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
import stat
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T", bytes, bytearray)
# Longer than any job that is written down, also with a thousand nodes in it.
MOST_JSON_BYTES = 4 << 20
# A scenario with a capacity for each of 32,767 nodes has a third of that. It takes a second or two to parse.
MOST_TOML_BYTES = 1 << 20
# A path has 4,096 bytes at most, of which JSON makes six each.
MOST_LINE_BYTES = 1 << 16
_MOST_DIGITS = 100
_PORTION_BYTES, _LARGE_PORTION_BYTES = 1 << 20, 4 << 20
# O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever, and a signal could not end it.
_WITHOUT_WAITING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
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
    fd = os.open(path, _WITHOUT_WAITING)
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


# -- files of a slow file system
#
# Each is read in a thread of its own, which is left behind when nothing comes for a while: a read of a network file
# system cannot be taken back. There are never more than a few of those.

# Longer than a server of a network file system takes to fail over to another one, mostly.
PATIENCE_S = 20.0
_MOST_LEFT_BEHIND = 16
_POLL_S = 0.1

_left_behind: set[threading.Thread] = set()
_lock = threading.Lock()


def read_patiently(path: str, most_bytes: int, stop_if_asked: Callable[[], None]) -> bytes:
    """The whole file, read in a worker thread. Args: stop_if_asked: is called between portions, and ends it by raising.

    Raises: OSError, also for what is not a regular file, is larger, or does not answer for PATIENCE_S.
    """
    stop_if_asked()
    with _lock:
        _left_behind.difference_update([thread for thread in _left_behind if not thread.is_alive()])
        if len(_left_behind) >= _MOST_LEFT_BEHIND:
            raise OSError(errno.EBUSY, "too many files that do not answer are being read")
    parts: list[bytes] = []
    failed: list[OSError] = []
    given_up = threading.Event()

    def read() -> None:
        """Read the file into `parts`, or say why not."""
        try:
            fd = os.open(path, _WITHOUT_WAITING)
            try:
                found, total = os.fstat(fd), 0
                if not stat.S_ISREG(found.st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file")
                while not given_up.is_set() and (part := os.read(fd, _LARGE_PORTION_BYTES)):
                    total += len(part)
                    if max(total, found.st_size) > most_bytes:
                        raise OSError(errno.EFBIG, f"it is larger than {_in_words(most_bytes)}")
                    parts.append(part)
            finally:
                os.close(fd)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=read, name="mlfs-named-file", daemon=True)
    thread.start()
    seen, waited_s = 0, 0.0
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            stop_if_asked()
            seen, waited_s = len(parts), waited_s + _POLL_S if len(parts) == seen else 0.0
            if waited_s >= PATIENCE_S and thread.is_alive():
                raise OSError(errno.ETIMEDOUT, f"nothing was read for {PATIENCE_S:g} s")
    finally:
        given_up.set()
        if thread.is_alive():
            with _lock:
                _left_behind.add(thread)
    if failed:
        raise failed[0]
    return parts[0] if len(parts) == 1 else b"".join(parts)


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
