"""Fixtures of the tests of the commands: private directories, directories that anybody may enter, real mounts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import Mounts

from mountd import mounts


@pytest.fixture(autouse=True)
def _private_dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFS_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TINY_FS", raising=False)
    monkeypatch.setattr("mlfs.cli.progress.PROGRESS_AFTER_S", 3600.0)  # a busy machine takes longer than two seconds


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A temporary directory that other users may enter (pytest's own is closed to them)."""
    path = Path(tempfile.mkdtemp(prefix="mlfs-cli-"))
    path.chmod(0o755)
    yield path
    for entry in reversed(mounts.mount_table()):
        if entry.mountpoint.startswith(str(path)):
            mounts.detach(entry.mountpoint)
    for directory in [path, *path.iterdir()]:
        if directory.is_dir():
            directory.chmod(0o755)
    shutil.rmtree(path)


@pytest.fixture
def tiny(open_dir: Path) -> Iterator[Mounts]:
    """Real mounts (below `open_dir`, which detaches them afterwards)."""
    started = Mounts()
    yield started
    started.end()
