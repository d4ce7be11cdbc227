"""What the tests of the sources share: a source directory, and changes to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from mlfs.places.posix import PosixSource
from mlfs.tree.manifest import Manifest
from mlfs.tree.scan import scan


class Tree:
    """A source directory with its manifest and its source, made after the files are there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._manifest: Manifest | None = None
        self._source: PosixSource | None = None

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            self._manifest = scan(self.fd, workers=1)
        return self._manifest

    @property
    def source(self) -> PosixSource:
        if self._source is None:
            self._source = PosixSource(self.fd, self.manifest)
        return self._source

    def add(self, name: str, data: bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def id(self, name: str) -> int:
        entry = self.manifest.find(os.fsencode(name))
        assert entry > 0
        return entry

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        os.close(self.fd)


def error_of(call: Callable[..., object], *arguments: object) -> int | None:
    """The errno that the call fails with, None when it does not fail."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno
    return None


def overwrite(path: Path, data: bytes, mtime_ns: int) -> None:
    """In place, with a time stamp that surely differs."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()
    os.utime(path, ns=(mtime_ns, mtime_ns))
