"""Reads order, manifest and weights files: the only I/O in `mlfs.orders` besides `mlfs.orders.layouts.outside`.

In: a path. Out: its lines with their numbers, or its numbers. Called by the samplers and `mlfs.orders.layouts.manifest`
in a worker thread: the file may lie on a slow file system. What the lines mean is not known here.
"""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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


def read_weights(path: str) -> npt.NDArray[np.float64]:
    """Return the numbers of a .npy file, or of a text file with one a line, shape (how many there are,).

    Raises:
        JobError: the file is missing, cannot be read, or holds anything else.
    """
    data = _bytes(path, "weights_file")
    try:
        if data.startswith(b"\x93NUMPY"):
            weights = np.load(io.BytesIO(data), allow_pickle=False)
        else:
            weights = np.array([float(word) for word in data.split()], dtype=np.float64)
        if weights.ndim != 1 or not len(weights):
            raise ValueError(f"its shape is {weights.shape}")
        return np.asarray(weights, dtype=np.float64)
    except (ValueError, TypeError, EOFError) as error:
        reason = " ".join(str(error).split())
        hint = "one number a line, or numpy.save of an array of one dimension"
        raise JobError(f"the weights file {path!r} cannot be used: {reason}", hint, "weights_file") from None


def _bytes(path: str, field: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        hint = "it must be readable for the user that runs mlfs, before the job starts, if need be for every epoch"
        what = field.replace("_", " ")
        raise JobError(f"the {what} {path!r} cannot be read: {error.strerror}", hint, field) from None


def _texts(path: str, field: str) -> list[bytes]:
    data = _bytes(path, field)
    texts = data.replace(b"\r\n", b"\n").split(b"\n")
    if not any(texts):
        hint = "write one path or dataset index a line" if field == "order_file" else "write one sample a line"
        raise JobError(f"the {field.replace('_', ' ')} {path!r} is empty", hint, field)
    return texts
