"""Reads order and manifest files: the only I/O in `mlfs.orders` besides `mlfs.orders.layouts.outside`.

In: a path. Out: its lines with their numbers. Called by `mlfs.orders.explicit` and `mlfs.orders.layouts.manifest`, in a
worker thread: the file may lie on a slow file system. What the lines mean is not known here.
"""

from __future__ import annotations

from typing import NamedTuple

from mlfs.errors import JobError


class Line(NamedTuple):
    """A line that is not empty; numbers count from 1."""

    number: int
    text: bytes


def read_lines(path: str, field: str = "order_file") -> list[Line]:
    """Return the lines without their line ends (\\n or \\r\\n), the empty ones left out.

    Args:
        field: the job's field that names the file, for errors.

    Raises:
        JobError: the file is missing, cannot be read or holds no line.
    """
    return [Line(number, text) for number, text in enumerate(_texts(path, field), 1) if text]


def count_lines(path: str) -> int:
    """Return how many lines `read_lines` would give, at a fraction of the cost. Raises the same."""
    return sum(map(bool, _texts(path, "order_file")))


def _texts(path: str, field: str) -> list[bytes]:
    what = field.replace("_", " ")
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        hint = "it must be readable for the user that runs mlfs, before the job starts, if need be for every epoch"
        raise JobError(f"the {what} {path!r} cannot be read: {error.strerror}", hint, field) from None
    texts = data.replace(b"\r\n", b"\n").split(b"\n")
    if not any(texts):
        hint = "write one path or dataset index a line" if field == "order_file" else "write one sample a line"
        raise JobError(f"the {what} {path!r} is empty", hint, field)
    return texts
