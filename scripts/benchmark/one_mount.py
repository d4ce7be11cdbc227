"""The parts of scripts/bench that measure one mount: staged and demand reads, a registered job, prefetching, walks.

In: a directory to work in, files of random bytes, how many rounds medians are taken of. Out: lines on stdout, each
figure beside its limit, measured in the same run; SystemExit where something else was measured. The limits of a FUSE
file system and of plain loops come from scripts/benchmark/floor.py, in processes of their own.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import multiprocessing as mp
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmark.counters import MOST, NEARLY_ALL, PAGE_CACHE, PFS, Since, must_be, must_be_followed, settled

SAMPLE_BYTES = 110_000
MANY = 3  # how often the files are read where once would be over before a rate can be measured
SCRIPTS = Path(__file__).resolve().parent.parent
Loop = Callable[[str], int]


def make_files(directory: Path, count: int) -> Path:
    """Files of random bytes in ImageFolder's layout, ten classes; read once, so that they lie in the page cache."""
    for index in range(count):
        path = directory / f"class{index % 10}" / f"{index:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(SAMPLE_BYTES))
    return directory


@contextmanager
def mount(source: Path, mountpoint: Path, *flags: str) -> Iterator[dict[str, str]]:
    """A mount of mlfs while the context lasts."""
    mountpoint.mkdir(exist_ok=True)
    mlfs("mount", str(source), str(mountpoint), "--infer", "off", *flags)
    try:
        yield {"path": str(mountpoint)}
    finally:
        mlfs("unmount", str(mountpoint), "--force")


def mlfs(*argv: str) -> None:
    """Run the mlfs command; its failure ends the benchmark."""
    command = [sys.executable, "-m", "mlfs.cli.main", *argv]
    done = subprocess.run(command, cwd=SCRIPTS.parent, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"mlfs {' '.join(argv)}: {done.stderr}")


@contextmanager
def slow_source(backing: Path, mountpoint: Path, latency: str = "2ms", bandwidth: str = "100M") -> Iterator[Path]:
    """A mounted file system with a latency per open and a bandwidth."""
    mountpoint.mkdir(exist_ok=True)
    flags = ["--open-latency", latency, "--bandwidth", bandwidth]
    subprocess.run([sys.executable, SCRIPTS / "slow_source.py", backing, mountpoint, *flags], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False)


def opens_at(slow: Path) -> int:
    """Files that the slow source has opened, by its own count."""
    opens: int = json.loads((slow / ".slow_source_stats").read_text())["opens"]
    return opens


def status(mountpoint: Path) -> dict:
    """What the mount says of itself."""
    return json.loads((mountpoint / ".mlfs/status").read_text())


def files_below(directory: Path) -> list[str]:
    """All sample files, sorted."""
    return sorted(str(path) for path in directory.glob("*/*.jpg"))


def read_os(path: str) -> int:
    """os.open and os.read."""
    fd = os.open(path, os.O_RDONLY)
    data = os.read(fd, SAMPLE_BYTES + 1)
    os.close(fd)
    return len(data)


def read_builtin(path: str) -> int:
    """open() and read(), as most loaders do."""
    with open(path, "rb") as file:
        return len(file.read())


