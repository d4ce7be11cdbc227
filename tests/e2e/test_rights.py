"""Nobody reads through a mount what the source refuses, and who may read there can: modes, owners and ACLs are drawn.

What a reader finds through the mount is compared with what the same reader finds at the source: attributes, content or
listing, access(2), the ACL itself. The mounts are beside the source, so that both can be looked at.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.readers import (
    ACCESS,
    DEFAULT,
    GROUP,
    LABEL,
    MASK,
    NOBODYS,
    NOTE,
    OTHER,
    OWNER,
    USER,
    Reader,
    acl,
    as_reader,
    drawn_acl,
    seen_by,
)
from support.slow import SlowSource
from support.trees import make_tree

UIDS, GIDS = (1001, 1002, 1003), (2001, 2002)
READERS = (
    Reader(0, 0), Reader(1001, 2001), Reader(1002, 2002, (2001,)), Reader(1003, 2002), Reader(1004, 2003),
)  # fmt: skip
DIRECTORIES = ("a", "a/b", "c", "c/d", "c/d/e", "c/d/e/late", "c/d/e/below")
EARLY = tuple(f"{directory}{number}" for directory in ("", "a/", "a/b/", "c/", "c/d/", "c/d/e/") for number in range(5))
LATE = tuple(f"c/d/e/late/{number}" for number in range(20))  # read while a mount lasts, not before
NAME = "c/d/e/late/another-name"  # of the last one
BELOW = tuple(f"c/d/e/below/{number:03}" for number in range(200))  # read after a directory above has been closed
OPEN = ("c", "c/0")  # to all, until the directory is closed
REFUSED = "PermissionError 13"
HIDDEN = "(a path that you may not list)"
PATHS = (".", *DIRECTORIES, *EARLY)


def draw_rights(path: Path, draw: random.Random) -> None:
    """Any mode, owner and ACL; a directory lets most of them in, or nothing would be seen of what lies below."""
    for name in (ACCESS, DEFAULT, NOTE, LABEL):
        if name in os.listxattr(path):
            os.removexattr(path, name)
    for name in draw.sample((NOTE, LABEL), draw.randint(0, 2)):
        os.setxattr(path, name, draw.randbytes(draw.choice((0, 1, 300))))
    is_directory = path.is_dir()
    os.chown(path, draw.choice((0, *UIDS)), draw.choice((0, *GIDS)))
    modes = (0o755, 0o755, 0o750, 0o711, 0o700) if is_directory else (0o644, 0o640, 0o600, 0o604, 0o000, 0o660)
    os.chmod(path, draw.choice(modes))
    if draw.random() < 0.5:
        os.setxattr(path, ACCESS, drawn_acl(draw, UIDS, GIDS))
    if is_directory and draw.random() < 0.3:
        os.setxattr(path, DEFAULT, drawn_acl(draw, UIDS, GIDS))


def draw_all(source: Path, seed: int, paths: tuple[str, ...] = PATHS) -> None:
    draw = random.Random(seed)
    for path in paths:
        if path not in (".", *OPEN):
            draw_rights(source / path, draw)


def compare(source: Path, mount: Path, paths: tuple[str, ...] = PATHS) -> None:
    for reader in READERS:
        there, here = seen_by(reader, source, paths), seen_by(reader, mount, paths)
        differ = {path: (there[path], here[path]) for path in paths if there[path] != here[path]}
        assert not differ, f"{reader}: {differ}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tree = make_tree(tmp_path / "source", dict.fromkeys((*EARLY, *LATE, *BELOW), 3000))
    os.chmod(tree, 0o755)
    os.link(tree / LATE[-1], tree / NAME)
    return tree


@pytest.mark.promise(
    "rights-as-source", "rights-acl", "rights-index", "rights-noticed", "rights-names", "rights-xattrs"
)
def test_each_reader_finds_what_he_finds_at_the_source(source: Path, tmp_path: Path) -> None:
    """Also after a mount whose index is used again, and after rights have changed under a mount."""
    (tmp_path / "mount").mkdir()
    state = tmp_path / "state"
    draw_all(source, 1)
    with MlfsMount(source, "--allow-other", mountpoint=tmp_path / "mount", state=state) as mount:
        compare(source, mount.path)
        names_in_orders(source, mount)
    draw_all(source, 2, EARLY)
    with MlfsMount(source, "--allow-other", mountpoint=tmp_path / "mount", state=state) as mount:
        assert "saved index" in mount.status()["manifest"]["how"]
        compare(source, mount.path)
        while_mounted(source, mount.path)


def names_in_orders(source: Path, mount: MlfsMount) -> None:
    """Names below a directory are shown to those only who may list it and all above; without ACLs, to all of them."""
    mount.register(name="all", sampler="sequential", layout="sorted", epochs=1, batch_size=1)
    mount.register(name="late", sampler="sequential", layout="sorted", root="c/d/e/late", epochs=1, batch_size=1)
    files = [".mlfs/order/all/0/0", ".mlfs/jobs/late.json", ".mlfs/status"]
    whole = Path(mount.path, files[0]).read_text().splitlines()
    assert sorted(whole) == sorted((*EARLY, *LATE, NAME, *BELOW))
    shown = set()
    for reader in READERS:
        order, job, status = as_reader(reader, mount.path, lambda: [Path(file).read_text() for file in files])
        lists = {path: found["access"] == [True, True] for path, found in seen_by(reader, source, PATHS).items()}
        for path, line in zip(whole, order.splitlines(), strict=True):
            above = [str(directory) for directory in Path(path).parents]
            may_see = all(lists[directory] for directory in above)
            without = all(ACCESS not in os.listxattr(source / directory) for directory in above)
            assert line == path if may_see and (without or reader.uid == 0) else line in (HIDDEN, path)[: 1 + may_see]
            shown.add((line == path, may_see))
        if not all(lists[directory] for directory in (".", "c", "c/d", "c/d/e")):
            assert "c/d/e/late" not in job + status
    assert {(True, True), (False, False)} <= shown


def while_mounted(source: Path, mount: Path) -> None:
    """Files that the kernel knows and nobody has read yet: to read one is to look at it."""
    for path in (*LATE, NAME):
        (mount / path).stat()
    draw_all(source, 3, LATE)
    for reader in READERS[1:]:  # by what the kernel was told before some are refused who may read now, none let in
        there, here = (seen_by(reader, root, LATE) for root in (source, mount))
        for path in LATE:
            assert here[path]["content"] in (there[path]["content"], REFUSED), (reader, path)
    for path in LATE:
        (mount / path).read_bytes()
    compare(source, mount, (".", *DIRECTORIES, *LATE, NAME))  # under the other name nobody has read it
    below = iter(BELOW)

    def refuses(*readers: Reader) -> bool:
        """A further file below is read, which is a look."""
        (mount / next(below)).read_bytes()
        if (mount / "c").stat().st_mode != (source / "c").stat().st_mode:
            return False  # nobody has looked at it yet, and it may be refused by its ACL alone
        return all(seen_by(reader, mount, ["c/0"])["c/0"]["content"] == REFUSED for reader in readers)

    assert [seen_by(reader, mount, ["c/0"])["c/0"]["content"] == REFUSED for reader in READERS] == [False] * 5
    without_one = [(OWNER, 7, NOBODYS), (USER, 0, 1001), (GROUP, 5, NOBODYS), (MASK, 5, NOBODYS), (OTHER, 5, NOBODYS)]
    os.chown(source / "c", 0, 0)
    os.setxattr(source / "c", ACCESS, acl(without_one))  # the mode stays as it is
    wait_until(lambda: refuses(READERS[1]))
    compare(source, mount)
    os.chmod(source / "c", 0o700)
    wait_until(lambda: refuses(*READERS[1:]))
    compare(source, mount)


@pytest.mark.promise("rights-index")
@pytest.mark.wall_clock
def test_what_cannot_be_looked_at_is_an_error_and_holds_up_nothing_else(tmp_path: Path) -> None:
    """The source hangs: a file that was looked at is read on, of another one nothing is said until it is back."""
    (tmp_path / "mount").mkdir()
    state = tmp_path / "state"
    with SlowSource(make_tree(tmp_path / "backing", {"a/known": 3000, "b/unknown": 3000})) as slow:
        flags = ("--allow-other", "--source-timeout", "2")
        with MlfsMount(slow.path, *flags, mountpoint=tmp_path / "mount", state=state):
            pass  # leaves an index
        with MlfsMount(slow.path, *flags, mountpoint=tmp_path / "mount", state=state) as mount:
            assert "saved index" in mount.status()["manifest"]["how"]
            known, unknown = mount.path / "a/known", mount.path / "b/unknown"
            content = known.read_bytes()
            mount.settle()  # else the source may stop while its file is closed, and the fetch has not ended
            os.kill(slow.pid, signal.SIGSTOP)
            try:
                with pytest.raises(TimeoutError):
                    unknown.stat()
                assert known.read_bytes() == content
            finally:
                os.kill(slow.pid, signal.SIGCONT)
            wait_until(unknown.exists)


@pytest.mark.promise("rights-xattrs")
def test_attributes_are_readable_by_the_one_user_of_a_mount(source: Path, tmp_path: Path) -> None:
    """Again and again: an answer ENOSYS would end that for the whole mount. ACLs of many files in a row as well."""
    (tmp_path / "mount").mkdir()
    draw_all(source, 4)
    with MlfsMount(source, mountpoint=tmp_path / "mount") as mount:
        for _ in range(2):
            for reader in READERS[:1]:
                assert seen_by(reader, mount.path, PATHS) == seen_by(reader, source, PATHS)
        assert os.listxattr(mount.path / ".mlfs/status") == []
        with pytest.raises(OSError, match="No data available"):
            os.getxattr(mount.path / ".mlfs", NOTE)
        with pytest.raises(OSError, match="Read-only file system"):
            os.setxattr(mount.path / "c/0", NOTE, b"anything")
