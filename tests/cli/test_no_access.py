"""Directories that may not be entered, and what is no file in the place of a log: each is met, or told in one line."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.others import NOBODY, somebody_else

from mlfs.cli import main as cli
from mlfs.errors import CacheError, ExitCode
from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.secret import Secret
from mlfs.places.ssd import SsdTier
from mountd import runtime


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place where another user may be, with a closed directory in it and an open one for his records."""
    path = Path(tempfile.mkdtemp(prefix="mlfs-closed-"))
    path.chmod(0o755)
    (path / "closed").mkdir(mode=0o700)
    (path / "run").mkdir(mode=0o700)
    os.chown(path / "run", NOBODY, NOBODY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path / "closed"))
    monkeypatch.setenv("MLFS_RUNTIME_DIR", str(path / "run"))
    yield path
    shutil.rmtree(path)


def test_without_access_to_his_cache_directory_a_user_has_his_log_beside_his_records(shared: Path) -> None:
    def look() -> None:
        assert runtime.default_log_file("/data").startswith(f"{shared}/run/log/")

    somebody_else(look)
    assert (shared / "run/log").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("tier", [SsdTier, LmdbTier])
def test_a_directory_for_copies_that_may_not_be_entered_is_refused(
    shared: Path, tier: type[SsdTier | LmdbTier]
) -> None:
    def refused() -> None:
        with pytest.raises(CacheError, match="cannot use the cache directory") as caught:
            tier(shared / "closed", 2 << 20, "/source", secret=Secret(bytes(32)))
        assert caught.value.hint == "name a directory that this user can write to"
        assert caught.value.exit_code is ExitCode.CACHE

    somebody_else(refused)


def test_a_fifo_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_bytes(b"x")
    os.mkfifo(tmp_path / "log", 0o600)
    assert cli.main(["mount", str(tmp_path / "source"), "--log-file", str(tmp_path / "log")]) == ExitCode.USAGE
    assert capsys.readouterr().err.count("it is not a regular file (name another one)\n") == 1
