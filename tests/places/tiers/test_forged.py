"""Copies that somebody else has put into a cache directory: prepared directories, forged copies, lost keys."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.others import NOBODY, somebody_else
from tier_contract import MIB, holds, put

from mlfs.cli import main as cli
from mlfs.errors import CacheError, ExitCode
from mlfs.places import cache_directory
from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.part_sums import PartSums
from mlfs.places.secret import FILE_NAME, Secret, of_this_user
from mlfs.places.ssd import SsdTier
from mlfs.places.tier import Version

TIERS = [SsdTier, LmdbTier]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory like /scratch: anybody may make things in it."""
    path = Path(tempfile.mkdtemp(prefix="mlfs-forged-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def drawn(seed: int, count: int) -> dict[bytes, Version]:
    chance = random.Random(seed)
    return {b"d/%d" % n: Version(chance.randrange(0, 60_000), chance.randrange(1 << 60)) for n in range(count)}


def fill(tier: SsdTier | LmdbTier, wanted: dict[bytes, Version]) -> None:
    for key, version in wanted.items():
        assert tier.put(key, version, memoryview(os.urandom(version.size_bytes)))
    tier.close()


@pytest.mark.parametrize("tier_class", TIERS)
@pytest.mark.parametrize("knows_id", [False, True])
def test_a_forged_copy_is_a_damaged_copy(
    shared: Path, caplog: pytest.LogCaptureFixture, tier_class: type[SsdTier | LmdbTier], knows_id: bool
) -> None:
    """Right key, size, mtime and layout, and everything that can be computed without the secret."""
    theirs = Secret(os.urandom(32))
    if knows_id:
        object.__setattr__(theirs, "id", of_this_user().id)
    wanted = drawn(7, 60)
    fill(tier_class(shared, 16 * MIB, "/src", secret=theirs), wanted)
    tier = tier_class(shared, 16 * MIB, "/src")
    assert [tier.get(key, version) for key, version in wanted.items()] == [None] * 60
    assert (tier.errors, tier.used_bytes) == (60, 0)
    assert len([entry for entry in caplog.records if entry.levelname == "WARNING"]) == 1
    key, version = next(iter(wanted.items()))
    assert put(tier, key, version)
    assert holds(tier, key, version)
    tier.close()


@pytest.mark.parametrize("tier_class", TIERS)
@pytest.mark.parametrize("level", ["user", "source"])
@pytest.mark.parametrize("how", ["owner", "mode", "link"])
def test_a_directory_that_somebody_prepared_is_refused(
    shared: Path, tier_class: type[SsdTier | LmdbTier], level: str, how: str
) -> None:
    fill(tier_class(shared, 16 * MIB, "/src"), drawn(1, 3))
    user = Path(cache_directory.user_path(str(shared)))
    path = user if level == "user" else user / cache_directory.source_hash("/src")
    if how == "owner":
        os.chown(path, NOBODY, NOBODY)
    elif how == "mode":
        path.chmod(0o777)
    else:
        path.rename(shared / "elsewhere")
        path.symlink_to(shared / "elsewhere")
    before = {found: found.stat().st_mtime_ns for found in shared.rglob("*")}
    with pytest.raises(CacheError) as caught:
        tier_class(shared, 16 * MIB, "/src")
    assert str(path) in caught.value.message
    assert caught.value.hint
    for action in (["list"], ["verify"], ["clear", "--yes"]):
        assert cli.main(["cache", action[0], str(shared), *action[1:]]) in (ExitCode.CACHE, ExitCode.OK)
    assert {found: found.stat().st_mtime_ns for found in shared.rglob("*")} == before


def test_two_users_share_a_cache_directory(shared: Path) -> None:
    wanted = drawn(2, 5)
    home = shared / "home"

    def theirs() -> None:
        os.environ["XDG_CACHE_HOME"] = str(home)
        fill(SsdTier(shared, 16 * MIB, "/src"), wanted)

    somebody_else(theirs)
    tier = SsdTier(shared, 16 * MIB, "/src")
    assert tier.keys() == []
    assert all(put(tier, key, version) for key, version in wanted.items())
    tier.close()
    names = {path.name for path in shared.iterdir()} - {"home"}
    assert names == {"mlfs-v2-0", f"mlfs-v2-{NOBODY}"}
    assert all((shared / name).stat().st_mode & 0o777 == 0o700 for name in names)


def test_mounts_that_start_at_once_agree_on_a_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = list(pool.map(lambda _: of_this_user(), range(32)))
    assert len({secret.value for secret in secrets}) == 1
    assert os.listdir(tmp_path / "home" / "mlfs") == [FILE_NAME]
    assert (tmp_path / "home" / "mlfs" / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert secrets[0].value.hex() not in repr(secrets[0])


@pytest.mark.parametrize("damage", ["owner", "read", "write", "short", "link", "fifo"])
def test_a_key_that_others_can_know_is_refused(tmp_path: Path, damage: str) -> None:
    of_this_user()
    path = tmp_path / "home" / "mlfs" / FILE_NAME
    if damage == "owner":
        os.chown(path, NOBODY, NOBODY)
    elif damage in ("read", "write"):
        path.chmod(0o640 if damage == "read" else 0o620)
    elif damage == "short":
        path.write_bytes(b"short")
    else:
        path.unlink()
        path.symlink_to("elsewhere") if damage == "link" else os.mkfifo(path)
    with pytest.raises(CacheError) as caught:
        SsdTier(tmp_path / "cache", MIB, "/src")
    assert caught.value.hint


def test_without_a_place_for_the_key_copies_are_used_by_one_mount(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").write_text("a file where the directory would be")
    tier = SsdTier(tmp_path / "cache", MIB, "/src")
    assert put(tier, b"k", Version(10, 1))
    assert holds(tier, b"k", Version(10, 1))
    tier.close()
    assert "by this mount only" in caplog.text
    again = SsdTier(tmp_path / "cache", MIB, "/src")
    assert again.get(b"k", Version(10, 1)) is None
    again.close()


def test_an_older_cache_is_named_with_the_way_to_remove_it(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shared / "mlfs-v1").mkdir()
    assert cli.main(["cache", "list", str(shared)]) == ExitCode.CACHE
    assert f"rm -r {shared}/mlfs-v1" in capsys.readouterr().err
    fill(SsdTier(shared, MIB, "/src"), {})
    assert cli.main(["cache", "list", str(shared)]) == ExitCode.OK
    assert f"rm -r {shared}/mlfs-v1" in capsys.readouterr().err


def test_the_sums_of_parts_depend_on_the_secret() -> None:
    """Without it, nobody can look for another part that has the sum of a right one."""
    version, data = Version(100_000, 1), memoryview(bytes(100_000))
    ours, theirs = PartSums(Secret(b"1" * 32)), PartSums(Secret(b"2" * 32))
    for sums in (ours, theirs):
        sums.learn(b"copy", version, data)
    known = ours.of(b"copy", version)
    assert known is not None
    assert ours.verify(known, 65_536, data[65_536:])
    assert not theirs.verify(known, 65_536, data[65_536:])
