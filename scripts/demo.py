"""The demo: the same training directly on a slow source, through mlfs over the very same path, and on a local disk.

    scripts/demo [--keep] [--files 4000] [--epochs 4] [--open-latency 2ms] [--bandwidth 100M] [--direct-only] [--kill]

In: nothing; the data set is generated. Out: a table of the runs, exit code 0 when their final losses are equal bit for
bit and 1 when not. The third run reads the data from the page cache of a local disk, which is the least that any way of
bringing the files can reach: what is left is decoding and training. Everything lies in one work directory. It is
removed at the end, as are mounts and processes, also after Ctrl-C or a failure. The source is scripts/slow_source.py,
the training script scripts/train_demo.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from make_dataset import Wanted, make_dataset
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

SCRIPTS = Path(__file__).parent
BIN = Path(sys.executable).parent
RANKS, BATCH_SIZE, SEED = 2, 32, 0
STOP_TIMEOUT_S = 10.0
KILLS, KILL_EVERY_S = 10, 2.0
ROUTES = {"page_cache": "page cache", "ram": "RAM", "ssd": "SSD", "lmdb": "LMDB", "pfs": "PFS"}

console = Console()


@dataclass
class Epoch:
    """Times of one epoch. They are the slowest rank's, as the ranks wait for each other at every step."""

    seconds: float = 0.0
    waiting: float = 0.0


@dataclass
class Run:
    """One training run."""

    name: str
    epochs: list[Epoch] = field(default_factory=list)
    final_loss: str = ""
    source: dict[str, Any] = field(default_factory=dict)
    """The slow source's own counts over this run."""
    status: dict[str, Any] = field(default_factory=dict)

    def note(self, line: dict[str, Any]) -> bool:
        """Take in a line of the training script. Returns whether an epoch has ended with it."""
        self.final_loss = line.get("final_loss", self.final_loss)
        if "epoch" not in line:
            return False
        is_new: bool = line["epoch"] == len(self.epochs)
        if is_new:
            self.epochs.append(Epoch())
        epoch = self.epochs[line["epoch"]]
        epoch.seconds = max(epoch.seconds, line["seconds"])
        epoch.waiting = max(epoch.waiting, line["waiting"])
        return is_new


def command(*argv: str | Path, quiet: bool = False) -> str:
    """Run a command, shown as a user would type it. Returns what it printed; its failure ends the demo."""
    console.print("$ " + " ".join(str(word) for word in argv), style="bold", soft_wrap=True, highlight=False)
    done = subprocess.run([BIN / argv[0], *argv[1:]], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"demo: {argv[0]} failed with exit code {done.returncode}\n{done.stdout}{done.stderr}")
    if not quiet:
        console.print(done.stdout.rstrip(), style="dim", highlight=False, markup=False, soft_wrap=True)
    return done.stdout


