"""What is said of a source that is gone, hangs or came back, and of reads that failed: one line each, a way out."""

from __future__ import annotations

import pytest
from made_up import engine, mount

from mlfs.places.source_statistics import RootState, RootStatistics, SourceStatistics
from mountd.handlers import ReadFailureStatistics
from mountd.messages import source_messages
from mountd.metrics import metrics
from mountd.statistics import About, MountStatistics
from mountd.status import status


def made(root: RootStatistics | None = None, **changed: object) -> MountStatistics:
    return mount(engine(), source=SourceStatistics(root or RootStatistics()), **changed)


def test_nothing_is_said_of_a_source_that_is_well() -> None:
    assert source_messages(made()) == []


@pytest.mark.parametrize(
    ("root", "says", "way_out"),
    [
        (
            RootStatistics(RootState.GONE, "Stale file handle", 90.0),
            "/pfs/set has been gone for 90 s",
            "mount it there",
        ),
        (
            RootStatistics(RootState.GONE, "Stale file handle", 7300.0, covered=True),
            "/pfs/set has been gone for 2 h (Stale file handle)",
            "so: mlfs unmount /data/set, mount the source again, and mlfs mount /data/set",
        ),
        (RootStatistics(RootState.OTHER, "0 of 64 files", 150.0), "not the source that was mounted", "mount it there"),
        (RootStatistics(opened_again=1, opened_s=3.0), "was found again 3 s ago (once in all)", "look after it"),
    ],
)
def test_each_state_of_the_source_is_one_line_with_the_way_out(root: RootStatistics, says: str, way_out: str) -> None:
    (line,) = source_messages(made(root))
    assert says in line
    assert way_out in line
    shown = status(made(root))
    assert line in str(shown["messages"])
    assert (root.state is RootState.THERE) == (not str(shown["headline"]).startswith("the source has been gone"))
    there = f'mlfs_source_there{{mountpoint="/data/set"}} {float(root.state is RootState.THERE)}\n'
    assert there.encode() in metrics(made(root))


def test_what_is_long_over_is_not_told_any_more() -> None:
    assert source_messages(made(RootStatistics(opened_again=2, opened_s=7200.0))) == []
    assert source_messages(made(read_failures=ReadFailureStatistics(5, "Input/output error", "a", 7200.0))) == []


def test_paths_are_escaped() -> None:
    failed = ReadFailureStatistics(2000, "Input/output error", "a\x1b[2J\udcff", 4.0)
    hanging = SourceStatistics(RootStatistics(), 3, 12.0, "b\nc")
    hangs, fails = source_messages(mount(engine(), source=hanging, read_failures=failed))
    assert "has not answered for 12 s, of b\\nc (and 2 other reads): " in hangs
    assert fails.startswith("2,000 reads failed, the last one 4 s ago: a\\x1b[2J\\xff: Input/output error; ")


def test_directories_that_were_not_read_are_told() -> None:
    (line,) = source_messages(mount(engine(), about=About("/pfs/set", "/data/set", "", 0.0, 1, "a/b", 5)))
    assert line.startswith("the directory a/b of /pfs/set could not be read by the scan")
    assert "(Input/output error): look after the file system" in line
    (line,) = source_messages(mount(engine(), about=About("/pfs/set", "/data/set", "", 0.0, 1, "a/b", 13)))
    assert "(Permission denied): give yourself the right to read" in line
    assert line.endswith("then: mlfs refresh /data/set")
