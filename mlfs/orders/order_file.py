"""Files that a job names: an order, numbers of samples, lines; and what orders take of them.

In: paths that a user wrote into a job. Out: lines with their numbers, or numbers; the order of the sampler "explicit";
a number for each sample, by which orders weigh or group. Called by the samplers, `mlfs.orders.layouts` and
`mlfs.explain.word_search`, in a worker thread: the file may lie on a slow file system, or be none that ends (a FIFO, a
device). Beside the bytes of the file, which are bounded, nothing takes memory that grows with it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError
from mlfs.orders.draws import Column
from mlfs.orders.order import EPOCHS_KEPT, Indices, Resolve
from mlfs.orders.stopping import stop_if_asked
from mlfs.user_input import read_patiently

if TYPE_CHECKING:
    from mlfs.job import JobSpec

_LINES_AT_ONCE = 1 << 14
# The order of 100 million samples as indices, or of 20 million as paths. The lines that are read take that much memory.
MOST_BYTES = 1 << 30


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


def read_lines(path: str, field: str = "order_file") -> Lines:
    """Return the lines of a file. Args: field: the job's field that names it, for errors.

    Raises:
        JobError: the file is missing, cannot be read or holds no line.
    """
    lines = Lines(_bytes(path, field))
    if not len(lines):
        hint = "write one path or dataset index a line" if field == "order_file" else "write one sample a line"
        raise JobError(f"the {field.replace('_', ' ')} {path!r} is empty", hint, field)
    return lines


def read_weights(path: str, field: str = "weights_file") -> npt.NDArray[np.float64]:
    """Return the numbers of a .npy file, or of a text file with one a line. Args: field: as of `read_lines`.

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


def read_named(path: str) -> bytes:
    """The whole file. Raises: OSError as `mlfs.user_input.read_patiently`; StoppedError."""
    return read_patiently(path, MOST_BYTES, stop_if_asked)


def _bytes(path: str, field: str) -> bytes:
    try:
        return read_named(path)
    except OSError as error:
        hint = "it must be readable for the user that runs mlfs, before the job starts, if need be for every epoch"
        what = field.replace("_", " ")
        raise JobError(f"the {what} {path!r} cannot be read: {error.strerror}", hint, field) from None


# -- the sampler "explicit", for scripts whose order mlfs cannot compute but the user can write down


_MAX_DIGITS = 18  # fits an int64


IN_MEMORY = "/in/memory"
"""The order file of a job whose order nobody has written down: see `KnownOrder`."""


