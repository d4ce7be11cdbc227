"""Copies that an earlier version of mlfs has made: they count as none, and are made anew where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from tier_contract import MIB, content, holds, put

from mlfs.cli import main as cli
from mlfs.places import record
from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.ssd import SsdTier
from mlfs.places.tier import Version

KEYS = [b"d/%d" % number for number in range(10)]
VERSION = Version(3_000, 7, 9)


@pytest.mark.parametrize("tier_class", [SsdTier, LmdbTier])
def test_copies_of_an_earlier_format_are_no_errors_and_give_way_to_new_ones(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tier_class: type[SsdTier | LmdbTier],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    directory = tmp_path / "copies"
    with monkeypatch.context() as earlier:
        earlier.setattr(record, "FORMAT", record.FORMAT - 1)
        tier = tier_class(directory, 4 * MIB, "/src")
        assert all(put(tier, key, VERSION) for key in KEYS)
        tier.close()
    assert cli.main(["cache", "verify", "--keep", str(directory)]) == 1
    assert "made by an earlier version of mlfs" in capsys.readouterr().out
    tier = tier_class(directory, 4 * MIB, "/src")
    assert tier.used_bytes
    assert [tier.get(key, VERSION) for key in KEYS] == [None] * len(KEYS)
    assert tier.keys() == []
    assert (tier.errors, tier.used_bytes) == (0, 0)
    assert all(put(tier, key, VERSION) for key in KEYS)
    tier.close()
    tier = tier_class(directory, 4 * MIB, "/src")
    assert all(holds(tier, key, VERSION) for key in KEYS)
    assert content(KEYS[0], VERSION) != content(KEYS[0], VERSION._replace(ctime_ns=1))
    assert tier.get(KEYS[0], VERSION._replace(ctime_ns=1)) is None
    tier.close()
