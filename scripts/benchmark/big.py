"""The part of scripts/bench about large files: what they cost the source, beside a plain mount of the same source.

In: a directory to work in. Out: lines on stdout, a case each: seconds, and bytes and opens at the source, as shares of
the data and beside what a plain mount of it (bindfs, the kernel's read-ahead) takes in the first round. Each case is
read cold, again after the kernel has given its pages up, and after a mount anew, by processes of its own
(scripts/benchmark/big_readers.py). A case whose library is not installed is left out. SystemExit where a byte was
wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmark.big_readers import CASES, MIB, REGISTERED, paths
from benchmark.one_mount import SCRIPTS, mount, slow_source


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


def cost(case: str, directory: Path, slow: Path) -> Cost:
    """What reading takes, and what it costs the source."""
    (slow / ".slow_source_control").write_text('{"reset_counts": true}\n')
    found = json.loads(run("read", case, directory))
    counts = json.loads((slow / ".slow_source_stats").read_text())
    return Cost(found["seconds"], counts["bytes"], counts["opens"], found["digest"])


def forget(directory: Path) -> None:
    """Have the kernel give up all pages of the files."""
    for path in paths(directory):
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
    """large files; bytes and opens at the source. Limit: 1.02 of the data cold, 0 again; cold time <= 1.05 of plain"""
    print("  | case | plain, of the data | mlfs cold | again | mounted anew |\n  | --- | --- | --- | --- | --- |")
    chosen = os.environ.get("BIG_CASES")
    for case in chosen.split(",") if chosen else CASES:
        modules = CASES[case][2]
        if all(find_spec(module.partition(".")[0]) for module in modules):
            name = case.replace(" ", "-")
            run("make", case, work / "big" / name)
            for _ in range(rounds if chosen else 1):
                (registered if case == "registered rows" else one)(case, work, name)
        else:
            print(f"  ({case}: left out, as {', '.join(modules)} cannot be imported)")


def one(case: str, work: Path, name: str) -> None:
    """A line of the table."""
    backing = work / "big" / name
    total, cells = sum(path.stat().st_size for path in paths(backing)), list[str]()
    with slow_source(backing, work / "slow") as slow:
        right = json.loads(run("read", case, backing))["digest"]
        with plain(slow, work / "plain") as at:
            first = cost(case, at, slow)
        cells.append(f"{first.seconds:.2f} s, {first.bytes / total:.3f}, opens {first.opens}")

        def read(directory: Path) -> None:
            found = cost(case, directory, slow)
            if found.digest != right:
                raise SystemExit(f"wrong bytes: {case}")
            cells.append(
                f"{found.seconds:.2f} s ({found.seconds / first.seconds:.2f}),"
                f" {found.bytes / total:.3f} ({found.bytes / first.bytes:.3f}), opens {found.opens}"
            )

        kept = [
            "--ram",
            "0",
            "--ssd",
            f"{work / name}:{2 * total + 64 * MIB}",
            *os.environ.get("BIG_FLAGS", "").split(),
        ]
        with mount(slow, work / "mount", *kept):
            register(work / "mount", case)
            read(work / "mount")
            settle(work / "mount")
            forget(work / "mount")
            read(work / "mount")
        with mount(slow, work / "mount", *kept):
            settle(work / "mount")
            register(work / "mount", case)
            read(work / "mount")
    print(f"  | {case} | " + " | ".join(cells) + " |", flush=True)


def registered(case: str, work: Path, name: str) -> None:
    """Rows in a sampler's order, straight from the source and through mlfs, which knows the order. A read takes 2 ms at
    the source as an open does. Limit: the first epoch >= 3 times as fast as direct"""
    backing = work / "big" / name
    total = sum(path.stat().st_size for path in paths(backing))
    right = json.loads(run("read", case, backing))["digest"]
    with slow_source(backing, work / "slow") as slow:
        (slow / ".slow_source_control").write_text('{"read_latency_s": 0.002}\n')
        direct = cost(case, slow, slow)
        with mount(slow, work / "mount", "--ram", str(2 * total)) as mounted:
            register(Path(mounted["path"]), case)
            found = cost(case, work / "mount", slow)
            status = json.loads((work / "mount/.mlfs/status").read_bytes())
    if found.digest != right:
        raise SystemExit(f"wrong bytes: {case}")
    agreement, reads = status["jobs"][0]["agreement"], status["requests"]["read"]
    faster = direct.seconds / found.seconds
    print(
        f"  | {case} | direct {direct.seconds:.2f} s | {found.seconds:.2f} s, {faster:.2f} times as fast,"
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
