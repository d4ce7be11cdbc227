"""The part of scripts/bench about large files: what they cost the source, and the time that they take.

In: a directory to work in. Out: lines on stdout, a case each. Each case is read by processes of its own
(scripts/benchmark/big_readers.py): from the local disk, over a plain mount of the slow source (bindfs, the kernel's
read-ahead), over a bare pyfuse3 one that passes READs on (the least that a FUSE file system in Python costs), and
through mlfs: cold, again, and after a mount anew. All pages that the kernel has of its files, and of mlfs's copies, are
given up before each of them. A case whose library is not installed is left out. SystemExit where a
byte was wrong. BIG_CASES="rows,windows" chooses cases, and BIG_SHARE=0.1 makes all files so much smaller.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmark.big_readers import CASES, MIB, REGISTERED, paths
from benchmark.one_mount import SCRIPTS, bare_fuse, mount, slow_source


class Cost(NamedTuple):
    """What one round took: seconds, and bytes and opens at the source."""

    seconds: float
    bytes: int
    opens: int
    digest: int


def run(how: str, case: str, directory: Path) -> str:
    """Make or read a case's files, in a process of its own."""
    command = [sys.executable, str(SCRIPTS / "benchmark/big_readers.py"), how, case, str(directory)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{how} {case}: {done.stderr}")
    return done.stdout


def cost(case: str, directory: Path, slow: Path | None = None, how: str = "read") -> Cost:
    """What reading takes, and what it costs the slow source."""
    if slow is not None:
        (slow / ".slow_source_control").write_text('{"reset_counts": true}\n')
    found = json.loads(run(how, case, directory))
    counts = {"bytes": 0, "opens": 0}
    if slow is not None:
        counts = json.loads((slow / ".slow_source_stats").read_text())
    return Cost(found["seconds"], counts["bytes"], counts["opens"], found["digest"])


def forget(*directories: Path) -> None:
    """Have the kernel give up all pages of the files."""
    os.sync()  # it keeps those that are not written yet
    for path in (path for directory in directories for path in paths(directory)):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@contextmanager
def plain(source: Path, mountpoint: Path) -> Iterator[Path]:
    """A mount that passes requests on, while the context lasts."""
    mountpoint.mkdir(exist_ok=True)
    subprocess.run(["bindfs", source, mountpoint], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False)


def big(work: Path, data: Path, rounds: int) -> None:
    """large files. Wanted: cold 1.02 of the data, 1.1 of plain's bytes, 1.05 of its time; later 0, 1.1 of local time"""
    print(
        "  | case | plain: s; of the data; opens"
        " | cold: of plain's time (the least in Python); of the data, of plain's bytes; opens"
        " | again: of local time (a plain mount of the local disk, the least in Python); of the data; opens"
        " | mounted anew |\n"
        "  | --- | --- | --- | --- | --- |"
    )
    chosen = os.environ.get("BIG_CASES")
    made = dict[object, Path]()
    for case in chosen.split(",") if chosen else CASES:
        make, _, modules = CASES[case]
        if all(find_spec(module.partition(".")[0]) for module in modules):
            if make not in made:
                made[make] = work / "big" / case.replace(" ", "-")
                run("make", case, made[make])
            for _ in range(rounds if chosen else 1):
                (registered if case == "registered rows" else one)(case, work, made[make])
        else:
            print(f"  ({case}: left out, as {', '.join(modules)} cannot be imported)")


def one(case: str, work: Path, backing: Path) -> None:
    """A line of the table."""
    total, kept_in, at = sum(path.stat().st_size for path in paths(backing)), work / "kept", work / "mount"
    forget(backing)
    local = cost(case, backing)
    forget(backing)
    with plain(backing, work / "plain") as directory:
        floor = cost(case, directory)
    forget(backing)
    with bare_fuse("pass", backing, work / "bare", {}) as directory:
        python_floor = cost(case, directory)
    with slow_source(backing, work / "slow") as slow:
        with plain(slow, work / "plain") as directory:
            first = cost(case, directory, slow)
        with bare_fuse("pass", slow, work / "bare", {}) as directory:
            python = cost(case, directory, slow)
        cells = [f"{first.seconds:.2f}; {first.bytes / total:.3f}; {first.opens}"]

        def read(of: Cost) -> None:
            found = cost(case, at, slow)
            if found.digest != local.digest:
                raise SystemExit(f"wrong bytes: {case}")
            of_plain = f", {found.bytes / first.bytes:.3f}" if of is first else ""
            least = {
                1: f" ({python.seconds / first.seconds:.2f})",
                2: f" ({floor.seconds / local.seconds:.2f}, {python_floor.seconds / local.seconds:.2f})",
            }
            took = f"{found.seconds / of.seconds:.2f}{least.get(len(cells), '')}"
            cells.append(f"{took}; {found.bytes / total:.3f}{of_plain}; {found.opens}")

        flags = ["--ram", "0", "--ssd", f"{kept_in}:{2 * total + 64 * MIB}", *os.environ.get("BIG_FLAGS", "").split()]
        with mount(slow, at, *flags):
            register(at, case)
            read(first)
            settle(at)
            forget(at, kept_in)
            read(local)
        with mount(slow, at, *flags):
            settle(at)
            register(at, case)
            forget(kept_in)
            read(local)
    shutil.rmtree(kept_in)
    print(f"  | {case} | " + " | ".join(cells) + " |", flush=True)


def registered(case: str, work: Path, backing: Path) -> None:
    """Rows in a sampler's order, straight from the source and through mlfs, which knows the order. A read takes 2 ms at
    the source as an open does. Limit: the first epoch >= 3 times as fast as direct; the most is what threads give that
    read the same rows ahead of their reader"""
    total = sum(path.stat().st_size for path in paths(backing))
    right = json.loads(run("read", case, backing))["digest"]
    with slow_source(backing, work / "slow") as slow:
        (slow / ".slow_source_control").write_text('{"read_latency_s": 0.002}\n')
        direct = cost(case, slow, slow)
        least = cost(case, slow, slow, "ahead")
        with mount(slow, work / "mount", "--ram", str(2 * total)) as mounted:
            register(Path(mounted["path"]), case)
            found = cost(case, work / "mount", slow)
            status = json.loads((work / "mount/.mlfs/status").read_bytes())
    if found.digest != right:
        raise SystemExit(f"wrong bytes: {case}")
    agreement, reads = status["jobs"][0]["agreement"], status["requests"]["read"]
    faster, most = direct.seconds / found.seconds, direct.seconds / least.seconds
    print(
        f"  | {case} | direct {direct.seconds:.2f} s | {found.seconds:.2f} s, {faster:.2f} times as fast (the most"
        f" {most:.2f}),"
        f" {found.bytes / total:.3f} of the data, agreement {agreement:.3f}, READs {reads} | | |",
        flush=True,
    )


def register(mountpoint: Path, case: str) -> None:
    """Tell mlfs the order of a case, if it is to know it."""
    if case in REGISTERED:
        (mountpoint / ".mlfs/control").write_text(json.dumps({"op": "register"} | REGISTERED[case]) + "\n")


def settle(mountpoint: Path) -> None:
    """Wait until nothing is under way."""
    while any(json.loads((mountpoint / ".mlfs/status").read_bytes())["under_way"].values()):
        time.sleep(0.05)
