"""The log of a mount: a file of this user's own that is added to, and that is rotated by its size or by logrotate.

In: the path of the log, its format, how large it gets and how many older ones are kept. Out: a
descriptor for `mountd.launch` (what the daemon writes before it has set its log up, and when it dies), the handler for
mountd.daemon. A file that is no log of mlfs is not touched.
"""

from __future__ import annotations

import io
import json
import logging
import logging.handlers
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from mlfs.errors import ConfigError
from mlfs.ours import NotOursError, check_replaceable, make_parent, open_to_append
from mlfs.printable import printable

_KIND = "a log of mlfs"
_TEXT_BEGINNING = b"# Log of an mlfs mount.\n"
_JSON_BEGINNING = b'{"logger": "mlfs.log", "message": "Log of an mlfs mount.", '
_A_LINE = re.compile(
    rb'^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ mlfs\b|\{"time": "[^"]+", "level": "[A-Z]+", "logger": "mlfs\b)',
    re.MULTILINE,
)


def _is_log(beginning: bytes) -> bool:
    # A full disk may have cut the first line short.
    firsts = (_TEXT_BEGINNING, _JSON_BEGINNING)
    begun = any(beginning.startswith(first) or first.startswith(beginning) for first in firsts)
    return begun or _A_LINE.search(beginning) is not None


def open_log(path: str, log_format: str, older: int) -> int:
    """Open the log to be added to; made with mode 0600 when missing, and its directory with 0700.

    Args:
        older: how many older logs are kept beside it: `path.1` and so on, which must be replaceable.

    Raises ConfigError for a file that is not surely a log of this user's.
    """
    try:
        make_parent(path)
        for number in range(1, older + 1):
            check_replaceable(f"{path}.{number}", _KIND, _is_log)
        fd = open_to_append(path, _KIND, _is_log)
        if os.fstat(fd).st_size == 0:
            with suppress(OSError):  # a full disk costs the log, not the mount
                os.write(fd, _first_line(log_format))
        return fd
    except NotOursError as error:
        raise ConfigError(f"log file {error.filename}: {error.strerror}", error.way_out) from None
    except OSError as error:
        raise ConfigError(f"log file {path}: {error.strerror}", "give another --log-file") from None


def _first_line(log_format: str) -> bytes:
    if log_format != JSON:
        return _TEXT_BEGINNING
    record = logging.makeLogRecord({"name": "mlfs.log", "levelname": "INFO", "msg": "Log of an mlfs mount."})
    fields = json.loads(formatter(JSON).format(record))
    # The names in another order than in all other lines: what the file begins with is then the same every time.
    return json.dumps({name: fields[name] for name in ("logger", "message", "level", "time")}).encode() + b"\n"


class _LogFile(logging.handlers.RotatingFileHandler):
    """The file, rotated by its size. SIGUSR1 and `reopen` have it opened anew, under whatever is at its path then.

    The interpreter's own words on standard output and error, as it writes them when it dies, go where the log goes.
    """

    def __init__(self, path: str, log_format: str, size_bytes: int, older: int) -> None:
        self._log_format = log_format
        self._older = older
        self._reopen = False
        super().__init__(path, maxBytes=size_bytes, backupCount=older)
        self.setFormatter(formatter(log_format))

    def _open(self) -> io.TextIOWrapper:
        fd = open_log(self.baseFilename, self._log_format, self._older)
        return open(fd, "a", encoding="utf-8", errors="backslashreplace")

    def note_signal(self, _number: int, _frame: object) -> None:
        """A signal asks for it to be opened anew, which the next line is written to: a handler may not do it itself."""
        self._reopen = True

    def emit(self, record: logging.LogRecord) -> None:
        if self._reopen:
            self.reopen()
        super().emit(record)

    def reopen(self) -> None:
        """Open it anew. The log goes on where it went before if that is not possible, and says so."""
        self.acquire()
        try:
            self._reopen = False
            with self._standard_streams_follow():
                before, self.stream = self.stream, self._open()
                if before is not None:
                    before.close()
            self._write("INFO", "the log was opened anew")
        except ConfigError as error:
            self._write("ERROR", f"the log goes on where it went: {error}")
        finally:
            self.release()

    def doRollover(self) -> None:
        with self._standard_streams_follow():
            super().doRollover()

    def _write(self, level: str, text: str) -> None:
        super().emit(logging.makeLogRecord({"name": "mlfs.log", "levelname": level, "msg": text}))

    @contextmanager
    def _standard_streams_follow(self) -> Iterator[None]:
        led_here = [fd for fd in (1, 2) if self._leads_here(fd)]
        yield
        if self.stream is not None:
            for fd in led_here:
                os.dup2(self.stream.fileno(), fd)

    def _leads_here(self, fd: int) -> bool:
        with suppress(OSError):
            return self.stream is not None and os.path.sameopenfile(fd, self.stream.fileno())
        return False


def log_to(path: str | None, log_format: str, size_bytes: int, older: int) -> None:
    """Have this process log to the file, or to standard error. From now on SIGUSR1 opens the file anew.

    Raises: ConfigError.
    """
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler()
        handler.setFormatter(formatter(log_format))
        signal.signal(signal.SIGUSR1, lambda _number, _frame: None)  # nothing to open, and no reason to end
    else:
        handler = _LogFile(path, log_format, size_bytes, older)
        signal.signal(signal.SIGUSR1, handler.note_signal)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def reopen_log() -> None:
    """Open the log of this process anew, at once."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LogFile):
            handler.reopen()


# -- the lines of a log: text for people, or a JSON object a line for what collects the logs of a cluster
#
# In: a record of Python's logging. Out: its line, in which nothing steers a terminal, whatever names are in it.

TEXT, JSON = "text", "json"

_TEXT_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# The words before a placeholder that say what its value is, as in "job %s: epoch %d counted anew".
_NAMED = ("job", "rank", "node", "epoch")
_PLACEHOLDER = re.compile(r"(?:(\w+) )?%(?:%|[-+ #0,.\d]*[a-z])")


def formatter(log_format: str) -> logging.Formatter:
    """The formatter for TEXT or JSON."""
    return _JsonLine() if log_format == JSON else _TextLine(_TEXT_LINE)


class _TextLine(logging.Formatter):
    """A line for each record; the lines of a traceback are set off from those of others."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join("  | " + printable(line) for line in super().formatException(ei).split("\n"))


class _JsonLine(logging.Formatter):
    """An object for each record: time (RFC 3339, with the zone), level, logger and message; what the message names of a
    job, rank, node, epoch or path; and the traceback, if there is one, as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname, "logger": record.name}
        line |= {"message": printable(record.getMessage()), **dict(_named(record))}
        if record.exc_info:
            text = self.formatException(record.exc_info)
            line["exception"] = "\n".join(map(printable, text.split("\n")))
        return json.dumps(line)


def _named(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """The values of the placeholders that have a name. The first of two with one name counts."""
    values = record.args
    if not values or isinstance(values, Mapping):
        return
    words = [found[1] for found in _PLACEHOLDER.finditer(str(record.msg)) if not found[0].endswith("%%")]
    for word, value in reversed([*zip(words, values, strict=False)]):
        if isinstance(value, bytes):  # paths are bytes in the whole library, and nothing else that is logged is
            yield "path", printable(os.fsdecode(value))
        elif word in _NAMED:
            yield word, value if isinstance(value, int) else printable(str(value))
