"""Links that lead out of a tree: drawn ones are counted as the file system leads them, and their places are named."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from mlfs.tree.leaving_links import links_that_leave
from mlfs.tree.scan import scan


def scanned_links(source: Path, most: int = 1000, *others: Path) -> tuple[int, int, bytes, tuple[bytes, ...]]:
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = links_that_leave(scan(fd), os.fsencode(source), [os.fsencode(other) for other in others], most)
    finally:
        os.close(fd)
    return found.leaving, found.of, found.first, found.places


@pytest.mark.parametrize("seed", range(12))
def test_drawn_links(tmp_path: Path, seed: int) -> None:
    draw, source = random.Random(seed), tmp_path / "a" / "source"
    store = tmp_path / "a" / "store" / "images"
    directories = [source, source / "d", source / "d" / "e"]
    for directory in (*directories, store, source / "real"):
        directory.mkdir(parents=True, exist_ok=True)
    for number in range(20):
        (store / f"{number}.jpg").write_bytes(b"1")
        (source / "real" / f"{number}.jpg").write_bytes(b"2")
    leaving = set()
    for number in range(draw.randrange(2, 40)):
        directory = draw.choice(directories)
        target = draw.choice([store, source / "real", source / "d" / ".." / "real"]) / f"{number % 20}.jpg"
        text = str(target) if draw.random() < 0.5 else os.path.relpath(target, directory)
        (directory / f"l{number}").symlink_to(text)
        if not (directory / f"l{number}").resolve().is_relative_to(source):
            leaving.add(os.fsencode((directory / f"l{number}").relative_to(source)))
    count, of, first, places = scanned_links(source)
    assert (count, of >= count) == (len(leaving), True)
    assert not leaving or first in leaving
    if count > 1:
        assert len(places) == 1
        assert os.fsencode(store).startswith(places[0]) or places[0].startswith(os.fsencode(store))
    seen = scanned_links(source, 1000, tmp_path / "a")
    assert seen[0] == 0, "what lies below the mount point is no other place"


def test_several_places_and_very_many(tmp_path: Path) -> None:
    for number in range(60):
        place = ["/data/one", "/data/one/deep", "/store/two"][number % 3]
        (tmp_path / f"{number:02d}").symlink_to(f"{place}/{number}")
    count, of, first, places = scanned_links(tmp_path)
    assert (count, of, first) == (60, 60, b"00")
    assert places == (b"/data/one", b"/store/two")
    assert scanned_links(tmp_path, 10)[:2] == (10, 10)


@pytest.mark.parametrize("strays", range(5))
def test_a_few_that_lead_elsewhere_do_not_hide_where_the_others_lead(tmp_path: Path, strays: int) -> None:
    for number in range(10):
        (tmp_path / f"{number}").symlink_to(f"/data/sets/one/c{number % 2}/{number}")
    for number in range(strays):
        (tmp_path / f"stray{number}").symlink_to(f"/etc/{number}/passwd")
    places = scanned_links(tmp_path)[3]
    assert places[0] == b"/data/sets/one"
    assert all(place.startswith(b"/etc") for place in places[1:])
