"""The lines of a log: text for people, or a JSON object a line for what collects the logs of a cluster.

In: a record of Python's logging. Out: its line, in which nothing steers a terminal, whatever names are in it. Used by
mountd.log_file.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from mlfs.printable import printable

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
    """What stands for the placeholders that have a name. Of two with one name the first counts."""
    values = record.args
    if not values or isinstance(values, Mapping):
        return
    words = [found[1] for found in _PLACEHOLDER.finditer(str(record.msg)) if not found[0].endswith("%%")]
    for word, value in reversed([*zip(words, values, strict=False)]):
        if isinstance(value, bytes):  # paths are bytes in the whole library, and nothing else that is logged is
            yield "path", printable(os.fsdecode(value))
        elif word in _NAMED:
            yield word, value if isinstance(value, int) else printable(str(value))
