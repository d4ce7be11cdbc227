"""Reads a file that a registration names, and is held up by none: a FIFO, a device, a server that does not answer.

In: a path that a user wrote into a job. Out: the file's bytes, or an OSError that says why not. Called by
`mlfs.orders.order_file`. Each file is read in a thread of its own, which is left behind when nothing comes for a while:
a read of a network file system cannot be taken back. There are never more than a few of those.
"""

from __future__ import annotations

import errno
import os
import queue
import stat
import threading

from mlfs.orders.stopping import stop_if_asked

# The order of 100 million samples as indices, or of 20 million as paths. What is read takes that much memory.
MOST_BYTES = 1 << 30
# Longer than a server of a network file system takes to fail over to another one, mostly.
PATIENCE_S = 20.0
_MOST_LEFT_BEHIND = 16
_PORTION_BYTES = 4 << 20
_POLL_S = 0.1

_Answer = bytes | OSError | None

_left_behind: set[threading.Thread] = set()
_lock = threading.Lock()


def read_named(path: str) -> bytes:
    """The whole file.

    Raises: OSError, also for what is not a regular file, is larger than MOST_BYTES, or does not answer for PATIENCE_S;
        StoppedError.
    """
    stop_if_asked()
    with _lock:
        _left_behind.difference_update([thread for thread in _left_behind if not thread.is_alive()])
        if len(_left_behind) >= _MOST_LEFT_BEHIND:
            raise OSError(errno.EBUSY, "too many files that do not answer are being read")
    answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    given_up = threading.Event()
    thread = threading.Thread(target=_read, args=(path, answers, given_up), name="mlfs-named-file", daemon=True)
    thread.start()
    parts: list[bytes] = []
    waited_s = 0.0
    try:
        while True:
            try:
                answer = answers.get(timeout=_POLL_S)
            except queue.Empty:
                stop_if_asked()
                waited_s += _POLL_S
                if waited_s >= PATIENCE_S:
                    raise OSError(errno.ETIMEDOUT, f"nothing was read for {PATIENCE_S:g} s") from None
                continue
            waited_s = 0.0
            if answer is None:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            if isinstance(answer, OSError):
                raise answer
            parts.append(answer)
            if sum(map(len, parts)) > MOST_BYTES:
                raise _too_large()
    finally:
        given_up.set()
        if thread.is_alive():
            with _lock:
                _left_behind.add(thread)


def _read(path: str, answers: queue.SimpleQueue[_Answer], given_up: threading.Event) -> None:
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            if found.st_size > MOST_BYTES:
                raise _too_large()
            while not given_up.is_set() and (part := os.read(fd, _PORTION_BYTES)):
                answers.put(part)
        finally:
            os.close(fd)
        answers.put(None)
    except OSError as error:
        answers.put(error)


def _too_large() -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {MOST_BYTES >> 20} MiB")
