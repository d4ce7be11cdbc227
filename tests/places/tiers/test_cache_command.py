"""`mlfs cache` against directories that tiers filled."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tier_contract import MIB, put

from mlfs.cli import cache, progress
from mlfs.errors import CacheError, ConfigError
from mlfs.places import cache_admin
from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.ssd import SsdTier
from mlfs.places.tier import Version

V = Version(5_000, 1)


def run(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    cache.add_flags(parser.add_subparsers().add_parser("cache"))
    args = parser.parse_args(["cache", *map(str, words)])
    return int(args.run(args))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two sources: one with files and LMDB, one with files only."""
    for tier in (
        SsdTier(tmp_path, MIB, "/data/one"),
        LmdbTier(tmp_path, MIB, "/data/one"),
        SsdTier(tmp_path, MIB, "/two"),
    ):
        for number in range(5):
            assert put(tier, b"%d" % number, V)
        tier.close()
    return tmp_path


def listed(directory: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, int]]:
    capsys.readouterr()
    assert run("list", directory, "--json") == 0
    return [(entry["source"], entry["kind"], entry["samples"]) for entry in json.loads(capsys.readouterr().out)]


def test_list(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(directory, capsys) == [("/data/one", "ssd", 5), ("/data/one", "lmdb", 5), ("/two", "ssd", 5)]
    assert run("list", directory) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SOURCE", "KIND", "SAMPLES", "SIZE", "NEWEST"]
    assert lines[1].split()[:5] == ["/data/one", "ssd", "5", "40", "KiB"]


def test_list_while_mounted(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiers = [SsdTier(directory, MIB, "/data/one"), LmdbTier(directory, MIB, "/data/one")]
    assert len(listed(directory, capsys)) == 3
    for tier in tiers:
        tier.close()


def test_not_a_cache(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no mlfs cache"):
        run("list", tmp_path)
    with pytest.raises(CacheError, match="no mlfs cache"):
        run("verify", tmp_path / "missing")


def test_verify_right_ones(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", directory) == 0
    assert "/data/one (lmdb): 5 right, 0 damaged\n" in capsys.readouterr().out
    assert len(listed(directory, capsys)) == 3


def damage_ssd(directory: Path) -> Path:
    path = sorted(directory.rglob("*.s"))[0]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    return path


def damage_lmdb_value(directory: Path) -> Path:
    """Flip the last byte of a value: it lies in overflow pages, so the structure stays sound."""
    (path,) = directory.rglob("data.mdb")
    blob = bytearray(path.read_bytes())
    at = blob.index(b"mlfs-s") + 4000
    blob[at] ^= 1
    path.write_bytes(blob)
    return path


@pytest.mark.parametrize("damage", [damage_ssd, damage_lmdb_value])
def test_verify_removes_damaged_ones(
    directory: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], Path]
) -> None:
    damage(directory)
    assert run("verify", directory, "--keep", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert sorted((entry["right"], entry["damaged"]) for entry in report["stores"]) == [(4, 1), (5, 0), (5, 0)]
    assert "wrong checksum" in report["faults"][0]
    assert run("verify", directory) == 1
    assert "4 right, 1 damaged, removed" in capsys.readouterr().out
    assert run("verify", directory) == 0
    assert sorted(samples for _, _, samples in listed(directory, capsys)) == [4, 5, 5]


@pytest.mark.parametrize("damage", [damage_ssd, damage_lmdb_value])
def test_where_nothing_can_be_written_verify_leaves_damaged_ones(
    directory: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    path = damage(directory)
    monkeypatch.setattr(cache_admin, "is_read_only", lambda source: True)
    monkeypatch.setattr("mlfs.places.cache_directory.lock", refused)
    for _ in range(2):
        assert run("verify", directory) == 1
        assert "4 right, 1 damaged, left in place" in capsys.readouterr().out
    assert path.exists()
    with pytest.raises(CacheError, match="Read-only file system"):
        run("clear", directory, "--yes")


def test_verify_clears_a_broken_environment(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = directory.rglob("data.mdb")
    os.truncate(path, 8192)
    assert run("verify", directory, "--keep") == 1
    assert path.exists()
    assert run("verify", directory) == 1
    assert not path.exists()
    assert run("verify", directory) == 0
    assert len(listed(directory, capsys)) == 2


@pytest.mark.parametrize("tier_class", [SsdTier, LmdbTier])
@pytest.mark.parametrize("action", [["verify"], ["clear", "--yes"]])
def test_refused_while_mounted(directory: Path, tier_class: type[SsdTier | LmdbTier], action: list[str]) -> None:
    tier = tier_class(directory, MIB, "/data/one")
    with pytest.raises(CacheError, match=f"in use by process {os.getpid()}"):
        run(*action, directory, "--source", "/data/one")
    assert len(tier.keys()) == 5
    tier.close()


def test_clear_one_source(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CacheError, match="no copies of /three"):
        run("clear", directory, "--yes", "--source", "/three")
    assert run("clear", directory, "--yes", "--source", "/data/one") == 0
    assert listed(directory, capsys) == [("/two", "ssd", 5)]
    assert run("clear", directory, "--yes") == 0
    assert list(directory.iterdir()) == []


def test_clear_leaves_what_is_not_ours(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Foreign files, and everything behind symbolic links, whatever their names."""
    outside = tmp_path_factory.mktemp("outside")
    name = "0" * 32
    (outside / "00").mkdir()
    (outside / "00" / f"{name}.s").write_text("precious")
    (outside / "data.mdb").write_text("precious")
    root = directory / f"mlfs-v2-{os.geteuid()}"
    (root / name).symlink_to(outside)
    two = next(path for path in root.iterdir() if not path.is_symlink() and not (path / "lmdb").exists())
    (two / "lmdb").symlink_to(outside)
    fan = next(path for path in two.iterdir() if path.is_dir() and not path.is_symlink())
    (fan / "notes").write_text("mine")
    free = next(f"{number:02x}" for number in range(256) if not (two / f"{number:02x}").exists())
    (two / free).symlink_to(outside / "00")
    assert run("clear", directory, "--yes") == 0
    assert {path.name for path in outside.rglob("*")} == {"00", f"{name}.s", "data.mdb"}
    assert {path.name for path in two.iterdir()} == {"lmdb", fan.name, free}
    assert [path.name for path in fan.iterdir()] == ["notes"]


def test_format_directory_that_is_a_link(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / f"mlfs-v2-{os.geteuid()}").symlink_to(directory / f"mlfs-v2-{os.geteuid()}")
    with pytest.raises(CacheError):
        run("clear", other, "--yes")
    assert len(list(directory.rglob("*.s"))) == 10


class Terminal(io.StringIO):
    """What somebody types at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("", 3), ("no", 3)])
def test_clear_asks(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    with pytest.raises(ConfigError, match="no terminal"):
        run("clear", directory)
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    assert run("clear", directory) == (0 if left == 0 else 1)
    sources = list((directory / f"mlfs-v2-{os.geteuid()}").iterdir()) if left else []
    assert len(sources) == (2 if left else 0)
    assert left == 0 or len(listed(directory, capsys)) == left


def test_progress_passes_all_verdicts_on(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal, after two seconds, the same is said as without, and how far it is: some copies are damaged."""
    for path in sorted(directory.rglob("*.s"))[::2]:
        path.write_bytes(path.read_bytes()[:-1])
    code, said = run("verify", directory, "--keep"), capsys.readouterr().out
    assert "damaged, left in place" in said
    monkeypatch.setattr(progress, "PROGRESS_AFTER_S", -1.0)
    assert run("verify", directory, "--keep") == code
    out, shown = capsys.readouterr()
    assert out == said
    assert "mlfs: verifying " in shown


def test_a_cache_of_another_user_is_refused_in_one_line(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: object) -> list[object]:
        raise PermissionError(13, "Permission denied", f"{directory}/mlfs-v2-0/x")

    monkeypatch.setattr(cache_admin, "stores", closed)
    for action in (["list"], ["verify"], ["clear", "--yes"]):
        with pytest.raises(CacheError, match="mlfs-v2-0/x: Permission denied"):
            run(action[0], directory, *action[1:])
