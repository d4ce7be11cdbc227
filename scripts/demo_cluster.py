"""The cluster demo: four nodes on one machine train on a source that all share, directly and through mlfs with peers.

    scripts/demo-cluster [--nodes 4] [--rate 1000] [--files 2400] [--epochs 4] [--keep]

In: nothing; the data set is generated. Out: tables of both runs, the figures beside their limits; exit code 0 when the
losses are equal bit for bit and all limits hold, else 1. The data set is larger than one node's cache and smaller than
all together. Root is needed. Everything that was made is removed at the end, also after Ctrl-C or a failure.

What stands for what: a node is a network namespace with a mount, an agent and a rank of the training of its own; its
link is a veth pair that tc limits (scripts/cluster_net.py). MPI and the ranks' own messages go over it. The parallel
file system is scripts/slow_source.py: one for all nodes, and all reads share the bandwidth of one such link. It is no
file server: its bytes go over no link, so they take nothing of what a node's link has for peers.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cluster_model import Modelled
from cluster_net import Network, check_able
from cluster_nodes import Cluster
from demo import Run, console, slow_source, source_counts, stop, work_directory
from rich.progress import track
from rich.table import Table

BATCH_SIZE, SEED, CLASSES = 16, 0, 8
# Part of a link's rate that is left for bytes of samples, by Ethernet, IP and TCP headers.
PAYLOAD = 1448 / 1514
# The limits of the figures at the end.
LEAST_TIMES_AS_FAST = 3.0
MOST_OF_MODEL = 1.15
MOST_OF_SOURCE = 1.1
ROUTES = {"ram": "own RAM", "peer": "another node", "pfs": "source"}


@dataclass
class Seen:
    """What had been counted when an epoch ended.

    Attributes:
        source: bytes that the source handed out. sent: bytes that each node has sent over its link. fetched: bytes
            that all mounts fetched, by route. busy_s, all_s: seconds of all cores together, computing and in all.
    """

    source: int
    sent: list[int]
    fetched: Counter[str]
    busy_s: float
    all_s: float


def core_seconds() -> tuple[float, float]:
    """Seconds of all cores together since the start of the machine: computing, and in all (proc_stat(5))."""
    user, nice, system, idle, iowait, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    busy = user + nice + system + sum(rest[:2])  # stolen time is the hypervisor's, and not ours to use
    hertz = os.sysconf("SC_CLK_TCK")
    return busy / hertz, (busy + idle + iowait) / hertz


def over_links(seen: Sequence[Seen]) -> float:
    """The bytes that an epoch after the first sends over the links, as a mean.

    Args:
        seen: before epoch 0, and after each epoch.
    """
    return (sum(seen[-1].sent) - sum(seen[1].sent)) / (len(seen) - 2)


def busy_share(before: Seen, after: Seen) -> float:
    """The share of the cores' time in which they computed."""
    return (after.busy_s - before.busy_s) / (after.all_s - before.all_s)


def make_arrays(directory: Path, files: int, side: int) -> int:
    """Arrays of pixels, each class around a colour of its own. Returns their bytes.

    Nothing of them has to be decoded: reading is what takes time.
    """
    draw = np.random.default_rng(SEED)
    noise = draw.integers(-40, 40, (side, side, 3), dtype=np.int16)
    colours = draw.integers(40, 216, (CLASSES, 3))
    total = 0
    for index in track(range(files), f"making {files} arrays", console=console):
        label = index % CLASSES
        path = directory / f"class{label}" / f"array_{index:05d}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.roll(noise, (index * 7919, index * 104729), axis=(0, 1)) + colours[label]
        np.save(path, pixels.astype(np.uint8))
        total += path.stat().st_size
    return total


