"""Claims of papers about orders, counted in the orders of a real mount: the column "live" of
docs/decisions/papers-measured.md.

    PYTHONPATH=. python scripts/orders_live.py [--files 1281167] [--at DIR] [frequency reuse locality hits eviction ...]

In: how many files (ImageNet-1k's by default: minutes), and a directory to make them in, where they have a size and no
blocks. Out: a line a figure. The mount is that of the real command; the orders are what MOUNT/.mlfs/order says, which
is what a script reads that takes a served order. Several nodes are the ranks of one order: no network is measured.

- frequency (NoPFS, 3.1): how many samples one node of 16 reads more than 10 times in 90 epochs.
- reuse (Lobster, 3): how many reads of a node of 8 GPUs, of 8 such nodes, come more than 1,000 iterations after the
  last one of the sample.
- locality (Yang and Cong, V-C): with 64 nodes, how uneven a global batch lies, how much the order moves, by how many
  messages, and whether all ranks have as many.
- hits (Lobster, 5.5): reads that a cache of 40 GB for 135 GB answers, in a data set of 16 MB and 5 epochs.
- eviction (Lobster, 4.4): reads that the source answers where samples are drawn with replacement, beside what the plan
  expects of evicting and of keeping.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfs.job import only_fields, parse_job
from mlfs.orders.served import ServedOrder
from mlfs.orders.streams import build_streams
from mlfs.served.locality import imbalance
from mlfs.tree.scan import scan

IMAGENET_FILES, DIRECTORIES = 1_281_167, 1000
CACHE_SHARE = 40 / 135
SETTLED_WITHIN_S = 60.0
Ids = npt.NDArray[np.int64]


def make_files(root: Path, files: int) -> Path:
    """Files of 100 bytes that take no blocks; those of an earlier run are taken as they are."""
    root = root / f"files{files}"
    if root.exists():
        return root
    making = root.with_suffix(".making")
    for number in range(DIRECTORIES):
        directory = making / f"c{number:03}"
        directory.mkdir(parents=True)
        for file in range(number * files // DIRECTORIES, (number + 1) * files // DIRECTORIES):
            with open(directory / f"f{file:07}.jpg", "wb") as empty:
                empty.truncate(100)
    return making.rename(root)


class Mount:
    """A mount of a directory while the context lasts: see `mounted`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def register(self, **fields: object) -> None:
        """Register the job "train"."""
        with open(self.path / ".mlfs" / "control", "r+b", buffering=0) as file:
            file.write(json.dumps({"op": "register"} | fields).encode() + b"\n")
            file.readall()

    def order(self, epoch: int, rank: int) -> Ids:
        """The dataset indices that a rank reads."""
        text = (self.path / f".mlfs/order/train/{epoch}/{rank}.indices").read_text()
        return np.array(text.split(), dtype=np.int64)

    def status(self) -> dict[str, Any]:
        """What MOUNT/.mlfs/status says."""
        status: dict[str, Any] = json.loads((self.path / ".mlfs" / "status").read_bytes())
        return status

    def settled(self) -> dict[str, Any]:
        """The same, once nothing is under way any more: plans are made, and what was read is counted."""
        ends = time.monotonic() + SETTLED_WITHIN_S
        while any((now := self.status())["under_way"].values()) and time.monotonic() < ends:
            time.sleep(0.1)
        return now