class KnownOrder:
    """One rank's order, the same in each epoch, as somebody has it in memory."""

    def __init__(self, indices: Indices) -> None:
        self._indices = indices

    def stream_length(self, epoch: int) -> int:
        """Samples of the rank."""
        return len(self._indices)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order."""
        return self._indices


class ExplicitOrder:
    """The lines of the files, as dataset indices. A file is read when its epoch is first asked for.

    "{epoch}" in the path is replaced by the epoch, "{rank}" by the rank. With "{rank}" a file is one rank's stream,
    without it is the whole world's, and rank r takes lines r, r + world_size, ... with nothing padded or cut. The first
    line decides whether a file holds indices (decimal digits) or paths; a path of digits alone can be written as
    "./123".
    """

    def __init__(self, spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> None:
        self._template = spec.order_file or ""
        self._per_rank = "{rank}" in self._template
        self._world_size = spec.world_size
        self._n_samples = n_samples
        self._resolve = resolve
        files = spec.world_size if self._per_rank else 1
        self._file = lru_cache(maxsize=EPOCHS_KEPT * files)(self._load)
        # Adding up the lengths of all epochs should not look up every path of every epoch.
        self._count = lru_cache(maxsize=None)(lambda path: len(read_lines(path)))

    def stream_length(self, epoch: int) -> int:
        """Samples of the rank that reads most; counts the lines of the epoch's files."""
        if self._per_rank:
            return max(self._count(self._path(epoch, rank)) for rank in range(self._world_size))
        return -(-self._count(self._path(epoch, 0)) // self._world_size)

    def rank_stream(self, epoch: int, rank: int) -> Indices:
        """The rank's dataset indices in read order; JobError names the file and the line that cannot be used."""
        indices = self._file(self._path(epoch, rank))
        return indices if self._per_rank else indices[rank :: self._world_size]

    def _path(self, epoch: int, rank: int) -> str:
        return self._template.replace("{epoch}", str(epoch)).replace("{rank}", str(rank))

    def _load(self, path: str) -> Indices:
        lines = read_lines(path)
        read = self._read_index if next(iter(lines)).text.isdigit() else self._read_path
        indices = np.fromiter((read(path, line) for line in lines), dtype=np.int64, count=len(lines))
        indices.flags.writeable = False  # every caller gets a view of it
        return indices

    def _read_index(self, path: str, line: Line) -> int:
        if line.text.isdigit() and len(line.text) <= _MAX_DIGITS and int(line.text) < self._n_samples:
            return int(line.text)
        allowed = f"must be an index from 0 to {self._n_samples - 1}, like the first line"
        raise bad_line(path, line, allowed, "")

    def _read_path(self, path: str, line: Line) -> int:
        index = -1 if self._resolve is None else self._resolve(line.text)
        if index < 0:
            hint = 'is the path relative to the job\'s root? "layout": "sorted" takes every file as a sample'
            raise bad_line(path, line, "is not the path of a sample", hint)
        return index


def bad_line(path: str, line: Line, what: str, hint: str, field: str = "order_file") -> JobError:
    """The error of a line that cannot be used. Args: what: is wrong. field: as of `read_lines`."""
    text = line.text[:80].decode("utf-8", "surrogateescape")
    return JobError(f"{field.replace('_', ' ')} {path!r}, line {line.number}: {text!r} {what}", hint, field)


# -- a number for each sample


@runtime_checkable
class KnowsTheTree(Protocol):
    """A `Resolve` that can say something of each sample, as that of `mlfs.orders.streams` can."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes by dataset index."""

    def directories(self) -> npt.NDArray[np.int64]:
        """A number for the directory of each sample, by dataset index."""


def weights_of(path: str) -> Column:
    """The weights that a file has.

    Raises:
        JobError: the file cannot be read, or these are no weights.
    """
    weights = read_weights(path)
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        message = f"the weights file {path!r}: weight {bad[0]} (from 0) is {weights[bad[0]]}"
        raise JobError(message, "weights are numbers, 0 or more", "weights_file")
    total = weights.sum()
    if not 0 < total < np.inf:
        raise JobError(f"the weights file {path!r}: the weights add up to {total}", "", "weights_file")
    return weights


def weights_for(spec: JobSpec, n_samples: int) -> Column:
    """The job's weights, one a sample. Raises: JobError."""
    return _one_a_sample(weights_of(str(spec.weights_file)), n_samples, str(spec.weights_file), "weights_file")


def column_of(spec: JobSpec, n_samples: int, resolve: Resolve | None) -> Column | None:
    """The column by which the job groups; None where it names none. Raises: JobError."""
    if spec.column_file is not None:
        read = read_weights(spec.column_file, "column_file")
        return _one_a_sample(read, n_samples, spec.column_file, "column_file")
    if spec.column is None:
        return None
    if not isinstance(resolve, KnowsTheTree):
        raise JobError(f'job field "column" is "{spec.column}", and no tree is known', "give column_file", "column")
    return (resolve.sizes() if spec.column == "size" else resolve.directories()).astype(np.float64)


def _one_a_sample(column: Column, n_samples: int, path: str, field: str) -> Column:
    if len(column) == n_samples:
        return column
    what = "weights" if field == "weights_file" else "numbers"
    message = f"the {field.replace('_', ' ')} {path!r} has {len(column)} {what} for {n_samples} samples"
    raise JobError(message, f"write one {what[:-1]} for each sample, in the data set's order", field)
