"""The demo's training over several ways to the same slow source, side by side: what each takes and what it costs.

    scripts/bench versus [--rounds 1] [--files 1500] [--picture docs/pictures/versus.png]

The ways: the slow source itself; bindfs and mergerfs (no cache); rclone's mount with a full cache; NFS with
cachefilesd; a copy made beforehand, whose time counts; mlfs without a registered job and with one; a local disk. Two
cases: small JPEGs, and a thirtieth as many big arrays (.npy). Ranks wait, with torch loaded, until a way begins to be
made ready: all that happens from then on counts, and nothing has a head start. A way that the machine cannot go stands
in the table with what it lacks for it. Out: a table a case and what others do better; asked for, a picture. The
training is scripts/train_demo.py in scripts/benchmark/versus_rank.py, the source scripts/slow_source.py. Called by
scripts/benchmark/__main__.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from demo import end, slow_source, source_counts
from make_dataset import Wanted, make_dataset
from rich.console import Console

from benchmark import versus_nfs
from benchmark.versus_table import LOCAL, MLFS, Figures, draw, middle, others_do_better, table

SCRIPTS = Path(__file__).resolve().parents[1]
RANKS, SEED = 2, 0
OPEN_LATENCY, BANDWIDTH = "2ms", "100M"
ARRAY_SHAPE = (1024, 1344, 3)  # 4.1 MB
CLASSES = 8
LEAST_ARRAYS = 32  # of 10 arrays, mlfs told only half of the reads which place of the order they were
READY_S, DIGESTED_S = 60.0, 10.0
MB = 1e6
UNTOLD = "mlfs, nothing registered"


@dataclass(frozen=True)
class Case:
    """A data set and the job over it."""

    title: str
    data: Path
    epochs: int
    batch_size: int
    extensions: str


@dataclass(frozen=True)
class Place:
    """Where a way is made ready: the source in front of which it stands, and directories of its own."""

    source: Path
    seen: Path
    """A mount point, or where a copy goes."""
    kept: Path
    """What the way keeps on disk lies below this."""
    case: Case


@dataclass
class Open:
    """A way that is ready: where the data are, who serves, whatever else is to be said."""

    data: Path
    pids: list[int]
    agreement: Callable[[], float] | None = None


Way = Callable[[Place], contextlib.AbstractContextManager[Open]]


class LeftOut(Exception):
    """A way that this machine cannot go, and why."""


# -- ways to the data


@contextmanager
def itself(place: Place) -> Iterator[Open]:
    yield Open(place.source, [])


@contextmanager
def local_disk(place: Place) -> Iterator[Open]:
    """The files that the slow source shows, not in the page cache at first."""
    for path in files_below(place.case.data):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    yield Open(place.case.data, [])


@contextmanager
def copied(place: Place) -> Iterator[Open]:
    copy = place.kept / "copy"
    words = ["rsync", "-a", f"{place.source}/", copy] if shutil.which("rsync") else ["cp", "-a", place.source, copy]
    subprocess.run(words, check=True)
    yield Open(copy, [])


@contextmanager
def served(place: Place, *words: str | Path) -> Iterator[Open]:
    """A file system whose server stays in the foreground."""
    log = place.kept.parent / f"{place.seen.name}.log"
    with open(log, "wb") as errors:
        process = subprocess.Popen(words, stdout=errors, stderr=errors, text=True, start_new_session=True)
    try:
        until = time.monotonic() + READY_S
        while not os.path.ismount(place.seen):
            if process.poll() is not None or time.monotonic() > until:
                said = log.read_text(errors="replace").strip() or "it says nothing"
                raise LeftOut(f"{words[0]} does not mount: {said.splitlines()[-1]}")
            time.sleep(0.01)
        yield Open(place.seen, [process.pid])
    finally:
        subprocess.run(["fusermount3", "-u", "-z", place.seen], check=False, stderr=subprocess.DEVNULL)
        end(process)


def bindfs(place: Place) -> contextlib.AbstractContextManager[Open]:
    return served(place, "bindfs", "-f", "-r", place.source, place.seen)


def mergerfs(place: Place) -> contextlib.AbstractContextManager[Open]:
    return served(place, "mergerfs", "-f", "-o", "ro,cache.files=off", place.source, place.seen)


def rclone(place: Place) -> contextlib.AbstractContextManager[Open]:
    """All that is read stays on disk; names are looked up once, as the data do not change."""
    lasting = ["--dir-cache-time=24h", "--attr-timeout=24h", "--vfs-fast-fingerprint", "--no-checksum"]
    cache = ["--vfs-cache-mode=full", "--vfs-cache-max-age=24h", f"--cache-dir={place.kept}"]
    plain = ["--config=/dev/null", "--read-only"]
    return served(place, "rclone", "mount", f":local:{place.source}", place.seen, *cache, *lasting, *plain)


@contextmanager
def nfs(place: Place) -> Iterator[Open]:
    if lacking := versus_nfs.why_not():
        raise LeftOut(lacking)
    with ExitStack() as stack:
        try:
            server = stack.enter_context(versus_nfs.mounted(place.source, place.seen, place.kept))
        except OSError as error:
            raise LeftOut(str(error)) from None
        yield Open(place.seen, [server])


@contextmanager
def mlfs(place: Place, registered: bool = False) -> Iterator[Open]:
    def run(*words: str | Path) -> None:
        command = [sys.executable, "-m", "mlfs.cli.main", *words]
        environment = os.environ | {"XDG_CACHE_HOME": str(place.kept)}
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=SCRIPTS.parent, env=environment)
        if done.returncode:
            raise SystemExit(f"versus: mlfs {' '.join(map(str, words))}: {done.stderr}")

    def agreement() -> float:
        """The share of all reads that came as predicted. mlfs looks at reads in batches, some time after them."""
        wanted = place.case.epochs * -(-len(files_below(place.case.data)) // RANKS) * RANKS
        until = time.monotonic() + DIGESTED_S
        while True:
            jobs = status(place.seen)["jobs"]  # none where nothing was registered, and no order found
            if sum(job["observed_opens"] for job in jobs) >= wanted or time.monotonic() > until:
                epochs = [told for job in jobs for told in job["agreement_by_epoch"].values()]
                agreed: int = sum(told["agreed_opens"] for told in epochs)
                return agreed / wanted
            time.sleep(0.1)

    run("mount", place.source, place.seen)
    try:
        if registered:
            job = f"--seed {SEED} --epochs {place.case.epochs} --batch-size {place.case.batch_size}"
            whole = f"{job} --world-size {RANKS} --extensions {place.case.extensions}"
            run("register", place.seen, *whole.split())
        yield Open(place.seen, [status(place.seen)["pid"]], agreement)
    finally:
        run("unmount", place.seen, "--force")


def registered(place: Place) -> contextlib.AbstractContextManager[Open]:
    return mlfs(place, registered=True)


# What each row is called -> how it is made ready, and the program that it needs. A package has its program's name.
WAYS: dict[str, tuple[Way, str]] = {
    "the slow source itself": (itself, ""),
    "bindfs": (bindfs, "bindfs"),
    "mergerfs": (mergerfs, "mergerfs"),
    "rclone, full cache": (rclone, "rclone"),
    "NFS with cachefilesd": (nfs, ""),
    "a copy beforehand": (copied, ""),
    UNTOLD: (mlfs, ""),
    MLFS: (registered, ""),
    LOCAL: (local_disk, ""),
}


def missing() -> dict[str, str]:
    """The ways that cannot be gone here for want of a program, and what gets it."""
    if shutil.which("rsync") is None:
        print("  the copy is made by cp (apt-get install rsync for rsync)", flush=True)
    needed = {name: program for name, (_, program) in WAYS.items() if program}
    return {
        name: f"not installed (apt-get install {program})"
        for name, program in needed.items()
        if shutil.which(program) is None
    }


# -- one run


class Ranks:
    """The training processes. They live through all runs, so that loading torch counts in none."""

    def __init__(self, work: Path) -> None:
        self.log = work / "ranks.log"
        reading, writing = os.pipe()
        self.lines = os.fdopen(reading)
        command = [sys.executable, SCRIPTS / "benchmark/versus_rank.py", work / "rendezvous"]
        self.processes = []
        with open(self.log, "wb") as errors:
            for rank in range(RANKS):
                own = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
                environment = os.environ | own | {"PYTHONPATH": str(SCRIPTS)}  # where the training script lies
                self.processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=writing,
                        stderr=errors,
                        text=True,
                        env=environment,
                        start_new_session=True,
                    )
                )
        os.close(writing)
        self.wait("ready")

    def wait(self, word: str) -> list[dict[str, Any]]:
        """What the ranks print until all of them have said the word."""
        said: list[dict[str, Any]] = []
        missing = RANKS
        while missing:
            line = self.lines.readline()
            if not line:
                raise SystemExit(f"versus: the training ended: {self.log.read_text(errors='replace')}")
            said.append(json.loads(line))
            missing -= word in said[-1]
        return said

    def train(self, data: Path, case: Case) -> list[dict[str, Any]]:
        wanted = {"data": str(data), "epochs": case.epochs, "batch_size": case.batch_size}
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(wanted) + "\n")
            process.stdin.flush()
        return self.wait("done")

    def close(self) -> None:
        for process in self.processes:
            end(process)
        self.lines.close()


def run(name: str, way: Way, place: Place, ranks: Ranks, root_fd: int) -> tuple[Figures, str]:
    """Train over one way. Returns its figures and the final loss."""
    for directory in (place.seen, place.kept):
        directory.mkdir()
    for path in files_below(place.case.data):
        path.read_bytes()  # the source's own disk is no part of this
    source_counts(root_fd, reset=True)
    cached, began = page_cache_bytes(), time.time()
    with way(place) as ready:
        if name == LOCAL:
            cached, began = page_cache_bytes(), time.time()
        ready_s = time.time() - began
        lines = ranks.train(ready.data, place.case)
        all_s = time.time() - began
        memory, grown = sum(map(memory_bytes, ready.pids)), page_cache_bytes() - cached
        disk, source = disk_bytes(place.kept), source_counts(root_fd)["bytes"]
        agreement = ready.agreement() if ready.agreement else 1.0
    if name == UNTOLD:
        print(f"  {name}: {100 * agreement:.1f} % of all reads came as the order that it found says", flush=True)
    elif agreement < 0.99:
        print(
            f"  NOT A FAIR ROW: {name}: only {100 * agreement:.1f} % of the reads were seen to come as predicted",
            flush=True,
        )
    shutil.rmtree(place.kept)
    epochs = [line for line in lines if "epoch" in line]
    of_epoch = [max(line["seconds"] for line in epochs if line["epoch"] == at) for at in range(place.case.epochs)]
    first_batch_s = max(line["first_batch_at"] for line in epochs if line["epoch"] == 0) - began
    amounts = (source / MB, memory / MB, grown / MB, disk / MB)
    loss = next(line["final_loss"] for line in lines if "final_loss" in line)
    return Figures(name, ready_s, first_batch_s, tuple(of_epoch), all_s, *amounts), loss


def memory_bytes(pid: int) -> int:
    """Of a process and its children; what several of them share is counted once.

    Memory files count by what they hold: mlfs keeps samples in some that are not mapped, and so stand in no process's
    resident memory.
    """
    private, mapped = 0, 0
    files: dict[int, int] = {}
    for each in with_children(pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            told = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
            private += told["Pss"] - told["Pss_Shmem"]
            mapped += told["Pss_Shmem"]
            for link in Path(f"/proc/{each}/fd").iterdir():
                if os.readlink(link).startswith("/memfd:"):
                    found = link.stat()
                    files[found.st_ino] = found.st_blocks * 512
    return private + max(mapped, sum(files.values()))


def with_children(pid: int) -> list[int]:
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return [pid, *(each for child in children for each in with_children(int(child)))]


def page_cache_bytes() -> int:
    """Of the whole machine, without shared memory, in which mlfs keeps samples: that is its process's."""
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(told["Cached"].split()[0]) - int(told["Shmem"].split()[0])) * 1024


