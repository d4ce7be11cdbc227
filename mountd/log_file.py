"""The log of a mount: a file of this user's own that is added to, and lines that a terminal can show.

In: the path of the log. Out: a descriptor for `mountd.launch` (what the daemon writes before it has set its log up, and
when it dies), the handler and the format for mountd.daemon. A file that is no log of mlfs is not touched.
"""

from __future__ import annotations

import io
import logging
import logging.handlers
import os
import re
from contextlib import suppress
from typing import Any

from mlfs.errors import ConfigError
from mlfs.ours import NotOursError, check_replaceable, make_parent, open_to_append
from mlfs.printable import printable

_KIND = "a log of mlfs"
_FIRST_LINE = b"# Log of an mlfs mount.\n"
_A_LINE = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ mlfs\b", re.MULTILINE)
_MOST_BYTES = 16 << 20
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def _is_log(beginning: bytes) -> bool:
    # A full disk may have cut the first line short.
    begun = beginning.startswith(_FIRST_LINE) or _FIRST_LINE.startswith(beginning)
    return begun or _A_LINE.search(beginning) is not None


def open_log(path: str) -> int:
    """Open the log to be added to; made with mode 0600 when missing, and its directory with 0700.

    Raises ConfigError for a file that is not surely a log of this user's.
    """
    try:
        make_parent(path)
        check_replaceable(path + ".1", _KIND, _is_log)  # the log becomes this one when it is long
        fd = open_to_append(path, _KIND, _is_log)
        if os.fstat(fd).st_size == 0:
            with suppress(OSError):  # a full disk costs the log, not the mount
                os.write(fd, _FIRST_LINE)
        return fd
    except NotOursError as error:
        raise ConfigError(f"log file {error.filename}: {error.strerror}", error.way_out) from None
    except OSError as error:
        raise ConfigError(f"log file {path}: {error.strerror}", "give another --log-file") from None


class _LogFile(logging.handlers.RotatingFileHandler):
    def _open(self) -> io.TextIOWrapper:
        return open(open_log(self.baseFilename), "a", encoding="utf-8", errors="backslashreplace")


class _Printable(logging.Formatter):
    """A line for each record, whatever names are in it; the lines of a traceback are set off from those of others."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join("  | " + printable(line) for line in super().formatException(ei).split("\n"))


def log_to(path: str | None) -> None:
    """Have this process log to the file, or to stderr. Raises: ConfigError."""
    handler = logging.StreamHandler() if path is None else _LogFile(path, maxBytes=_MOST_BYTES, backupCount=1)
    handler.setFormatter(_Printable(_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