@contextmanager
def overlaid(mountpoint: Path) -> Iterator[int]:
    """A process of `mlfs run`, while the context lasts: who enters its mount namespace reads through the overlay."""
    command = [sys.executable, "-m", "mlfs.cli.main", "run", str(mountpoint), "--", "sh", "-c", "echo runs; exec cat"]
    with subprocess.Popen(command, cwd=SCRIPTS.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        must_be("mlfs run", process.stdout.readline() == b"runs\n", "COMMAND does not run")
        try:
            yield process.pid
        finally:
            process.stdin.close()


@contextmanager
def overlay(below: Path, mountpoint: Path) -> Iterator[Path]:
    """A read-only overlay over a directory."""
    for directory in (mountpoint, empty := mountpoint.with_suffix(".empty")):
        directory.mkdir(exist_ok=True)
    layers = f"ro,lowerdir={below}:{empty}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, mountpoint], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run(["umount", "-l", mountpoint], check=True)


def enter(pid: int) -> None:
    """Have the mounts of that process, of one thread; 0: one's own."""
    if pid:
        fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
        must_be("the mounts of mlfs run", not ctypes.CDLL(None).setns(fd, 0), "they cannot be entered")
        os.close(fd)


def _reader(
    paths: list[str], read: Loop, ready: mp.Barrier, times: mp.Queue, within: int  # type: ignore[valid-type]
) -> None:  # fmt: skip
    enter(within)
    ready.wait()
    began = time.time()
    for path in paths:
        read(path)
    times.put((began, time.time(), resource.getrusage(resource.RUSAGE_SELF).ru_inblock))


def files_a_second(paths: list[str], readers: int, read: Loop, from_memory: bool = False, within: int = 0) -> float:
    """Read all paths once, dealt to `readers` processes.

    Args:
        from_memory: hardly any disk may be read for that. within: the process whose mounts they see; 0: this one.
    """
    ready, times = mp.Barrier(readers), mp.Queue()
    shares = [(paths[index::readers], read, ready, times, within) for index in range(readers)]
    processes = [mp.Process(target=_reader, args=share) for share in shares]
    for process in processes:
        process.start()
    spans = [times.get() for _ in processes]
    for process in processes:
        process.join()
    blocks = sum(blocks for _, _, blocks in spans)  # of 512 bytes
    few = blocks * 512 <= (1 - NEARLY_ALL) * len(paths) * SAMPLE_BYTES
    must_be("reads from page cache", few or not from_memory, f"{blocks} blocks of a disk were read")
    return len(paths) / (max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans))


OURS = ("mlfs", "silent", "run")


def staged_reads(work: Path, data: Path, rounds: int) -> None:
    """staged reads, files/s; limit: ext4 from page cache (1.0). Wanted: silent, run >= 0.8, open 2 readers >= 0.25"""
    plain, through, silent = work / "bindfs", work / "mount", work / "silent"
    plain.mkdir(exist_ok=True)
    subprocess.run(["bindfs", data, plain], check=True)
    try:
        with (
            mount(data, through, "--ram", "2G"),
            mount(data, silent, "--ram", "2G", "--channel", "silent"),
            bare_mount(data, work / "bare") as bare,
            bare_mount(data, work / "unasked", 12 * rounds * MANY * len(files_below(data))) as unasked,
            ExitStack() as more,
        ):
            places = {"ext4": data, "mlfs": through, "silent": silent, "bindfs": plain, "bare": bare, "floor": unasked}
            within = 0
            channel = status(silent)["channel"]
            if channel["name"] != "silent":
                print(f"  the silent channel is not measured: {channel['why']}")
                del places["silent"]
            elif os.geteuid() == 0:
                places |= {"run": work / "run", "overlay": more.enter_context(overlay(unasked, work / "overlay"))}
                more.enter_context(mount(data, places["run"], "--ram", "2G", "--channel", "silent"))
                within = more.enter_context(overlaid(places["run"]))
            for path in itertools.chain(*map(files_below, places.values())):
                read_os(path)
            for place in filter(places.get, OURS):  # copies are kept: that is no cost of a staged read
                settled(partial(status, places[place]))
            for readers in (1, 2, 4):
                for name, read in (("os.open", read_os), ("open()", read_builtin)):
                    _staged_round(places, readers, name, read, rounds, within)
    finally:
        subprocess.run(["fusermount3", "-u", "-z", plain], check=False)