@contextmanager
def mounted(source: Path, *flags: str) -> Iterator[Mount]:
    """Mount a directory somewhere, and unmount it at the end."""
    state = Path(tempfile.mkdtemp(prefix="orders-live-"))
    (path := state / "mnt").mkdir()
    environment = os.environ | {"XDG_CACHE_HOME": str(state), "MLFS_RUNTIME_DIR": str(state)}
    mlfs = [sys.executable, "-m", "mlfs.cli.main"]
    command = [*mlfs, "mount", str(source), str(path), "--infer", "off", *flags]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        yield Mount(path)
    finally:
        subprocess.run([*mlfs, "unmount", str(path)], env=environment, check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(state)


def frequency(mount: Mount, files: int) -> None:
    """NoPFS, Section 3.1."""
    mount.register(epochs=90, batch_size=32, world_size=16)
    reads = np.zeros(files, dtype=np.int64)
    for epoch in range(90):
        reads[mount.order(epoch, 0)] += 1
    often = int((reads > 10).sum())
    print(f"frequency: {often:,} samples of {files:,} are read more than 10 times: {100 * often / files:.3f} %")


def reuse(mount: Mount, files: int) -> None:
    """Lobster, Section 3 and Figure 4: 8 nodes of 8 GPUs with batches of 32, 40 epochs."""
    gpus, batch, epochs = 8, 32, 40
    mount.register(epochs=epochs, batch_size=batch, world_size=8 * gpus)
    last, distances = np.full(files, -1.0), []
    iterations = -(-files // (8 * gpus)) / batch
    for epoch in range(epochs):
        now = np.full(files, -1.0)
        for rank in range(gpus):
            order = mount.order(epoch, rank)
            now[order] = epoch * iterations + np.arange(len(order)) / batch
        again = (now >= 0) & (last >= 0)
        distances.append((now - last)[again])
        last[now >= 0] = now[now >= 0]
    far = float((np.concatenate(distances) > 1000).mean())
    print(f"reuse: {100 * far:.1f} % of the reads come more than 1,000 iterations after the last one")


def locality(mount: Mount, files: int) -> None:
    """Yang and Cong, Section V-C and Figure 6: 64 nodes of one rank, which keep everything."""
    world = 64
    nodes = [{"node": node, "ranks": str(node), "keeps_bytes": [files * 4096]} for node in range(world)]
    for batch in (32, 64, 128):
        mount.register(epochs=2, batch_size=batch, world_size=world, serve="locality", nodes=nodes)
        keeper = _keepers(mount)
        uneven, messages, moved = [], [], []
        for epoch in (0, 1):
            ranks = np.stack([mount.order(epoch, rank) for rank in range(world)])  # all have as many
            for first in range(0, ranks.shape[1] - batch + 1, batch):
                kept_at = keeper[ranks[:, first : first + batch]]
                uneven.append(imbalance(np.bincount(kept_at.ravel(), minlength=world)[None])[0])
                givers, takers = kept_at.ravel(), np.repeat(np.arange(world), batch)
                away = givers != takers
                messages.append(len({*(givers[away] * world + takers[away]).tolist()}))
                moved.append(float(away.mean()))
        median, most = float(np.median(uneven)), max(messages)
        assert np.allclose(moved, uneven), "a sample is moved that need not be"
        print(
            f"locality: local batches of {batch}: median imbalance {100 * median:.2f} %, moved"
            f" {100 * np.mean(moved):.2f} % of the samples, at most {most} messages a step between {world} nodes, in"
            f" {len(uneven):,} steps"
        )


def _keepers(mount: Mount) -> npt.NDArray[np.int16]:
    """By dataset index, the node that keeps the sample."""
    fields = json.loads((mount.path / ".mlfs/jobs/train.json").read_bytes())
    spec = parse_job(only_fields(fields))
    fd = os.open(mount.path, os.O_RDONLY)
    try:
        order = build_streams(spec, scan(fd)).order
    finally:
        os.close(fd)
    assert isinstance(order, ServedOrder)
    return order.kept.node


def hits(work: Path) -> None:
    """Lobster, Section 5.5: one node, all of its reads, the first epoch among them."""
    source, epochs = small_files(work, 400, 40_000), 5
    fetched, _ = source_reads(source, CACHE_SHARE, epochs)
    reads = epochs * 400
    print(f"hits: {100 * (1 - fetched / reads):.1f} % of {reads:,} reads, with a cache of {100 * CACHE_SHARE:.1f} %")


def eviction(work: Path) -> None:
    """Lobster, Section 4.4, as one node has it: samples are drawn with replacement, and memory holds some of them."""
    files, epochs = 2000, 8
    source = small_files(work, files, 8000)
    for share in (0.25, 0.5):
        fetched, plan = source_reads(source, share, epochs, sampler="torch-random", replacement=True, seed=7)
        print(
            f"eviction: of {epochs * files:,} drawn reads, with room for {100 * share:.0f} %, the source answers"
            f" {100 * fetched / epochs / files:.1f} %; the plan expects {100 * plan['source_share']:.1f} %, and"
            f" {100 * plan['source_share_keeping']:.1f} % if copies stay"
        )


def small_files(work: Path, files: int, bytes_each: int) -> Path:
    """A source of equal files with contents."""
    source = work / f"small{files}"
    (source / "c").mkdir(parents=True)
    for number in range(files):
        (source / "c" / f"f{number:04}.jpg").write_bytes(number.to_bytes(2) * (bytes_each // 2))
    return source


def source_reads(source: Path, share: float, epochs: int, **job: object) -> tuple[int, dict[str, Any]]:
    """Read a job's epochs on one node, whose memory holds a share of the files.

    Returns: how many reads the source has answered, and what the status says of the plan.
    """
    files = list((source / "c").iterdir())
    page_bytes = -(-files[0].stat().st_size // 4096) * 4096
    with mounted(source, "--ram", str(round(share * len(files)) * page_bytes), "--staging", "1M") as mount:
        mount.register(epochs=epochs, batch_size=8, **job)
        plan = dict(mount.settled()["plan"])
        for epoch in range(epochs):
            for path in (mount.path / f".mlfs/order/train/{epoch}/0").read_text().splitlines():
                (mount.path / path).read_bytes()
        now = mount.settled()
        (followed,) = now["jobs"]
        if followed["agreed_opens"] < 0.99 * epochs * len(files):  # it would have been a plain cache
            raise SystemExit(f"only {followed['agreed_opens']} of {epochs * len(files)} reads came as predicted")
        return int(now["fetches"]["pfs"]["count"]), plan


COUNTED: dict[str, Callable[[Mount, int], None]] = {"frequency": frequency, "reuse": reuse, "locality": locality}
READ: dict[str, Callable[[Path], None]] = {"hits": hits, "eviction": eviction}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=IMAGENET_FILES)
    parser.add_argument("--at", type=Path, help="where the files are made, and stay; else they are gone at the end")
    parser.add_argument("wanted", nargs="*", help=", ".join([*COUNTED, *READ]))
    chosen = parser.parse_args()
    wanted = chosen.wanted or [*COUNTED, *READ]
    with tempfile.TemporaryDirectory(prefix="orders-live-") as scratch:
        work = chosen.at or Path(scratch)
        counted = [COUNTED[name] for name in wanted if name in COUNTED]
        if counted:
            with mounted(make_files(work, chosen.files)) as mount:
                for count in counted:
                    count(mount, chosen.files)
        for name in [name for name in READ if name in wanted]:
            READ[name](Path(scratch))


if __name__ == "__main__":
    main()