def disk_bytes(directory: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*/*") if path.is_file())


def status(mountpoint: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((mountpoint / ".mlfs/status").read_text())
    return told


# -- all of it


def make_arrays(directory: Path, count: int) -> None:
    """Big samples: arrays of pixels, each class around a colour of its own."""
    draw_from = np.random.default_rng(SEED)
    noise = draw_from.integers(0, 80, ARRAY_SHAPE, dtype=np.uint8)
    colours = draw_from.integers(0, 170, (CLASSES, 3), dtype=np.uint8)
    for index in range(count):
        path = directory / f"class{index % CLASSES}" / f"array_{index:05d}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.roll(noise, index * 7919) + colours[index % CLASSES])


def cases_in(work: Path, files: int) -> list[Case]:
    """Make both data sets, and have them written: writing back later would disturb what is measured."""
    small, big = work / "small", work / "big"
    make_dataset(small, Wanted(files, classes=20, kilobytes=110, seed=SEED), Console(quiet=True))
    arrays = max(LEAST_ARRAYS, files // 30)
    make_arrays(big, arrays)
    os.sync()
    small_title = f"{files:,} JPEGs of 110 kB"
    big_title = f"{arrays:,} arrays of {np.prod(ARRAY_SHAPE) / MB:.1f} MB"
    return [Case(small_title, small, 4, 32, "jpg"), Case(big_title, big, 4, 4, "npy")]


def side_by_side(case: Case, work: Path, ranks: Ranks, rounds: int, left_out: dict[str, str]) -> list[Figures]:
    """All ways over one data set, each after the other in every round; what cannot be gone is added to `left_out`."""
    source = work / f"source-{case.data.name}"
    source.mkdir()
    taken: dict[str, list[Figures]] = {name: [] for name in WAYS}
    losses = set()
    with slow_source(case.data, source, argparse.Namespace(open_latency=OPEN_LATENCY, bandwidth=BANDWIDTH)) as root_fd:
        for path in source.glob("*/*"):
            path.stat()  # the kernel knows all names, so that the first way does not pay for the others
        for at in range(rounds):
            for index, (name, (way, _)) in enumerate(WAYS.items()):
                if name in left_out:
                    continue
                tag = f"{case.data.name}-{at}-{index}"
                place = Place(source, work / f"seen-{tag}", work / f"kept-{tag}", case)
                try:
                    figures, loss = run(name, way, place, ranks, root_fd)
                except LeftOut as reason:
                    left_out[name] = str(reason)
                    continue
                taken[name].append(figures)
                losses.add(loss)
    if len(losses) > 1:
        raise SystemExit(f"versus: the final losses differ, so that not all ways gave the same bytes: {losses}")
    return [middle(rows) for rows in taken.values() if rows]


def versus(work: Path, files: int, rounds: int, picture: Path | None) -> None:
    """the demo's training over several ways to the same slow source, side by side"""
    left_out = missing()
    told: list[tuple[str, Sequence[Figures]]] = []
    ranks = Ranks(work)
    try:
        for case in cases_in(work, files):
            rows = side_by_side(case, work, ranks, rounds, left_out)
            told.append((case.title, rows))
            print(f"\n  {case.title}, {case.epochs} epochs; the source: {OPEN_LATENCY} an open, {BANDWIDTH} bytes/s")
            print("\n".join(f"  {line}" for line in [*table(rows, left_out), others_do_better(rows)]), flush=True)
    finally:
        ranks.close()
    if picture is not None:
        draw(told, picture)
        print(f"\n  {picture}")