def _staged_round(
    mounts: dict[str, Path], readers: int, name: str, read: Loop, rounds: int, within: int
) -> None:  # fmt: skip
    places = {place: files_below(top) for place, top in mounts.items()}
    rates: dict[str, list[float]] = {place: [] for place in places}
    ours = [*filter(mounts.get, OURS)]
    since = {place: Since(partial(status, mounts[place])) for place in ours}
    cpu_s = dict.fromkeys(ours, 0.0)
    for _ in range(rounds):
        for place, paths in places.items():
            pid = status(mounts[place])["pid"] if place in ours else os.getpid()
            before_s = cpu_seconds(pid)
            of_run = within if place == "run" else 0
            rates[place].append(files_a_second(MANY * paths, readers, read, place == "ext4", of_run))
            if place in ours:
                settled(partial(status, mounts[place]))
                cpu_s[place] += cpu_seconds(pid) - before_s
    count = rounds * MANY * len(places["ext4"])
    middle = {place: statistics.median(values) for place, values in rates.items()}
    of = {place: value / middle["ext4"] for place, value in middle.items()}
    of_bindfs = middle["mlfs"] / middle["bindfs"]
    print(
        f"  {readers} readers {name:8} ext4 {middle['ext4']:7.0f}"
        f"  bindfs {of['bindfs']:.2f} of ext4  bare pyfuse3 {of['bare']:.2f}",
        flush=True,
    )
    wanted = {"mlfs": 0.25, "silent": 0.8, "run": 0.8}
    for place in ours:
        counted = since[place].now()
        # Opens of one file by one process within a moment may be told as one on the silent channel.
        fewest = count if place == "mlfs" else MOST * count
        must_be(
            f"{count} staged reads",
            fewest <= counted.all_reads <= count
            and counted.by(PAGE_CACHE) >= MOST * count
            and not counted.fetches.get(PFS),
            counted,
        )
        asked = {kind: round(of / count, 2) for kind, of in counted.requests.items() if of >= 0.01 * count}
        beside = f"mlfs/bindfs {of_bindfs:.2f} (of 1.3: {of_bindfs / 1.3:.2f})"
        if place != "mlfs":
            floor = "floor" if place == "silent" else "overlay"
            beside = f"{'an overlay of ' * (place == 'run')}FUSE without OPEN that nobody is told of: {of[floor]:.2f}"
        print(
            f"    {place:6} {middle[place]:7.0f}, {of[place]:.2f} of ext4 (of {wanted[place]}:"
            f" {of[place] / wanted[place]:.2f})  {beside}  requests a read {asked}"
            f"  daemon {cpu_s[place] / count * 1e6:.1f} us a read",
            flush=True,
        )