@contextlib.contextmanager
def slow_source(backing: Path, mountpoint: Path, args: argparse.Namespace) -> Iterator[int]:
    """The source, mounted; yields a descriptor of its root, which stays in reach below an mlfs mount."""
    times = ["--open-latency", args.open_latency, "--bandwidth", args.bandwidth]
    process = subprocess.Popen(
        [sys.executable, SCRIPTS / "slow_source.py", backing, mountpoint, "--foreground", *times],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C must not end it before what reads from it
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("demo: the slow source did not start; why is said above")
        root_fd = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield root_fd
        finally:
            os.close(root_fd)
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """SIGTERM to all of its session, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
            return


def source_counts(root_fd: int, reset: bool = False) -> dict[str, Any]:
    with open(os.open(".slow_source_stats", os.O_RDONLY, dir_fd=root_fd), "rb") as file:
        counts: dict[str, Any] = json.load(file)
    if reset:
        with open(os.open(".slow_source_control", os.O_WRONLY, dir_fd=root_fd), "wb") as control:
            control.write(b'{"reset_counts": true}\n')
    return counts


def train(run: Run, data: Path, args: argparse.Namespace, log: Path) -> None:
    """The training run, with its progress."""
    shown = [
        "torchrun",
        "--nproc-per-node",
        str(RANKS),
        "scripts/train_demo.py",
        str(data),
        "--epochs",
        str(args.epochs),
    ]
    console.print("$ " + " ".join(shown), style="bold", soft_wrap=True, highlight=False)
    script = str(SCRIPTS / "train_demo.py")
    real = [str(BIN / "torchrun"), "--standalone", *shown[1:3], script, *shown[4:]]
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    with open(log, "w") as errors, Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"training, {run.name}: epoch 1 of {args.epochs}", total=args.epochs)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}  # what torchrun sets by itself, with a warning
        process = subprocess.Popen(
            real, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, env=environment
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if not run.note(json.loads(line)):
                    continue
                if not console.is_terminal:  # a log shows no bar
                    console.print(f"  {run.name}: epoch {len(run.epochs)} of {args.epochs} is done")
                text = f"training, {run.name}: epoch {min(len(run.epochs) + 1, args.epochs)} of {args.epochs}"
                progress.update(bar, completed=len(run.epochs), description=text)
            progress.update(bar, completed=args.epochs)
            code = process.wait()
        finally:
            end(process)
    if code or not run.final_loss:
        raise SystemExit(f"demo: the training failed with exit code {code}\n{log.read_text()}")


def train_through_mlfs(run: Run, data: Path, args: argparse.Namespace, work: Path) -> None:
    try:
        command("mlfs", "mount", data)
        job = f"--sampler torch-distributed --seed {SEED} --epochs {args.epochs} --batch-size {BATCH_SIZE}"
        command("mlfs", "register", data, *job.split(), "--world-size", str(RANKS), "--ranks", f"0-{RANKS - 1}")
        with killing(data) if args.kill else contextlib.nullcontext():
            train(run, data, args, work / "mlfs.log")
        run.status = json.loads(command("mlfs", "status", data, "--json", quiet=True))
        command("mlfs", "unmount", data)
    except BaseException:
        # No mount stays, whatever has happened; the user reads about the failure and not about this unmount.
        with contextlib.suppress(OSError):
            subprocess.run([BIN / "mlfs", "unmount", data, "--force"], check=False, capture_output=True)
        raise


@contextlib.contextmanager
def killing(data: Path) -> Iterator[None]:
    """Kill the server of the mount ten times, with SIGKILL: the holder has another one serve each time. Not more often:
    after sixteen kills in a row a server is given no samples of those before, and at last the mount is given up."""
    over = threading.Event()

    def kill() -> None:
        for _ in range(KILLS):
            if over.wait(KILL_EVERY_S):
                break
            server = json.loads((data / ".mlfs" / "status").read_bytes())["pid"]
            os.kill(server, signal.SIGKILL)
            console.print(f"  kill -9 {server}: the server of the mount")

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def train_on_local_disk(run: Run, images: Path, args: argparse.Namespace, work: Path) -> None:
    """On the files that the slow source shows: all of them are read once before, so they lie in the page cache."""
    for directory, _, names in os.walk(images):
        for name in names:
            Path(directory, name).read_bytes()
    train(run, images, args, work / "local.log")


def epochs_table(runs: list[Run]) -> Table:
    table = Table(title="\nseconds an epoch, of them waiting for data")
    table.add_column("epoch", justify="right")
    for run in runs:
        table.add_column(run.name, justify="right")
        table.add_column("waiting", justify="right")
    for number in range(len(runs[0].epochs)):
        cells = [f"{seconds:.1f}" for run in runs for seconds in vars(run.epochs[number]).values()]
        table.add_row(str(number), *cells)
    table.add_section()
    sums = [(sum(e.seconds for e in run.epochs), sum(e.waiting for e in run.epochs)) for run in runs]
    table.add_row("all", *(f"{seconds:.1f}" for both in sums for seconds in both))
    return table


def reads_table(direct: Run, through: Run) -> Table:
    table = Table(title="\nreads by route, all epochs")
    for name in ("", "reads", "MB"):
        table.add_column(name, justify="right" if name else "left")

    def row(name: str, reads: int, length: int) -> None:
        table.add_row(name, f"{reads:,}", f"{length / 1e6:,.1f}")

    row("direct: source", direct.source["opens"], direct.source["bytes"])
    table.add_section()
    reads = through.status.get("reads", {})
    for route, counted in reads.get("all", reads).items():
        row(f"mlfs: {ROUTES.get(route, route)}", counted["reads"], counted["bytes"])
    row("mlfs: fetched from the source", through.source["opens"], through.source["bytes"])
    return table


def in_words(direct: Run, through: Run, local: Run) -> str:
    """What the times say."""
    slow_s, mlfs_s, least_s = (sum(epoch.seconds for epoch in run.epochs) for run in (direct, through, local))
    return (
        f"The least that is possible is {least_s:.1f} s: with every file in memory of a local disk, what is left is to"
        f" decode and to train. The slow source adds {slow_s - least_s:.1f} s to that, and with mlfs"
        f" {max(0.0, mlfs_s - least_s):.1f} s are left of it."
    )


def show(direct: Run, through: Run | None, local: Run | None) -> bool:
    """Show the tables. Returns whether the losses are equal."""
    runs = [run for run in (direct, through, local) if run is not None]
    console.print(epochs_table(runs))
    if through is None or local is None:
        console.print(f"\nfinal loss: {float.fromhex(direct.final_loss):.9f} ({direct.final_loss})")
        return True
    console.print(in_words(direct, through, local))
    console.print(reads_table(direct, through))
    for job in through.status.get("jobs", []):
        console.print(f"job {job['name']}: agreement with the prediction {100 * job['agreement']:.1f} %")
    console.print("\nfinal loss")
    for run in runs:
        console.print(f"  {run.name:12}{float.fromhex(run.final_loss):.9f}  {run.final_loss}", highlight=False)
    equal = len({run.final_loss for run in runs}) == 1
    console.print("  equal bit for bit" if equal else "  NOT EQUAL", style="bold green" if equal else "bold red")
    return equal


@contextlib.contextmanager
def work_directory(keep: bool) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix="mlfs-demo-"))
    try:
        yield work
    finally:
        if keep:
            console.print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


def demo(args: argparse.Namespace) -> int:
    with work_directory(args.keep) as work:
        # The index and the log of this mount go with the demo.
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        images, data = (args.images or work / "images").absolute(), work / "data"
        data.mkdir()
        make_dataset(images, Wanted(args.files, classes=20, kilobytes=110, seed=0), console)
        console.print(f"slow source: {args.open_latency} an open, {args.bandwidth} bytes/s for all reads\n")
        direct = Run("direct")
        through, local = (None, None) if args.direct_only else (Run("mlfs"), Run("local disk"))
        with slow_source(images, data, args) as root_fd:
            train(direct, data, args, work / "direct.log")
            direct.source = source_counts(root_fd, reset=True)
            if through is not None:
                train_through_mlfs(through, data, args, work)
                through.source = source_counts(root_fd)
        if local is not None:
            train_on_local_disk(local, images, args, work)
        return 0 if show(direct, through, local) else 1


def stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on a slow source, through mlfs and on a local disk. Compare.")
    parser.add_argument("--files", type=int, default=4000, help="JPEGs of about 110 kB (default: 4000)")
    parser.add_argument("--epochs", type=int, default=4, help="of each run (default: 4)")
    parser.add_argument("--open-latency", default="2ms", help="of the source (default: 2ms)")
    parser.add_argument("--bandwidth", default="100M", help="of the source, bytes/s for all reads (default: 100M)")
    parser.add_argument(
        "--images", type=Path, help="make the data set here, or take one made here earlier, and leave it"
    )
    parser.add_argument("--kill", action="store_true", help="kill the server of the mount ten times meanwhile")
    parser.add_argument("--keep", action="store_true", help="leave the work directory, with data set and logs")
    parser.add_argument("--direct-only", action="store_true", help="without the other two runs")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    try:
        return demo(args)
    except KeyboardInterrupt:
        console.print("demo: interrupted; everything is cleaned up")
        return 130


if __name__ == "__main__":
    sys.exit(main())
