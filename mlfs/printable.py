"""Makes names and paths fit to be shown: they can hold anything, and a terminal obeys some of it.

In: text with names that somebody else has chosen. Out: the same with escape sequences, newlines, directions of writing
and bytes that are no text as backslash escapes. Used by mountd.log_file for every line of a log, and by mlfs.cli for
everything that commands print.
"""

from __future__ import annotations

from typing import Any, TextIO


def printable(text: str) -> str:
    """The text on one line, with every character that does not print itself shown as an escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def printable_lines(text: str) -> str:
    """The same, line by line."""
    return text if text.isascii() and text.isprintable() else "\n".join(map(printable, text.split("\n")))


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte that is no text, in Python's surrogateescape form
        return f"\\x{ord(char) - 0xDC00:02x}"
    return repr(char)[1:-1] if char != " " else char


class PrintableStream:
    """A text stream that escapes what is written, but for the ends of lines.

    Args:
        stream: where it goes. Rich writes there itself, for it steers the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(printable_lines(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)
