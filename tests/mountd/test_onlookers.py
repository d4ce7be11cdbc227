"""Who may see which names in the control directory: drawn trees against a check of each directory, and texts."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlfs.printable import printable
from mlfs.tree.attributes import Rights
from mlfs.tree.manifest import Manifest
from mlfs.tree.scan import scan
from mountd.onlookers import HIDDEN, Onlookers, Reader, masked

PATHS = ("top", "a/one", "a/b/two", "a/b/c/three", "d/four")
DIRECTORIES = (".", "a", "a/b", "a/b/c", "d")


def tree(root: Path) -> Manifest:
    for path in PATHS:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    fd = os.open(root, os.O_RDONLY)
    try:
        return scan(fd)
    finally:
        os.close(fd)


RIGHTS = st.tuples(st.sampled_from((0o755, 0o750, 0o700, 0o711, 0o744, 0o057)), st.sampled_from((1, 2)), st.just(3))


def test_names_are_shown_to_those_who_may_list_all_directories_above(tmp_path: Path) -> None:
    manifest = tree(tmp_path)
    entries = np.array([manifest.find(path.encode()) for path in PATHS])

    @given(st.tuples(*[RIGHTS] * len(DIRECTORIES)), st.sets(st.sampled_from(DIRECTORIES)), st.booleans())
    def check(drawn: tuple[tuple[int, int, int], ...], with_acl: set[str], in_group: bool) -> None:
        reader = Reader(1, 3 if in_group else 4, 0)
        open_to_him = {}
        for path, (mode, uid, gid) in zip(DIRECTORIES, drawn, strict=True):
            entry = manifest.find(b"" if path == "." else path.encode())
            manifest.set_rights(entry, Rights(stat.S_IFDIR | mode, uid, gid, 2))
            bits = mode >> 6 if uid == 1 else mode >> 3 if in_group else mode
            open_to_him[path] = bits & 5 == 5 and (uid == 1 or path not in with_acl)

        def has_acl(entry: int) -> bool:
            return (os.fsdecode(manifest.path(entry)) or ".") in with_acl

        onlookers = Onlookers(manifest, has_acl, has_acl)
        expected = [all(open_to_him[str(above)] for above in Path(path).parents) for path in PATHS]
        assert onlookers.may_see(reader, entries).tolist() == expected
        hidden = [path for path, seen in zip(PATHS, expected, strict=True) if not seen]
        for ask in (False, True):
            assert onlookers.hidden(reader, [*PATHS, "", ".", None, 7], ask) == hidden
            assert onlookers.hidden(reader, ["not/there", "/abs/olute"], ask) == ["not/there", "/abs/olute"]

    check()


def test_groups_are_those_of_the_process_if_it_is_the_readers() -> None:
    mine = Reader(os.getuid(), 77, os.getpid())
    assert mine.groups() == {77, *os.getgroups()}
    assert mine._replace(uid=os.getuid() + 1).groups() == {77}
    assert mine._replace(pid=0).groups() == {77}


def test_paths_are_taken_out_of_texts_and_nothing_else_is() -> None:
    status: dict[str, object] = {"a": ["no a here: a/b, xa, a/bc", ("a/b", 3)], "n": 5, "odd": {"path": "x\x1by"}}
    found = masked(status, ["a", "a/b", "x\x1by"])
    assert found == {"a": [f"no {HIDDEN} here: {HIDDEN}, xa, a/bc", [HIDDEN, 3]], "n": 5, "odd": {"path": HIDDEN}}
    assert masked({"said": f"it is {printable('x' + chr(27) + 'y')}"}, ["x\x1by"]) == {"said": f"it is {HIDDEN}"}
    assert masked(status, []) is status


@given(
    st.text("aé '\"\\$.", min_size=1).filter(lambda name: name.strip("./ ")),
    st.sampled_from(("/src", "/a b", "/x\x1b")),
)
def test_paths_are_found_below_roots_and_quoted_for_shells(name: str, root: str) -> None:
    path = f"closed/{name}"
    texts = [
        f"below {root}/{path}: why",
        f"mlfs register M --root {shlex.quote(path)} --epochs 1",
        printable(f"{root}/{path}"),
    ]
    for text in masked({"said": texts}, [path], [root])["said"]:  # type: ignore[attr-defined]
        assert "closed" not in text
        assert HIDDEN in text
    assert masked({"said": f"/other/{path}"}, [path], [root]) == {"said": f"/other/{path}"}
