"""The part of scripts/bench about large files: what they cost the source, beside a plain mount of the same source.

In: a directory to work in. Out: lines on stdout, a case each: seconds, and bytes and opens at the source as ratios to
what a plain mount of it (bindfs, the kernel's read-ahead) takes in the first round. Each case is read cold, again after
the kernel has given its pages up, and after a mount anew. SystemExit where a byte was wrong.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import xxhash

from benchmark.one_mount import mount, slow_source

MIB = 1 << 20
# By case, the files that it reads, in MiB. Random windows are nanoGPT's: 50 batches of 12 windows of 2 KiB.
FILES = {"files": (3, 5, 20, 65, 300), "windows": (600,), "rows": (300,), "one file": (1024,)}
WINDOWS, WINDOW_BYTES = 50 * 12, 2048
ROW_BYTES = 100_000
PORTION_BYTES = 1 << 20


class Cost(NamedTuple):
    """What one round took: seconds, and bytes and opens at the source."""

    seconds: float
    bytes: int
    opens: int


Read = Callable[[list[Path]], str]


def front_to_back(paths: list[Path]) -> str:
    """Read files as `cat` does; a digest of all bytes."""
    digest = xxhash.xxh3_64()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while portion := file.read(PORTION_BYTES):
                digest.update(portion)
    return digest.hexdigest()


def by_four(paths: list[Path]) -> str:
    """Four processes read the same files front to back at once."""
    with ProcessPoolExecutor(4) as pool:
        digests = set(pool.map(front_to_back, [paths] * 4))
    return "+".join(sorted(digests))


def windows(paths: list[Path]) -> str:
    """Small windows of mapped files, where a generator says."""
    digest, draw = xxhash.xxh3_64(), random.Random(1)
    for path in paths:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            for _ in range(WINDOWS):
                begin = draw.randrange(len(mapped) - WINDOW_BYTES)
                digest.update(mapped[begin : begin + WINDOW_BYTES])
    return digest.hexdigest()


def rows(paths: list[Path]) -> str:
    """Each row of the files once, in a random order, by pread."""
    digest, draw = xxhash.xxh3_64(), random.Random(2)
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        begins = list(range(0, os.fstat(fd).st_size, ROW_BYTES))
        draw.shuffle(begins)
        for begin in begins:
            digest.update(os.pread(fd, ROW_BYTES, begin))
        os.close(fd)
    return digest.hexdigest()


CASES: dict[str, tuple[str, Read]] = {
    "files": ("files", front_to_back),
    "windows": ("windows", windows),
    "rows": ("rows", rows),
    "one file 1 reader": ("one file", front_to_back),
    "one file 4 readers": ("one file", by_four),
}


def make(directory: Path, case: str, share: float) -> list[str]:
    """The files of a case, `share` of their size."""
    names = []
    for number, mib in enumerate(FILES[case]):
        name = f"{case.replace(' ', '-')}-{number}.bin"
        names.append(name)
        if not (directory / name).exists():
            directory.mkdir(parents=True, exist_ok=True)
            with open(directory / name, "wb") as file:
                for _ in range(max(1, int(mib * share))):
                    file.write(random.Random(f"{name}{file.tell()}").randbytes(MIB))
                file.write(b"end")
    return names


def forget(paths: list[Path]) -> None:
    """Have the kernel give up all pages of the files."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def cost(read: Read, paths: list[Path], slow: Path, right: str) -> Cost:
    """What reading takes, all that goes on behind it included."""
    (slow / ".slow_source_control").write_text('{"reset_counts": true}\n')
    began_s = time.monotonic()
    if read(paths) != right:
        raise SystemExit(f"wrong bytes: {paths}")
    seconds = time.monotonic() - began_s
    counts = json.loads((slow / ".slow_source_stats").read_text())
    return Cost(seconds, counts["bytes"], counts["opens"])


@contextmanager
def plain(source: Path, mountpoint: Path) -> Iterator[Path]:
    """A mount that passes requests on, while the context lasts."""
    mountpoint.mkdir(exist_ok=True)
    subprocess.run(["bindfs", source, mountpoint], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False)


def big(work: Path, data: Path, rounds: int, share: float = 1.0, cases: tuple[str, ...] = tuple(CASES)) -> None:
    """large files; bytes and opens at the source. Limit: 1.02 of the data cold, 0 again; cold time <= 1.05 of plain"""
    backing = work / "big"
    files = {case: make(backing, CASES[case][0], share) for case in cases}
    print("  | case | plain | mlfs cold | again | mounted anew |\n  | --- | --- | --- | --- | --- |")
    with slow_source(backing, work / "slow") as slow:
        for case in cases:
            read, total = CASES[case][1], sum((backing / name).stat().st_size for name in files[case])
            right, of = read([backing / name for name in files[case]]), files[case]
            with plain(slow, work / "plain") as at:
                first = cost(read, [at / name for name in of], slow, right)
            cells = [f"{first.seconds:.2f} s, {first.bytes / total:.3f} of the data"]
            kept = ["--ram", "0", "--ssd", f"{work / case.replace(' ', '-')}:{2 * total + 64 * MIB}"]
            with mount(slow, work / "mount", *kept) as through:
                paths = [Path(through["path"]) / name for name in of]
                cells.append(told(cost(read, paths, slow, right), first))
                settle(Path(through["path"]))
                forget(paths)
                cells.append(told(cost(read, paths, slow, right), first))
            with mount(slow, work / "mount", *kept):
                settle(work / "mount")
                cells.append(told(cost(read, paths, slow, right), first))
            print(f"  | {case} | " + " | ".join(cells) + " |", flush=True)


def settle(mountpoint: Path) -> None:
    """Wait until nothing is under way."""
    while any(json.loads((mountpoint / ".mlfs/status").read_bytes())["under_way"].values()):
        time.sleep(0.05)


def told(found: Cost, first: Cost) -> str:
    """A round, beside the plain mount's first one."""
    return (
        f"{found.seconds:.2f} s ({found.seconds / first.seconds:.2f}), bytes {found.bytes / first.bytes:.3f},"
        f" opens {found.opens}"
    )
