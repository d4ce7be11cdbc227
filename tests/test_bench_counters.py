"""What scripts/bench takes from a mount's counters to see that it has measured what it says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
counters = importlib.import_module("benchmark.counters")


def told(page_cache: int, pfs: int, fetches: int, stalls: int, opens: int, under_way: int = 0) -> dict[str, Any]:
    """The part of a status that is read."""
    return {
        "under_way": {"fetches": under_way},
        "reads": {"all": {"page_cache": {"reads": page_cache}, "pfs": {"reads": pfs}, "ram": {"reads": 0}}},
        "fetches": {"pfs": {"count": fetches}} if fetches else {},
        "requests": {"open": opens},
        "stalls": {"count": stalls},
    }


def test_what_is_counted_is_what_came_meanwhile_once_nothing_is_under_way() -> None:
    answers = iter([told(10, 5, 5, 5, 15), told(12, 5, 7, 5, 17, under_way=2), told(110, 7, 9, 6, 117)])
    since = counters.Since(lambda: next(answers))
    counted = since.now()
    assert counted == ({"page_cache": 100, "pfs": 2, "ram": 0}, {"pfs": 4}, {"open": 102}, 1)
    assert (counted.by("page_cache"), counted.by("lmdb"), counted.all_reads) == (100, 0, 102)
    assert (counted.fetched("pfs"), counted.fetched("peer")) == (4, 0)


def test_another_thing_than_was_to_be_measured_ends_the_benchmark() -> None:
    counters.must_be("staged reads", True, "all of them")
    with pytest.raises(SystemExit, match="not a benchmark of staged reads: 3 of the source"):
        counters.must_be("staged reads", False, "3 of the source")


@pytest.mark.parametrize(
    ("agreed", "observed", "is_so"),
    [
        (1000, 1000, True),
        (991, 1000, True),
        (980, 1000, False),
        (991, 991, True),
        (500, 500, False),
        (1000, 1010, False),
    ],
)
def test_a_job_is_followed_that_has_all_the_reads(agreed: int, observed: int, is_so: bool) -> None:
    job = {"state": "running", "agreed_opens": agreed, "observed_opens": observed, "agreement_by_epoch": {}}
    if is_so:
        counters.must_be_followed({"jobs": [job]}, 1000)
    else:
        with pytest.raises(SystemExit, match="followed over 1000 reads"):
            counters.must_be_followed({"jobs": [job]}, 1000)


def test_no_job_is_none_that_is_followed() -> None:
    with pytest.raises(SystemExit):
        counters.must_be_followed({"jobs": []}, 10)


def test_a_part_that_fails_leaves_the_others_to_be_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = importlib.import_module("benchmark.__main__")

    def wrong(work: Path, data: Path, rounds: int) -> None:
        """reads that were to be staged"""
        counters.must_be("staged reads", False, "none was")

    def right(work: Path, data: Path, rounds: int) -> None:
        """reads of the data"""
        print(f"  {len(list(data.glob('*/*.jpg')))} files, {rounds} rounds")

    parts: dict[str, Any] = {"wrong": wrong, "right": right}
    monkeypatch.setattr(bench, "PARTS", parts)
    monkeypatch.setattr(bench, "found", parts.get)
    monkeypatch.setattr(sys, "argv", ["bench", "wrong", "right", "--files", "3", "--rounds", "2"])
    monkeypatch.setenv("XDG_CACHE_HOME", "as it was")  # so that it is set back
    assert bench.main() == "failed: wrong"
    assert capsys.readouterr().out.splitlines() == [
        "",
        "(wrong) reads that were to be staged",
        "  FAILED: not a benchmark of staged reads: none was",
        "",
        "(right) reads of the data",
        "  3 files, 2 rounds",
    ]


def test_each_part_is_found_where_it_stands() -> None:
    bench = importlib.import_module("benchmark.__main__")
    parts = [bench.found(part) for part in bench.PARTS]
    assert all(part.__doc__ for part in parts)
