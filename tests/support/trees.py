"""Trees of files for tests: `make_tree` builds one from a plain description.

In: a directory, and a mapping from relative paths to contents. Out: the directory, filled. Called by tests.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple


class Link(NamedTuple):
    """A symbolic link in the description of a tree."""

    target: str


Spec = Mapping[str, bytes | str | int | Link | None]


def content(path: str, size: int) -> bytes:
    """Bytes that follow from the path, so that a file served in another's place is noticed."""
    return random.Random(path).randbytes(size)


def make_tree(root: Path, spec: Spec) -> Path:
    """Fill `root`, made when missing.

    A value is the file's content, or its size (the content then follows from the path), a Link, or None for an empty
    directory. Odd names: pass them as os.fsdecode gives them.
    """
    root.mkdir(parents=True, exist_ok=True)
    there = {root}
    for name, what in spec.items():
        path = root / name
        if path.parent not in there:
            path.parent.mkdir(parents=True, exist_ok=True)
            there.add(path.parent)
        if what is None:
            path.mkdir(exist_ok=True)
        elif isinstance(what, Link):
            os.symlink(what.target, path)
        elif isinstance(what, int):
            path.write_bytes(content(name, what))
        else:
            path.write_bytes(what.encode() if isinstance(what, str) else what)
    return root


def image_folder(classes: int = 3, files: int = 4, size: int = 2000) -> dict[str, int]:
    """The description of a small tree in ImageFolder's layout. Its files are no images: for readers that only read."""
    return {f"class{c:02d}/img_{n:05d}.jpg": size + 7 * (c * files + n) for c in range(classes) for n in range(files)}


def make_classes(root: Path, files: int, classes: int, content_of: Callable[[int], bytes]) -> Path:
    """Fill `root` in ImageFolder's layout: file number i, with content_of(i), is in class i % classes."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(min(files, classes)):
        (root / f"class{number}").mkdir(exist_ok=True)
    for index in range(files):  # hundreds in most tests, so by plain calls
        with open(f"{root}/class{index % classes}/{index:05d}.jpg", "wb", buffering=0) as file:
            file.write(content_of(index))
    return root