@contextmanager
def bare_fuse(part: str, source: Path, mountpoint: Path, told: dict[str, int]) -> Iterator[Path]:
    """A bare pyfuse3 file system, see scripts/benchmark/floor.py; `told` gets what it was asked for."""
    mountpoint.mkdir(exist_ok=True)
    command = [sys.executable, str(SCRIPTS / "benchmark/floor.py"), part, str(source), str(mountpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield mountpoint
        finally:
            subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False)
        told.update(json.loads(process.stdout.readline()))


@contextmanager
def bare_mount(source: Path, mountpoint: Path, untold: int = 0) -> Iterator[Path]:
    """A bare pyfuse3 file system that answers opens as mlfs does, and does nothing else.

    Args:
        untold: the reads that will be made, if it is to answer no opens.
    """
    told: dict[str, int] = {}
    with bare_fuse("unasked" if untold else "serve", source, mountpoint, told):
        yield mountpoint
    few = (1 - NEARLY_ALL) * (untold or told["opens"])
    must_be("a file system with all pages in place", told["reads"] <= few, told)


def demand_reads(work: Path, data: Path, rounds: int) -> None:
    """demand reads of the slow source (2 ms an open, 100 MB/s), ms a file. Wanted: at most 0.5 ms added"""
    with (
        slow_source(data, work / "slow") as slow,
        mount(slow, work / "mount", "--ram", "2G"),
        bare_mount(slow, work / "bare") as bare,
    ):
        paths = {"direct": files_below(slow), "mlfs": files_below(work / "mount"), "bare": files_below(bare)}
        for path in itertools.chain(*paths.values()):
            os.stat(path)  # the kernel knows all names then, so that only reading is measured
        # In an order that nobody can foresee: what is learned from reads before would be fetched ahead.
        order = random.SystemRandom().sample(range(len(paths["direct"])), len(paths["direct"]))
        paths = {place: [files[at] for at in order] for place, files in paths.items()}
        share = len(order) // rounds
        since, before = Since(lambda: status(work / "mount")), opens_at(slow)
        spent: dict[str, list[float]] = {place: [] for place in paths}
        for index in range(rounds):
            part = slice(index * share, (index + 1) * share)
            for place, files in paths.items():
                spent[place].append(1000 / files_a_second(files[part], 1, read_os))
        counted, count = since.now(), share * rounds
        must_be(
            f"{count} demand reads, each of which waits for the source",
            counted.by(PFS) == counted.all_reads == counted.fetched(PFS) == counted.stalls == count,
            counted,
        )
        asked = opens_at(slow) - before
        must_be("reads of the slow source, in all three ways", asked == len(paths) * count, f"{asked} opens there")
        middle = {place: statistics.median(values) for place, values in spent.items()}
        added = middle["mlfs"] - middle["direct"]
        print(
            f"  direct {middle['direct']:.2f} ms  mlfs {middle['mlfs']:.2f} ms  ratio"
            f" {middle['mlfs'] / middle['direct']:.2f}  added {added:.2f} ms, of 0.5 ms: {added / 0.5:.2f}"
            f"  (a bare pyfuse3 file system adds {middle['bare'] - middle['direct']:.2f} ms)"
        )


def registered_job(work: Path, data: Path, rounds: int) -> None:
    """a registered job, 2 ranks x 2 workers, slow source. Wanted: epoch 0 <= 1.2 x bound, later <= 1.1 x no I/O"""
    epochs = 4
    firsts, laters, sources, disks = [], [], [], []
    files = len(files_below(data))
    bound_s = sum(os.path.getsize(path) for path in files_below(data)) / 100e6
    for _ in range(rounds):
        with slow_source(data, work / "slow") as slow, mount(slow, work / "mount", "--ram", "2G"):
            fields = json.dumps({"seed": 0, "epochs": epochs, "batch_size": 32, "world_size": 2})
            control = work / "mount/.mlfs/control"
            times = run_job(work / "mount", epochs, lambda: control.write_text(fields))  # noqa: B023 - called here
            now, asked = settled(lambda: status(work / "mount")), opens_at(slow)
            must_be_followed(now, epochs * -(-files // RANKS) * RANKS)
            must_be("an epoch 0 in which each file comes once", files <= asked <= files / NEARLY_ALL, f"{asked} opens")
            # The ranks enter an epoch one after the other, so its reads are told from those before by where they went.
            late = sum(of["reads"] for route, of in now["reads"]["all"].items() if route not in (PAGE_CACHE, PFS))
            told = f"{late} of {(epochs - 1) * files} reads had to wait for memory"
            must_be("later epochs whose files are staged", late <= (1 - MOST) * (epochs - 1) * files, told)
        with slow_source(data, work / "slow") as slow, ThreadPoolExecutor(8) as readers:
            began_s = time.perf_counter()
            list(readers.map(read_os, files_below(slow)))
            source_s = time.perf_counter() - began_s
        local = run_job(data, 3, lambda: 0)
        without = run_job(data, 3, lambda: 0, no_io=True)
        later, disk_s, no_io = (statistics.median(of[1:]) for of in (times, local, without))
        begins_s = without[0] - no_io
        firsts.append(times[0] / bound_s)
        laters.append(later / no_io)
        sources.append((source_s + begins_s) / bound_s)
        disks.append(disk_s / no_io)
        print(
            f"  epoch 0 {times[0]:.2f} s, bound {bound_s:.2f} s, ratio {firsts[-1]:.2f}; eight plain readers have"
            f" all of the source in {source_s:.2f} s, and a training's first batch takes {begins_s:.2f} s without I/O:"
            f" {sources[-1]:.2f};  later {later:.2f} s, no I/O {no_io:.2f} s, ratio {laters[-1]:.3f}; the local disk's"
            f" page cache {disk_s:.2f} s: {disks[-1]:.3f}",
            flush=True,
        )
    first, later, source, disk = map(statistics.median, (firsts, laters, sources, disks))
    print(
        f"  medians: epoch 0 / bound {first:.2f}, of 1.2: {first / 1.2:.2f}, the least here {source:.2f};"
        f" later / no I/O {later:.3f}, of 1.1: {later / 1.1:.2f}, the local disk {disk:.3f}"
    )


def bare_loader(work: Path, data: Path, rounds: int) -> None:
    """a DataLoader that decodes nothing (2 workers, 2 ms an open): later epochs of ext4's. Wanted: silent, run 0.7"""
    epochs, files = 4, len(files_below(data))
    fields = json.dumps({"seed": 0, "epochs": epochs, "batch_size": BATCH, "world_size": 1})
    for name, read in (("open()", read_builtin), ("os.open", read_os)):
        of: dict[str, list[float]] = {"open": [], "silent": [], "run": [], "floor": [], "overlay": []}
        for _ in range(rounds):
            run = partial(run_job, epochs=epochs, ranks=1, step_s=0, read=read)
            times = {"ext4": run(data, start=lambda: 0)}
            for way, channel in (("open", "open"), ("silent", "silent"), ("run", "silent")):
                flags = ("--ram", "2G", "--channel", channel)
                with (
                    slow_source(data, work / "slow") as slow,
                    mount(slow, work / "mount", *flags),
                    overlaid(work / "mount") if way == "run" else nullcontext(0) as within,
                ):
                    must_be(f"the {channel} channel", status(work / "mount")["channel"]["name"] == channel, channel)
                    register = partial((work / "mount/.mlfs/control").write_text, fields)
                    times[way] = run(work / "mount", start=register, within=within)
                    must_be_followed(settled(partial(status, work / "mount")), epochs * files)
            with bare_mount(data, work / "unasked", 2 * epochs * files) as unasked:
                times["floor"] = run(unasked, start=lambda: 0)
                with overlay(unasked, work / "overlay") as overlaid_floor:
                    times["overlay"] = run(overlaid_floor, start=lambda: 0)
            for place, ratios in of.items():
                ratios.append(statistics.median(times["ext4"][1:]) / statistics.median(times[place][1:]))
        middle = {place: statistics.median(ratios) for place, ratios in of.items()}
        silent, by_run = middle["silent"], middle["run"]
        print(
            f"  {name:8} open {middle['open']:.2f} of ext4, silent {silent:.2f} (of 0.7: {silent / 0.7:.2f}), under"
            f" mlfs run {by_run:.2f} (of 0.7: {by_run / 0.7:.2f}); FUSE without OPEN that nobody is told of"
            f" {middle['floor']:.2f}, an overlay of it {middle['overlay']:.2f}",
            flush=True,
        )


MOVERS = ("0", "1", "2")
LOOP = "the server's loop (wanted: 20 at most)"
BESIDE = "it for the registration and this benchmark's looks"


class Cpu(NamedTuple):
    """Processor time, and the part of it that the kernel took."""

    whole: float = 0.0
    kernel: float = 0.0

    def __add__(self, other: tuple[float, ...]) -> Cpu:
        return Cpu(self.whole + other[0], self.kernel + other[1])

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.whole - other.whole, self.kernel - other.kernel)


def _middle_cpu(costs: list[Cpu]) -> str:
    return " of which ".join(f"{statistics.median(part):.0f}" for part in zip(*costs, strict=True))


def prefetch_rate(work: Path, data: Path, rounds: int) -> None:
    """the prefetcher on a local source with 0, 1 and 2 movers, samples of 110 kB a second. Wanted: 0.7 of loops"""
    rates: dict[str, list[float]] = {name: [] for name in (*MOVERS, "push 1", "push 2", "move 1", "move 2")}
    wholes: dict[str, list[float]] = {movers: [] for movers in MOVERS}
    costs: dict[str, list[dict[str, Cpu]]] = {movers: [] for movers in MOVERS}
    bare_costs: dict[str, list[Cpu]] = {name: [] for name in rates if name not in MOVERS}
    many = make_files(work / "many", MANY * len(files_below(data)))
    total = len(files_below(many))
    for _ in range(rounds):
        for movers in MOVERS:
            with mount(many, work / "mount", "--ram", "3G", "--staging", "3G", "--movers", movers):
                rate, whole, cost = _prefetched(work / "mount", total)
            rates[movers].append(rate)
            wholes[movers].append(whole)
            costs[movers].append(cost)
        for name in ("push 1", "push 2", "move 1", "move 2"):
            rate, *cpu = _floor_rate(many, work / "bare", *name.split())
            rates[name].append(rate)
            bare_costs[name].append(Cpu(*cpu))
    shutil.rmtree(many)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    loops_us = statistics.median(cpu.whole for cpu in bare_costs["push 2"])
    for movers in MOVERS:
        # Where all cores are busy this is the ratio of the rates, whatever else the machine does.
        by_cpu = loops_us / statistics.median(sum(one[of].whole for of in one if of != BESIDE) for one in costs[movers])
        print(
            f"  {movers} movers: {middle[movers]:.0f} samples/s (all {[round(r) for r in rates[movers]]}),"
            f" {middle[movers] / middle['push 2']:.2f} of plain loops in two threads (wanted 0.7; by processor time"
            f" {by_cpu:.2f}; the floor of movers: {middle['move 2'] / middle['push 2']:.2f}); the time included that"
            f" it takes to register the job and to find the pace: {statistics.median(wholes[movers]):.0f};"
            " us CPU a sample, of it kernel:"
            f" {', '.join(f'{kind} {_middle_cpu([one[kind] for one in costs[movers]])}' for kind in costs[movers][0])}"
        )
    for name, what in (("push", "threads"), ("move", "processes, as movers without a server")):
        for count in ("1", "2"):
            of = f"{name} {count}"
            print(
                f"  plain loops that read, push and keep, in {count} {what}: {middle[of]:.0f} samples/s"
                f" (all {[round(r) for r in rates[of]]}); us CPU a sample, of it kernel: {_middle_cpu(bare_costs[of])}"
            )


def _prefetched(through: Path, total: int) -> tuple[float, float, dict[str, Cpu]]:
    """Samples a second from the first fetched ones on, and from registering on; CPU us for a sample by who computed.

    The first rate compares with plain loops, which register nothing. The status is asked for seldom, as each time costs
    the server milliseconds. What its loop computes for that, and to register the job, is a part of its own.
    """
    for path in files_below(through):
        os.stat(path)  # the kernel knows the inodes, as it does when a job has been registered for a while
    processes, since = status(through)["processes"], Since(lambda: status(through))
    before, began = _cpu_by_part(processes), time.perf_counter()
    fields = {"seed": 0, "epochs": 1, "batch_size": 64, "world_size": 1}
    (through / ".mlfs/control").write_text(json.dumps(fields))
    beside = _cpu_by_part(processes)[LOOP] - before[LOOP]
    seen: list[tuple[float, int]] = []  # (seconds, samples fetched) while it was at work
    done = looks = 0
    while done < total:
        time.sleep(0.1)
        done, looks = status(through)["fetches"].get("pfs", {"count": 0})["count"], looks + 1
        if done and (done < total or len(seen) < 2):
            seen.append((time.perf_counter() - began, done))
    must_be("a rate", len(seen) > 1, f"{total} samples came within one look (more --files)")
    spent = {part: now - before[part] for part, now in _cpu_by_part(processes).items()}
    idle = _cpu_by_part(processes)[LOOP]
    for _ in range(looks):
        status(through)
    beside += _cpu_by_part(processes)[LOOP] - idle
    spent = {LOOP: spent[LOOP] - beside, BESIDE: beside} | {part: cpu for part, cpu in spent.items() if part != LOOP}
    costs = {part: Cpu(cpu.whole / total * 1e6, cpu.kernel / total * 1e6) for part, cpu in spent.items()}
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    _all_fetched_ahead(through, since, total)
    return (last - first) / (last_s - first_s), last / last_s, costs


def _cpu_by_part(processes: list[dict[str, Any]]) -> dict[str, Cpu]:
    """Seconds computed so far by the server's event loop, which is its main thread, by its other threads, by movers."""
    parts = {LOOP: Cpu(), "lanes and the server's other threads": Cpu(), "movers": Cpu()}
    for one in processes:
        pid, name = one["pid"], one["name"]
        if name.startswith("mover-"):
            parts["movers"] += cpu_of(pid)
        elif name == "server":
            loop = cpu_of(pid, thread=pid)
            parts[LOOP] += loop
            parts["lanes and the server's other threads"] += cpu_of(pid) - loop
    return parts


def _all_fetched_ahead(through: Path, since: Since, total: int) -> None:
    """Each sample came from the source once, nobody had asked for it, it is staged, and it is kept.

    On a machine that takes pages back some samples that are read then come from what is kept, which is said.
    """
    counted, now = since.now(), status(through)
    kept, (job,) = sum(tier["samples"] for tier in now["tiers"]), now["jobs"]
    ahead = sum(rank["ahead"]["samples"] for rank in job["ranks"])
    must_be(
        f"{total} samples that are fetched ahead, pushed and kept",
        counted.all_reads == 0 and counted.fetches == {PFS: total} and min(kept, ahead) >= MOST * total,
        f"{counted}; {ahead} are staged, {kept} kept",
    )
    for path in (through / f".mlfs/order/{job['name']}/0/0").read_text().splitlines()[:100]:
        read_os(str(through / path))
    read = since.now()
    must_be("samples that are kept", read.by(PFS) == 0, read)
    if read.by(PAGE_CACHE) < MOST * read.all_reads:
        print(f"  the machine has taken pages back: of {read.all_reads} samples {read.by(PAGE_CACHE)} had theirs")


def _floor_rate(data: Path, mountpoint: Path, part: str, workers: str) -> list[float]:
    """Samples a second of plain loops that read, push and keep, their CPU us for one, and the kernel's."""
    mountpoint.mkdir(exist_ok=True)
    command = [sys.executable, SCRIPTS / "benchmark/floor.py", part, data, mountpoint, workers]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    return [float(word) for word in told.split()]


def metadata_rate(work: Path, data: Path, rounds: int) -> None:
    """a million empty files in 1,000 directories. Wanted: mount from the saved index <= 5 s, os.walk >= 0.12 of ext4"""
    tree, through = work / "million", work / "mount"
    tree.mkdir()
    through.mkdir(exist_ok=True)
    began = time.perf_counter()
    with mp.Pool(4) as pool:
        pool.map(_make_directory, [str(tree / f"d{index:04d}") for index in range(1000)], chunksize=10)
    print(f"  made in {time.perf_counter() - began:.1f} s", flush=True)
    entries = 1000 * 1001
    for how, told in (("scan", "scanned"), ("saved index", "saved index")):
        began = time.perf_counter()
        mlfs("mount", str(tree), str(through), "--infer", "off")
        print(f"  mount from a {how}: {time.perf_counter() - began:.2f} s", flush=True)
        now = status(through)["manifest"]
        must_be(f"a mount from a {how}", told in now["how"] and now["files"] == 1000 * 1000, now)
        if how == "scan":
            mlfs("unmount", str(through))
    rss = status(through)["memory"]["rss_bytes"]
    plain, first = statistics.median(_walk_s(tree, entries) for _ in range(3)), _first_walk_s(through, entries)
    again = statistics.median(_walk_s(through, entries) for _ in range(rounds))
    mlfs("unmount", str(through))
    print(
        f"  os.walk: ext4 {plain:.2f} s  first {first:.2f} s, ratio {plain / first:.2f}"
        f"  again {again:.2f} s, ratio {plain / again:.2f};  RSS {rss / 1e6:.0f} MB, {rss / 1e6:.0f} bytes a file"
    )


def restarts(work: Path, data: Path, rounds: int) -> None:
    """1,000,000 files (RESTART_FILES=N for less), 10 GB in RAM (RESTART_GB); the server is killed while nobody reads.
    Wanted: the next one answers within 1 s"""
    directories = int(os.environ.get("RESTART_FILES", "1000000")) // 1000
    in_ram = int(float(os.environ.get("RESTART_GB", "10")) * 10) * 1000
    tree, through = work / "restarts", work / "mount"
    tree.mkdir()
    for index in range(directories):
        _make_directory(str(tree / f"d{index:04d}"))
    held = [tree / f"d{index // 1000:04d}/f{index % 1000:05d}.jpg" for index in range(in_ram)]
    for file in held:
        os.truncate(file, 100_000)
    with mount(tree, through, "--ram", f"{in_ram // 10_000 + 1}G"):
        mlfs("warmup", str(through), *(f"d{index:04d}" for index in range(in_ram // 1000)))
        names = random.Random(1).sample(held, rounds)
        times_s, cpus_s = [], []
        for number, name in enumerate(names, 1):
            _wait_for(lambda: "standby-0" in _processes(through) and _held(through) >= in_ram)
            server = _processes(through)["server"]["pid"]
            os.kill(server, signal.SIGKILL)
            began = time.perf_counter()
            empty = (through / name.relative_to(tree)).read_bytes() == bytes(100_000)
            times_s.append(time.perf_counter() - began)
            now = _processes(through)
            cpus_s.append(cpu_seconds(now["server"]["pid"]))
            must_be("a server that was killed", empty and now["server"]["restarts"] == number, now)
        _wait_for(lambda: _held(through) >= in_ram)
        memory = sum(_proportional_bytes(one["pid"]) for one in _processes(through).values())
    print(
        f"  first read after a kill: median {statistics.median(times_s):.2f} s, slowest {max(times_s):.2f} s, of 1 s;"
        f" processor by then {statistics.median(cpus_s):.2f} s;  PSS of all processes {memory / 1e6:.0f} MB"
    )


def _processes(mountpoint: Path) -> dict[str, dict]:
    return {one["name"]: one for one in status(mountpoint)["processes"]}


def _held(mountpoint: Path) -> int:
    """How many samples the RAM tier has."""
    return sum(tier["samples"] for tier in status(mountpoint)["tiers"])


def _wait_for(what: Callable[[], bool], within_s: float = 120.0) -> None:
    ends = time.monotonic() + within_s
    while not what():
        must_be(f"something that comes within {within_s:g} s", time.monotonic() < ends, "it did not")
        time.sleep(0.2)


def _proportional_bytes(pid: int) -> int:
    """The memory of a process, what it shares divided by those who share it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def walk_rate(work: Path, data: Path, rounds: int) -> None:
    """os.walk of 200,000 empty files in 200 directories. Wanted: at least 0.12 of ext4, the first time, too"""
    tree, through = work / "walked", work / "mount"
    tree.mkdir()
    for index in range(200):
        _make_directory(str(tree / f"d{index:04d}"))
    entries = 200 * 1001
    firsts, agains, plain = [], [], statistics.median(_walk_s(tree, entries) for _ in range(rounds))
    for _ in range(rounds):
        with mount(tree, through):
            firsts.append(_first_walk_s(through, entries))
            agains.append(_walk_s(through, entries))
    first, again = statistics.median(firsts), statistics.median(agains)
    print(
        f"  ext4 {plain:.2f} s  first {first:.2f} s, ratio {plain / first:.2f}, of 0.12: {plain / first / 0.12:.1f}"
        f"  again {again:.2f} s, ratio {plain / again:.2f}"
    )


def _make_directory(path: str) -> None:
    os.mkdir(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    for index in range(1000):
        os.close(os.open(f"f{index:05d}.jpg", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    os.close(fd)


def _walk_s(root: Path, entries: int) -> float:
    """The seconds of a walk that finds so many entries."""
    began, found = time.perf_counter(), 0
    for _, directories, files in os.walk(root):
        found += len(directories) + len(files)
    seconds = time.perf_counter() - began
    must_be(f"a walk over {entries} entries", found == entries, f"{found} were found")
    return seconds


def _first_walk_s(through: Path, entries: int) -> float:
    """The same of a mount whose listings the kernel does not have."""
    since = Since(lambda: status(through))
    seconds, listed = _walk_s(through, entries), since.now().requests["readdir"]
    must_be("a first walk, which the mount has to answer", listed > entries // 1001, f"{listed} requests for listings")
    return seconds


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    return cpu_of(pid).whole


def cpu_of(pid: int, thread: int = 0) -> Cpu:
    """Seconds that a process has computed, or one of its threads."""
    stat = f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat"
    fields = Path(stat).read_text().rsplit(")", 1)[1].split()
    user, kernel = int(fields[11]), int(fields[12])
    return Cpu((user + kernel) / os.sysconf("SC_CLK_TCK"), kernel / os.sysconf("SC_CLK_TCK"))


# -- the training job of part c: torch DataLoaders over a directory, one process a rank, steps that only take time

RANKS, WORKERS, BATCH, STEP_S = 2, 2, 32, 0.032


def run_job(
    directory: Path, epochs: int, start: Callable[[], object], no_io: bool = False, ranks: int = RANKS,
    step_s: float = STEP_S, read: Loop = read_builtin, within: int = 0,
) -> list[float]:  # fmt: skip
    """Train, and return the seconds of each epoch.

    Args:
        start: called when all ranks are ready; epoch 0 counts from there.
        no_io: whether samples are bytes in memory instead of files. step_s: how long each batch is computed with.
        read: reads a sample. within: see `files_a_second`.
    """
    context = mp.get_context("spawn")
    queue, ready, go = context.Queue(), context.Barrier(ranks + 1), context.Event()
    arguments = (ranks, step_s, str(directory), epochs, no_io, read, queue, ready, go, within)
    processes = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(ranks)]
    for process in processes:
        process.start()
    ready.wait()
    began = time.time()
    start()
    go.set()
    spans = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    firsts = [began] + [min(each[epoch][0] for each in spans) for epoch in range(1, epochs)]
    lasts = [max(each[epoch][1] for each in spans) for epoch in range(epochs)]
    return [last - first for first, last in zip(firsts, lasts, strict=True)]


def _rank(
    rank: int, ranks: int, step_s: float, directory: str, epochs: int, no_io: bool, read: Loop, queue: Any, ready: Any,
    go: Any, within: int,
) -> None:  # fmt: skip
    enter(within)
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    paths = sorted(str(path) for path in Path(directory).glob("*/*.jpg"))

    class Samples(Dataset):
        def __init__(self) -> None:
            self.memory = Path(paths[0]).read_bytes()

        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> int:
            if no_io:
                return len(bytearray(self.memory))
            return read(paths[index])

    dataset = Samples()
    sampler: DistributedSampler = DistributedSampler(dataset, ranks, rank, shuffle=True, seed=0)
    loader = DataLoader(
        dataset, BATCH, sampler=sampler, num_workers=WORKERS, persistent_workers=True, multiprocessing_context="fork"
    )
    spans = []
    ready.wait()
    go.wait()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        began = time.time()
        for _ in loader:
            time.sleep(step_s)  # in place of the accelerator's work
        spans.append((began, time.time()))
    queue.put(spans)
