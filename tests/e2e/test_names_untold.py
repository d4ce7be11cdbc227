"""Names below a directory that somebody may not list stand in no file of the control directory that he reads.

Names are drawn; in each of them stands the same word, for which all texts are searched. Whatever may name a path is
brought about: jobs, what is wrong with the source, reads that fail, names that were added, refreshes that go wrong.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.readers import Reader, as_reader
from support.slow import LyingSource
from support.trees import Link, make_tree

WORD = "untold"
ODD = [" ", "'", '"', "+", "(", "[x]", "\\", "%s", "{}", "é", "-", ".", "\x07", "$"]
SEARCHED, LISTED = Reader(1001, 2001), Reader(1002, 2002)


def drawn(draw: random.Random, what: str) -> str:
    """A name with the word in it, and with what means something in patterns, formats and shells."""
    return "".join([*draw.sample(ODD, 3), WORD, draw.choice(ODD), what])


def texts(mount: Path) -> dict[str, str]:
    """All files of the control directory that can be read."""
    told = {}
    for directory, _, files in os.walk(mount / ".mlfs"):
        for name in files:
            with suppress(OSError):
                told[f"{directory}/{name}"] = Path(directory, name).read_text()
    return told


@pytest.mark.promise("rights-names")
def test_whatever_names_a_path_names_it_to_those_who_may_list_it(tmp_path: Path) -> None:
    draw = random.Random(28)
    closed, inner, wrong, unlisted = (drawn(draw, what) for what in ("closed", "inner", "wrong", "unlisted"))
    closed = f"top/{closed}"
    files = [f"{closed}/{inner}/{drawn(draw, str(n))}" for n in range(8)]
    names: dict[str, bytes | str | int | Link | None] = dict.fromkeys((*files, *(f"open/{n}" for n in range(8))), 3000)
    backing = make_tree(tmp_path / "backing", names | {f"{closed}/{wrong}": 100, f"{closed}/{unlisted}": None})
    backing.chmod(0o755)
    os.chown(backing / "top", 0, LISTED.gid)
    (backing / "top").chmod(0o751)
    (backing / closed / f"{WORD}-link").symlink_to(f"/{WORD}")
    (tmp_path / "mount").mkdir()
    listed = tmp_path / "list"
    listed.write_text("".join(f"{path.removeprefix(closed + '/')}\n" for path in files))
    with LyingSource(backing) as source:
        source.lie(f"{closed}/{wrong}", size=-3)
        source.lie(f"{closed}/{unlisted}", listed=5)
        with MlfsMount(source.path, "--allow-other", mountpoint=tmp_path / "mount") as mount:
            told: list[str] = []

            def look(needed: Callable[[str], bool]) -> None:
                """`needed`: what the one who mounted is told of by now."""
                mount.settle()
                wait_until(lambda: needed(json.dumps(mount.status())))
                told.append(str(texts(mount.path)))
                found = as_reader(SEARCHED, mount.path, lambda: texts(Path()))
                leaks = {
                    file: text[max(0, text.find(WORD) - 200) :][:300] for file, text in found.items() if WORD in text
                }
                assert not leaks
                assert len(found) >= 3
                assert WORD in str(as_reader(LISTED, mount.path, lambda: texts(Path())))

            def register(name: str, **fields: str) -> None:
                mount.register(name=name, sampler="sequential", epochs=1, **fields)

            with suppress(OSError):
                (mount.path / closed / wrong).read_bytes()
            register("inner", layout="sorted", root=f"{closed}/{inner}")
            register("all", layout="sorted")
            register("listed", layout="manifest", root=closed, manifest_file=str(listed))
            look(lambda said: "another number of bytes" in said and "could not be read" in said)
            source.control(fail={"path": files[0], "errno": 5, "times": 9})
            with suppress(OSError):
                (mount.path / files[0]).read_bytes()
            (backing / closed / f"{WORD}-new").write_bytes(b"")
            assert not (mount.path / closed / f"{WORD}-new").exists()
            look(lambda said: "added since the scan" in said)
            (backing / files[1]).unlink()
            mount.run("refresh", str(mount.path), closed, check=False)
            look(lambda said: "cannot be found any more" in said)
            mount.run("refresh", str(mount.path), f"{closed}/{WORD}-nothing", check=False)
            look(lambda said: "neither in the mount nor at its source" in said)
            (backing / closed / inner).rename(backing / closed / f"{WORD}-gone")
            mount.run("refresh", str(mount.path), check=False)
            look(lambda said: "there is no directory" in said)
            assert all(WORD in text for text in told)
