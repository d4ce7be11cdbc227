"""Measuring within budgets, leaving nothing behind, and the file that comes out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.errors import ConfigError
from mlfs.measure import calibration
from mlfs.measure.calibration import Calibration, SourceSpeeds, StorageSpeeds
from mlfs.measure.meter import Budget, Meter, Rate
from mlfs.measure.trials import directory_points, doubling, memory_points, source_points

ONE = Budget(seconds=1000, bytes=100)
points = st.lists(
    st.tuples(st.integers(1, 4096), st.floats(1e-3, 1e13)), min_size=1, max_size=5, unique_by=lambda p: p[0]
).map(lambda found: tuple(sorted(found)))
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
speeds = st.builds(StorageSpeeds, path=texts, read=points, write=points)


def ticking() -> Callable[[], float]:
    """A clock that goes on by a second each time it is looked at."""
    lock, now = threading.Lock(), [0.0]

    def clock() -> float:
        with lock:
            now[0] += 1
            return now[0]

    return clock


def quiet(_name: str, _threads: int, _rate: Rate) -> None:
    """No report."""


def tens(_index: int) -> Iterator[int]:
    while True:
        yield 10


def test_bytes_and_seconds_bound_a_measurement() -> None:
    assert Meter(ticking()).measure(tens, 1, Budget(1000, 55)) == Rate(60, 6, 6.0)
    assert Meter(ticking()).measure(tens, 1, Budget(4, 10**9)) == Rate(40, 4, 4.0)
    assert Meter(ticking()).measure(lambda _: iter([5, 5]), 1, ONE).bytes_per_s == 5.0
    many = Meter(ticking()).measure(tens, 8, Budget(10**9, 1000))
    assert 1000 <= many.bytes < 1000 + 8 * 10


def test_a_failing_thread_fails_the_measurement_and_a_stop_ends_it() -> None:
    def failing(index: int) -> Iterator[int]:
        yield 1
        if index == 1:
            raise PermissionError(13, "no")
        yield from tens(index)

    with pytest.raises(PermissionError):
        Meter(ticking()).measure(failing, 3, Budget(10**9, 10**9))
    meter = Meter(ticking())
    meter.stop()
    with pytest.raises(KeyboardInterrupt):
        meter.measure(tens, 2, Budget(10**9, 10**9))


def test_the_source_is_read_by_more_and_more_readers_and_vanished_files_do_not_matter(tmp_path: Path) -> None:
    names = [b"a", b"gone", b"empty", b"b"]
    (tmp_path / "a").write_bytes(bytes(50))
    (tmp_path / "b").write_bytes(bytes(70))
    (tmp_path / "empty").write_bytes(b"")
    told: list[tuple[str, int]] = []
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        found = source_points(
            Meter(ticking()), fd, names, 6, Budget(10**9, 500), lambda name, n, _rate: told.append((name, n))
        )
        assert [count for count, _ in found] == doubling(6) == [1, 2, 4, 6]
        assert all(rate > 0 for _, rate in found)
        assert told == [("source", n) for n in (1, 2, 4, 6)]
        assert source_points(Meter(ticking()), fd, [b"gone"], 2, Budget(50, 500), quiet) == []
    finally:
        os.close(fd)


def test_a_directory_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    reads, writes = directory_points(Meter(ticking()), str(tmp_path), 1000, 2, Budget(10**9, 5000), quiet)
    assert [count for count, _ in reads] == [count for count, _ in writes] == [1, 2]
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_leaves_no_file(tmp_path: Path, at: int) -> None:
    seen: list[int] = []

    def interrupted(_name: str, _threads: int, _rate: Rate) -> None:
        seen.append(len(os.listdir(tmp_path)))
        if len(seen) == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        directory_points(Meter(ticking()), str(tmp_path), 1000, 2, Budget(10**9, 5000), interrupted)
    assert seen == [1] * at
    assert os.listdir(tmp_path) == []


def test_memory_is_measured_both_ways() -> None:
    reads, writes = memory_points(Meter(ticking()), 5000, 2, Budget(10**9, 10**6), quiet)
    assert [count for count, _ in reads] == [count for count, _ in writes] == [1, 2]


@settings(deadline=None, max_examples=60)
@given(st.builds(SourceSpeeds, path=texts, read=points, mean_sample_bytes=st.floats(0, 1e12)), st.lists(speeds), texts)
def test_the_file_says_what_was_measured(source: SourceSpeeds, ssd: list[StorageSpeeds], made: str) -> None:
    import tomllib

    whole = Calibration(
        made=made, source=source, memory=StorageSpeeds(read=source.read, write=source.read), ssd=tuple(ssd)
    )
    assert Calibration.model_validate(tomllib.loads(whole.to_toml())) == whole


def test_a_file_is_found_where_mount_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole = Calibration(
        source=SourceSpeeds(path="/data", read=((1, 50.0), (2, 95.0), (4, 100.0), (8, 60.0))),
        memory=StorageSpeeds(read=((1, 9.0),), write=((1, 9.0),)),
        ssd=(StorageSpeeds(path="/scratch", read=((1, 7.0),), write=((1, 8.0),)),),
    )
    path = calibration.default_path("/data")
    calibration.save(whole, path)
    assert os.listdir(path.parent) == [path.name]
    found = calibration.load(path)
    assert found == whole
    assert (found.source.best_bytes_per_s, found.source.good_readers) == (100.0, 2)
    assert found.of_directory("/scratch/") == whole.ssd[0]
    assert found.of_directory("/other") is None
    assert found.source.curve.at(2) == 95.0
    assert calibration.default_path("/data/") == path != calibration.default_path("/data2")


WRONG = '[source]\npath = "/d"\nread = {}\n[memory]\nread = [[1, 1.0]]\nwrite = [[1, 1.0]]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[source", "not valid TOML"),
        ("", "source"),
        ("source = 1\n", "source"),
        (WRONG.format("[[2, 1.0], [1, 2.0]]"), "ascend"),
        (WRONG.format("[[1, 0.0]]"), "source.read"),
        (WRONG.format("[[1, nan]]"), "source.read"),
        (WRONG.format("[]"), "source.read"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        calibration.load(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