def epochs_table(direct: Run, through: Run, model: Sequence[float], seen: Sequence[Seen]) -> Table:
    """Seconds of each epoch, what was read of the source in it, and whence the mounts got what they gave."""
    table = Table(title="\nby epoch: seconds; MB, of all nodes together")
    for name in ("epoch", "direct", "mlfs", "model", "source read", "links", *ROUTES.values()):
        table.add_column(name, justify="right")
    rows = zip(direct.epochs, through.epochs, model, seen[:-1], seen[1:], strict=True)
    for number, (one, other, expected, before, after) in enumerate(rows):
        amounts = [after.source - before.source, sum(after.sent) - sum(before.sent)]
        amounts += [after.fetched[route] - before.fetched[route] for route in ROUTES]
        seconds = [f"{figure:.1f}" for figure in (one.seconds, other.seconds, expected)]
        table.add_row(str(number), *seconds, *(f"{amount / 1e6:,.0f}" for amount in amounts))
    return table


def links_table(seen: Sequence[Seen]) -> Table:
    """What each node sent over its link: the interfaces' own counters."""
    table = Table(title="\nMB that each node sent over its link, by epoch")
    for name in ("epoch", *(f"node {node}" for node in range(len(seen[0].sent)))):
        table.add_column(name, justify="right")
    for number, (before, after) in enumerate(itertools.pairwise(seen)):
        sent = [one - other for one, other in zip(after.sent, before.sent, strict=True)]
        table.add_row(str(number), *(f"{amount / 1e6:,.0f}" for amount in sent))
    return table


def figures(
    args: argparse.Namespace,
    total: int,
    alone_s: float,
    direct: Run,
    through: Run,
    model: Sequence[float],
    seen: Sequence[Seen],
    links_s: float,
) -> bool:
    """Print each figure beside its limit. Returns whether all hold.

    Args:
        alone_s: what an epoch of the training takes that reads the memory of the machine.
        links_s: what plain TCP takes for the bytes that an epoch after the first sends over the links.
    """
    direct_s = statistics.mean(epoch.seconds for epoch in direct.epochs[1:])
    later_s = statistics.mean(epoch.seconds for epoch in through.epochs[1:])
    bound_s = max(total / 1e6 / args.MBps, model[0])
    first, later = seen[1].source - seen[0].source, seen[-1].source - seen[1].source
    rows = [
        ("epochs after the first, times as fast as direct reads", direct_s / later_s, ">=", LEAST_TIMES_AS_FAST),
        ("the same, beside the cost model's prediction", later_s / statistics.mean(model[1:]), "<=", MOST_OF_MODEL),
        ("epoch 0, beside the least that the source allows", through.epochs[0].seconds / bound_s, "<=", MOST_OF_SOURCE),
        ("bytes read of the source in epoch 0, of the data set", first / total, "<=", 1.0),
        ("bytes read of the source after it, of the data set", later / total, "<=", 0.0),
    ]
    console.print()
    holds = True
    for name, figure, relation, limit in rows:
        good = figure >= limit if relation == ">=" else figure <= limit
        holds = holds and good
        text = f"{name}: {figure:.2f} (limit: {relation} {limit:g})" + ("" if good else "  MISSED")
        console.print(text, style="green" if good else "bold red", highlight=False)
    cores = busy_share(seen[1], seen[-1])
    cores_s = (seen[-1].busy_s - seen[1].busy_s) / (len(seen) - 2) / (os.cpu_count() or 1)
    console.print(
        f"the {os.cpu_count()} cores, which all nodes share, were {cores:.0%} busy in epochs after the first: what an"
        f" epoch computes takes them {cores_s:.1f} s of its {later_s:.1f} s (the training alone: {alone_s:.1f} s)",
        highlight=False,
    )
    console.print(
        f"plain TCP takes {links_s:.1f} s for what such an epoch sends over the links, all nodes at once; the model"
        f" {statistics.mean(model[1:]):.1f} s",
        highlight=False,
    )
    equal = direct.final_loss == through.final_loss
    for run in (direct, through):
        console.print(f"final loss, {run.name:8}{float.fromhex(run.final_loss):.9f}  {run.final_loss}", highlight=False)
    console.print("  equal bit for bit" if equal else "  NOT EQUAL", style="bold green" if equal else "bold red")
    return holds and equal


