"""The layout "braces": the files that a pattern such as "train-{0000..0146}.tar" names, as lists of shards are written.

In: a pattern. Out: the texts that it stands for, in their order. Called by `mlfs.orders.layouts`. As bash expands it,
and webdataset: several patterns have "::" between them, a backslash takes its meaning from what follows. Source:
braceexpand 0.1.7; webdataset/shardlists.py, expand_urls (webdataset 1.0). Variables of webdataset's are not known here.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import Final

_NUMBERS: Final = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTERS: Final = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?")
_ALPHABET: Final = string.ascii_uppercase + string.ascii_lowercase
_ESCAPED: Final = re.compile(r"\\(.)")
# Groups in a row, or within each other: each is a call.
_MOST_GROUPS: Final = 100


def expanded(pattern: str) -> Iterator[str]:
    """The texts that a pattern stands for. Raises: ValueError, braces that are not closed, or too many."""
    if pattern.count("{") > _MOST_GROUPS:
        raise ValueError("too many braces")
    for part in pattern.split("::"):
        yield from _expanded(part)


def _expanded(text: str) -> Iterator[str]:
    begin, end = _group(text)
    if begin < 0:
        yield _ESCAPED.sub(r"\1", text)
        return
    before = _ESCAPED.sub(r"\1", text[:begin])
    for inside in _of_group(text[begin + 1 : end]):
        for rest in _expanded(text[end + 1 :]):
            yield before + inside + rest


def _group(text: str) -> tuple[int, int]:
    """The places where the first group of a text begins and ends; -1 for none."""
    begin, depth = -1, 0
    for at, sign in _signs(text):
        if sign == "{":
            begin, depth = (at if not depth else begin), depth + 1
        elif sign == "}":
            depth -= 1
            if depth < 0:
                break
            if not depth:
                return begin, at
    if depth:
        raise ValueError("braces that are not closed")
    return -1, -1


def _signs(text: str) -> Iterator[tuple[int, str]]:
    """The characters of a text that may mean something, and where they stand."""
    is_escaped = False
    for at, sign in enumerate(text):
        if not is_escaped and sign != "\\":
            yield at, sign
        is_escaped = sign == "\\" and not is_escaped


def _of_group(inside: str) -> Iterator[str]:
    if (numbers := _NUMBERS.fullmatch(inside)) is not None:
        first, last, step = numbers[1], numbers[2], int(numbers[3] or 1) or 1
        is_padded = any(end.lstrip("-").startswith("0") and len(end.lstrip("-")) > 1 for end in (first, last))
        width, up = max(len(first), len(last)) if is_padded else 0, int(first) < int(last)
        for number in range(int(first), int(last) + (1 if up else -1), step if up else -step):
            yield f"{number:0{width}d}" if width else str(number)
    elif (letters := _LETTERS.fullmatch(inside)) is not None:
        begin, end, step = _ALPHABET.index(letters[1]), _ALPHABET.index(letters[2]), int(letters[3] or 1) or 1
        yield from (
            _ALPHABET[at] for at in range(begin, end + (1 if begin < end else -1), step if begin < end else -step)
        )
    else:
        commas = _commas(inside)
        if not commas:
            yield from ("{" + each + "}" for each in _expanded(inside))
        for begin, end in zip((-1, *commas), (*commas, len(inside)), strict=True) if commas else ():
            yield from _expanded(inside[begin + 1 : end])


def _commas(inside: str) -> list[int]:
    """The places of the commas that are in no group."""
    found, depth = list[int](), 0
    for at, sign in _signs(inside):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and not depth:
            found.append(at)
    return found
