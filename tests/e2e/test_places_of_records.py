"""A user namespace, a read-only root, a user without rights: it mounts all the same, and says what is not as elsewhere.

Each runs in mount namespaces of its own, by a shell.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fuse import require_fuse
from support.trees import make_tree

USER = 65534  # fusermount3 wants one who has a name


def no(command: str) -> str:
    """A line that succeeds where the command fails; behind `!` the shell would not mind."""
    return f"if {command}; then exit 3; fi"


MLFS = f"{shlex.quote(sys.executable)} -m mlfs.cli.main"
CONTROL = """echo '{"op": "resume"}' > data/.mlfs/control && cat data/.mlfs/control"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, with a data set that belongs to nobody in particular."""
    require_fuse()
    path = Path(tempfile.mkdtemp(prefix="mlfs-places-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", path], check=True)
    make_tree(path / "data", {"a/one": 100, "two": 10})
    (path / "data").chmod(0o777)
    (path / "run").mkdir()
    yield path
    subprocess.run(["umount", "-l", path], check=True)
    path.rmdir()


def shell(place: Path, *lines: str, within: str = "unshare -m", **variables: Path | str) -> str:
    """What a shell says that runs the lines, each of which must succeed, in a mount namespace of its own."""
    unset = ("XDG_RUNTIME_DIR", "MLFS_RUNTIME_DIR", "TMPDIR")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"XDG_CACHE_HOME": str(place / "cache")} | {name: str(value) for name, value in variables.items()}
    script = "\n".join(["set -e", f"cd {shlex.quote(str(place))}", *lines])
    done = subprocess.run(
        [*shlex.split(within), "sh", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.promise("records-elsewhere", "read-only-kernel", "control-elsewhere")
def test_root_of_a_user_namespace_to_whom_run_does_not_belong(place: Path) -> None:
    fallback = Path("/tmp/mlfs-0")
    there = fallback.exists()
    try:
        said = shell(
            place,
            "mkdir -p /run/mlfs",
            f"mount -t tmpfs -o uid={USER},mode=755 none /run/mlfs",
            f"exec unshare -Urm sh -ec {shlex.quote(chr(10).join(USES))}",
        )
        assert '{"ok": true}' in said
        assert f"{fallback}/" in said
    finally:
        if not there:
            shutil.rmtree(fallback, ignore_errors=True)


USES = (
    f"{MLFS} mount data 2>&1",
    "findmnt -no OPTIONS data | grep ^ro,",
    no("test -w data"),
    no("test -w data/two"),
    "readlink data/.mlfs/control",
    CONTROL,
    f"{MLFS} unmount data",
    no("grep fuse.mlfs /proc/self/mountinfo"),
)


@pytest.mark.promise("records-elsewhere")
def test_a_read_only_root_and_the_variable_that_the_refusal_names(place: Path) -> None:
    make_all_read_only = (
        "mount -t tmpfs none run",
        "for m in $(cut -d' ' -f5 /proc/self/mountinfo | grep -vE '^/(proc|dev|sys)(/|$)' | grep -vxF \"$PWD/run\"); do"
        ' mount -o remount,bind,ro "$m" 2>/dev/null || true; done',
        *(no(f"touch {path}/x 2>/dev/null") for path in (place, "/run", "/tmp")),
    )
    said = shell(
        place,
        *make_all_read_only,
        no(f"{MLFS} mount data 2>&1"),
        "export XDG_RUNTIME_DIR=$PWD/run",
        *USES,
    )
    assert "set XDG_RUNTIME_DIR to a directory of yours that can be written" in said
    assert f"{place}/run/mlfs/" in said


SERVER = '"name": "server", "pid": [0-9]+'


@pytest.mark.promise("control-given-up", "outlived")
def test_a_users_mount_stays_writable_for_commands_and_says_so_and_outlives_its_server(place: Path) -> None:
    home = place / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    os.chown(place / "data", USER, USER)
    as_user = (
        f"{MLFS} mount data 2>&1",
        "findmnt -no OPTIONS data",
        CONTROL,
        no("touch data/new"),
        f"kill -9 $(grep -oE '{SERVER}' data/.mlfs/status | grep -oE '[0-9]+$')",
        "ls -lR data",
        'grep -oE \'"restarts": 1, "why": "[a-zA-Z ]+"\' data/.mlfs/status',
        f"{MLFS} unmount data",
    )
    said = shell(
        place,
        "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse",
        *opened(place, Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[2]),
        f"exec setpriv --reuid {USER} --regid {USER} --clear-groups sh -ec {shlex.quote(chr(10).join(as_user))}",
        XDG_CACHE_HOME=home,
        HOME=home,
        XDG_RUNTIME_DIR=home,
    )
    assert "the mount is rw for the kernel, since commands go through it: only root with CAP_SYS_ADMIN" in said
    assert "\nrw," in said
    assert '{"ok": true}' in said
    assert "Read-only file system" in said
    assert '"why": "was killed by SIGKILL"' in said


def opened(place: Path, *needed: Path) -> list[str]:
    """Lines that show these directories, and nothing else, where they lie below one that others may not enter."""
    closed: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(needed):
        for above in reversed(path.parents):
            if not above.stat().st_mode & 0o001:
                closed.setdefault(above, []).append(path)
                break
    lines = []
    for number, (above, paths) in enumerate(closed.items()):
        kept = [(place / f"kept{number}-{index}", path) for index, path in enumerate(paths)]
        lines += [f"mkdir {keep} && mount --rbind {path} {keep}" for keep, path in kept]
        lines.append(f"mount -t tmpfs -o mode=755 none {above}")
        lines += [f"mkdir -p {path} && mount --rbind {keep} {path}" for keep, path in kept]
    return lines
