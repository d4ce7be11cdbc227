"""The text of an error about a wrong job: one line that names the field, the value and what is allowed.

In: field names and values as users wrote them. Out: `JobError`. Called by everything in `mlfs.job`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import NoReturn

from mlfs.errors import JobError

_MAX_SHOWN = 80


def show(value: object) -> str:
    """The value as the user wrote it in JSON, on one line, shortened, printable on any terminal."""
    text = '"' + repr(value)[1:-1] + '"' if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint with the nearest known word, or an empty one; all words of a library whose name alone was written."""
    text, words = str(word).lower(), list(known)
    # Whole words alone would name the shortest: torchvision-clips for torchvision.
    library = get_close_matches(text, {name.partition("-")[0] for name in words} - set(words), n=1, cutoff=0.8)
    of_library = [name for name in words if library and name.startswith(library[0] + "-")]
    near = of_library or get_close_matches(text, words, n=1, cutoff=0.5)
    return f"did you mean {one_of(near)}?" if near else ""


def one_of(choices: Iterable[str]) -> str:
    """The choices in a sentence: "a", "b" or "c"."""
    *most, last = [show(choice) for choice in choices]
    return f"{', '.join(most)} or {last}" if most else last


def refuse(field: str, value: object, allowed: str, hint: str = "") -> NoReturn:
    """Raise the error of a field whose value cannot be used."""
    raise JobError(f"job field {show(field)} is {show(value)}, must be {allowed}", hint, field)


def is_path(text: str) -> bool:
    """Whether it can be a path: no NUL, and nothing but what os.fsdecode would give (PEP 383)."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