def demo(args: argparse.Namespace) -> int:
    words = ["--batch-size", str(BATCH_SIZE), "--workers", "2", "--seed", str(SEED)]
    job = f"--sampler torch-distributed --seed {SEED} --epochs {args.epochs} --batch-size {BATCH_SIZE}"
    job += f" --extensions npy --world-size {args.nodes}"
    with work_directory(args.keep) as work, Network(args.nodes, f"{args.rate}mbit", work) as network:
        cluster = Cluster(network, work)
        images, source = work / "images", work / "pfs"
        source.mkdir()
        total = make_arrays(images, args.files, args.side)
        console.print(
            f"{args.nodes} nodes, each link {args.rate} Mbit/s; the source {args.bandwidth}B/s for all reads; data "
            f"set {total / 1e6:,.0f} MB, cache of a node {args.ram}\n", highlight=False,
        )  # fmt: skip
        alone, direct, through = Run("memory"), Run("direct"), Run("mlfs")
        cluster.train(alone, lambda _: images, [*words, "--epochs", "2"], lambda: None)
        compute_MBps = total / args.nodes / 1e6 / alone.epochs[1].seconds
        modelled = Modelled(
            images, args.nodes, args.MBps, compute_MBps, args.ram, args.staging, args.epochs, BATCH_SIZE, SEED
        )
        console.print("$ mlfs simulate scenario.toml --policy mlfs --json", style="bold", highlight=False)
        model = [epoch["seconds"] for epoch in modelled.epochs_of_model(work)]
        words += ["--epochs", str(args.epochs)]
        with slow_source(images, source, args) as root_fd:
            cluster.train(direct, lambda _: source, words, lambda: None)
            source_counts(root_fd, reset=True)
            with cluster.mounted(source, ["--ram", args.ram, "--staging", args.staging]):
                seen: list[Seen] = []

                def look() -> None:
                    source_bytes = source_counts(root_fd)["bytes"]
                    seen.append(Seen(source_bytes, network.sent_bytes(), cluster.fetched(), *core_seconds()))

                look()
                cluster.train(through, lambda node: node.data, words, look, job.split())
        links_s = cluster.all_to_all_s(int(over_links(seen)) // (args.nodes * max(1, args.nodes - 1)))
        console.print(epochs_table(direct, through, model, seen))
        console.print(links_table(seen))
        return 0 if figures(args, total, alone.epochs[1].seconds, direct, through, model, seen, links_s) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on four nodes, directly and through mlfs. Compare.")
    parser.add_argument("--nodes", type=int, default=4, help="network namespaces (default: 4)")
    parser.add_argument("--rate", type=int, default=1000, help="Mbit/s of each link and of the source (default: 1000)")
    parser.add_argument("--files", type=int, default=2400, help="arrays of pixels (default: 2400)")
    parser.add_argument("--side", type=int, default=384, help="each has SIDE x SIDE x 3 bytes (default: 384)")
    parser.add_argument("--epochs", type=int, default=4, help="of each run (default: 4)")
    parser.add_argument("--ram", default="400MB", help="each node's cache (default: 400MB)")
    parser.add_argument("--staging", default="64MB", help="each node's staging window (default: 64MB)")
    parser.add_argument("--open-latency", default="1ms", help="of the source (default: 1ms)")
    parser.add_argument("--keep", action="store_true", help="leave the work directory, with data set and logs")
    args = parser.parse_args()
    args.MBps = args.rate / 8 * PAYLOAD
    args.bandwidth = f"{args.MBps:.1f}M"
    check_able()
    signal.signal(signal.SIGTERM, stop)
    try:
        return demo(args)
    except KeyboardInterrupt:
        console.print("demo: interrupted; everything is cleaned up")
        return 130


if __name__ == "__main__":
    sys.exit(main())
