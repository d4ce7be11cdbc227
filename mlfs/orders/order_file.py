"""Reads order files: the only I/O in `mlfs.orders` besides `mlfs.orders.layouts.outside`.

In: a path. Out: its lines with their numbers. Called by `mlfs.orders.explicit`, in a worker thread: the file may lie on
a slow file system. What the lines mean is not known here.
"""

from __future__ import annotations

from typing import NamedTuple

from mlfs.errors import JobError


class Line(NamedTuple):
    """A line that is not empty; numbers count from 1."""

    number: int
    text: bytes


def read_lines(path: str) -> list[Line]:
    """Return the lines without their line ends (\\n or \\r\\n), the empty ones left out.

    Raises:
        JobError: the file is missing, cannot be read or holds no line.
    """
    return [Line(number, text) for number, text in enumerate(_texts(path), 1) if text]


def count_lines(path: str) -> int:
    """Return how many lines `read_lines` would give, at a fraction of the cost. Raises the same."""
    return sum(map(bool, _texts(path)))


def _texts(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        hint = "it must be readable for the user that runs mlfs, for every epoch, before the job starts"
        raise JobError(f"the order file {path!r} cannot be read: {error.strerror}", hint, "order_file") from None
    texts = data.replace(b"\r\n", b"\n").split(b"\n")
    if not any(texts):
        raise JobError(f"the order file {path!r} is empty", "write one path or dataset index a line", "order_file")
    return texts
