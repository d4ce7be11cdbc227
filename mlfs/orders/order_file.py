"""Reads order, manifest and weights files; what they mean is not known here.

In: a path. Out: its lines with their numbers, or its numbers. Called by the samplers and `mlfs.orders.layouts.manifest`
in a worker thread: the file may lie on a slow file system. Beside the bytes of the file, which mlfs.orders.named_file
bounds, nothing takes memory that grows with it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.orders.named_file import read_named
from mlfs.orders.stopping import stop_if_asked

_LINES_AT_ONCE = 1 << 14


class Line(NamedTuple):
    """A line that is not empty; numbers count from 1."""

    number: int
    text: bytes


class Lines:
    """The lines of a file that are not empty, without their line ends (\\n or \\r\\n); each is made when asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._count = sum(1 for _ in self)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Line]:
        for number, line in enumerate(io.BytesIO(self._data), 1):
            if number % _LINES_AT_ONCE == 0:
                stop_if_asked()
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            if text:
                yield Line(number, text)

    @property
    def first(self) -> Line:
        """The first of them; there is one."""
        return next(iter(self))


def read_lines(path: str, field: str = "order_file") -> Lines:
    """Return the lines of a file.

    Args:
        field: the job's field that names the file, for errors.

    Raises:
        JobError: the file is missing, cannot be read or holds no line.
    """
    lines = Lines(_bytes(path, field))
    if not len(lines):
        hint = "write one path or dataset index a line" if field == "order_file" else "write one sample a line"
        raise JobError(f"the {field.replace('_', ' ')} {path!r} is empty", hint, field)
    return lines


def count_lines(path: str) -> int:
    """Return how many lines `read_lines` would give, at a fraction of the cost. Raises the same."""
    return len(read_lines(path))


def read_weights(path: str, field: str = "weights_file") -> npt.NDArray[np.float64]:
    """Return the numbers of a .npy file, or of a text file with one a line, shape (how many there are,).

    Args:
        field: the job's field that names the file, for errors.

    Raises:
        JobError: the file is missing, cannot be read, or holds anything else.
    """
    data = _bytes(path, field)
    try:
        if data.startswith(b"\x93NUMPY"):
            weights = _npy(data)
        else:
            words = (float(word) for line in Lines(data) for word in line.text.split())
            weights = np.fromiter(words, dtype=np.float64)
        if weights.ndim != 1 or not len(weights):
            raise ValueError(f"its shape is {weights.shape}")
        return np.asarray(weights, dtype=np.float64)
    except (ValueError, TypeError, EOFError) as error:
        reason = " ".join(str(error).split())
        hint = "one number a line, or numpy.save of an array of one dimension"
        raise JobError(f"the {field.replace('_', ' ')} {path!r} cannot be used: {reason}", hint, field) from None


def _npy(data: bytes) -> npt.NDArray[Any]:
    """The array of a .npy file. Its size is compared with the file's before memory is taken for it."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError("its header does not fit its size")
    return np.frombuffer(data, dtype=dtype, offset=file.tell()).reshape(shape)


def _bytes(path: str, field: str) -> bytes:
    try:
        return read_named(path)
    except OSError as error:
        hint = "it must be readable for the user that runs mlfs, before the job starts, if need be for every epoch"
        what = field.replace("_", " ")
        raise JobError(f"the {what} {path!r} cannot be read: {error.strerror}", hint, field) from None
