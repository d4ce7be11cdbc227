"""A user namespace, a read-only root, a user without rights: it mounts all the same, and says what is not as elsewhere.

Each runs in mount namespaces of its own, by a shell.
"""

from __future__ import annotations

import json
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
from support.trees import content, image_folder, make_tree

from mountd.silent import NO_NAMES, TELLS_NO_NAMES

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
    os.chown(place / "data", USER, USER)
    said = as_user(
        place,
        f"{MLFS} mount data 2>&1",
        "findmnt -no OPTIONS data",
        CONTROL,
        no("touch data/new"),
        f"kill -9 $(grep -oE '{SERVER}' data/.mlfs/status | grep -oE '[0-9]+$')",
        "ls -lR data",
        'grep -oE \'"restarts": 1, "why": "[a-zA-Z ]+"\' data/.mlfs/status',
        f"{MLFS} unmount data",
    )
    assert "the mount is rw for the kernel, since commands go through it: only root with CAP_SYS_ADMIN" in said
    assert "\nrw," in said
    assert '{"ok": true}' in said
    assert "Read-only file system" in said
    assert '"why": "was killed by SIGKILL"' in said


FOLLOWED = """
import json, os, signal
import torch  # once for all ranks, which are forks
from support.fuse import wait_until
from support.training import train

def status():
    with open("view/.mlfs/status") as file:
        return json.load(file)

shape = {"ranks": 2, "workers": 2, "batch_size": 4, "seed": 3}
seen = train("view", epochs=2, **shape)
wait_until(lambda: status()["jobs"][0]["observed_opens"] >= 398)
os.kill(status()["pid"], signal.SIGKILL)
seen = [[*a, *b] for a, b in zip(seen, train("view", epochs=2, first_epoch=2, **shape))]
assert seen == train("images", epochs=4, **shape | {"workers": 0})
wait_until(lambda: status()["jobs"][0]["state"] == "finished")
now = status()
print(json.dumps([now["channel"]["name"], now["channel"]["why"], now["jobs"][0]["agreement"], now["messages"]]))
"""


@pytest.mark.promise("view-silent")
def test_a_users_silent_mount_is_told_of_opens_without_names_and_follows_what_is_registered(place: Path) -> None:
    files = image_folder(classes=2, files=200, size=3_000)
    make_tree(place / "images", {name: content(name, size) for name, size in files.items()})
    (place / "view").mkdir()
    os.chown(place / "view", USER, USER)
    register = "--sampler torch-distributed --world-size 2 --seed 3 --epochs 4 --batch-size 4"
    python = shlex.quote(sys.executable)
    channel = f"""{python} -c 'import json; print(json.load(open("view/.mlfs/status"))["channel"]["why"])'"""
    said = as_user(
        place,
        f"{MLFS} mount images view --channel auto 2>&1",
        channel,
        f"""{python} -c 'import json, os; os.kill(json.load(open("view/.mlfs/status"))["pid"], 9)'""",
        channel,
        f"{MLFS} unmount view",
        f"{MLFS} mount images view --channel silent 2>&1",
        no("test -w view/class0"),
        f"{MLFS} register view {register}",
        f"{python} -c {shlex.quote(FOLLOWED)}",
        f"{MLFS} unmount view",
        PYTHONPATH=Path(__file__).parents[1],
    )
    assert said.splitlines().count(NO_NAMES) == 2  # of both servers
    name, why, agreement, messages = json.loads(next(line for line in said.splitlines() if line.startswith("[")))
    assert (name, why) == ("silent", TELLS_NO_NAMES)
    assert agreement >= 0.97
    assert [text for text in messages if "only root is told" in text]
    assert "mlfs register and the other commands work all the same" in said


def as_user(place: Path, *lines: str, **variables: Path | str) -> str:
    """What is said by lines that a user without rights runs, who may use FUSE."""
    home = place / "home"
    home.mkdir()
    os.chown(home, USER, USER)
    return shell(
        place,
        "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse",
        *opened(place, Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[2]),
        f"exec setpriv --reuid {USER} --regid {USER} --clear-groups sh -ec {shlex.quote(chr(10).join(lines))}",
        XDG_CACHE_HOME=home,
        HOME=home,
        XDG_RUNTIME_DIR=home,
        **variables,
    )


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
