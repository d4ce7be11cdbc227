"""The part `served` of scripts/bench: four nodes read data sets of half, once and twice all their caches, in four ways.

Directly; through mlfs in the true order; in an order that mlfs deals by location (Yang and Cong); in one that it
shuffles where samples lie (DeepIO). In: a directory to work in. Out: for each the seconds of an epoch, beside what
`mlfs simulate` says of the same cluster and beside what plain TCP takes for the bytes over the links, bytes of the
source and bytes over the links; for each data set what the papers say of such a cluster. The nodes are those of
scripts/demo-cluster: a network namespace, a mount and an agent each, links and the source limited alike. The readers
compute nothing (scripts/read_in_order.py). Root is needed.

All nodes share the cores of one machine, so measured first is what these allow: what the nodes' readers get, all at
once, when each mount holds in its RAM all that its reader wants. The simulator takes it for what a loader works
through.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cluster_model import Modelled
from cluster_net import Network, check_able
from cluster_nodes import COMMAND_TIMEOUT_S, Cluster
from demo import BIN, Run, console, slow_source, source_counts
from demo_cluster import PAYLOAD, Seen, core_seconds, make_arrays

from mlfs.plan.scale_out import ScaleOut

NODES, EPOCHS, BATCH_SIZE, SEED = 4, 4, 16, 0
DIRECT_EPOCHS = 1  # without a mount one epoch is like the other
OWN_RAM = "own RAM"
SIZES = (0.5, 1.0, 2.0)
SIDE = 384  # of a picture: 442 kB
# What each way of reading through mlfs is registered with as --serve.
SERVED = {"true order": "", "locality": "locality", "opportunistic": "opportunistic"}
# What Yang and Cong measured (VI-A): so many times less loading time than direct reads at so many nodes, where so much
# of a batch moves (Fig. 6, local batches of 32).
PAPER_NODES, PAPER_TIMES, PAPER_MOVED_SHARE = 256, 34, 0.069


class Room(NamedTuple):
    """The room of a node: its RAM tier, and its staging window."""

    ram_bytes: int
    staging_bytes: int


FAST = Room(100_000_000, 32_000_000)
# An epoch of half the caches is six windows long, so its end counts for little: the model does not know that the nodes
# stop there, and with a window of two thirds of an epoch most of what it predicts depends on that.
SLOW = Room(200_000_000, 16_000_000)


class Expected(NamedTuple):
    """What the simulator says of each epoch: by the cost model, and with the daemon's scheduler."""

    model: list[dict[str, float]]
    scheduled_s: list[float]


def served(work: Path, data: Path, rounds: int) -> None:
    """four nodes, links and source of 1 Gbit/s; s an epoch. Wanted: within 15 % of the simulator"""
    _compare(work, 1000, SIZES, FAST)


def served_slow(work: Path, data: Path, rounds: int) -> None:
    """the same with links and source of 100 Mbit/s, for which two cores suffice, and longer epochs"""
    _compare(work, 100, SIZES[:2], SLOW)


def _compare(work: Path, rate_mbit: int, sizes: Sequence[float], room: Room) -> None:
    """Read data sets of some sizes in all ways."""
    check_able()
    mbps = _mbps(rate_mbit)
    caches = NODES * room.ram_bytes
    files = round(max(sizes) * caches / (3 * SIDE * SIDE + 128))
    total = make_arrays(work / "images", files, SIDE)
    half = _part(work, work / "images", round(files * room.ram_bytes / 2 / total))
    loader_mbps = _own_ram_mbps(work, half, room)
    console.print(
        f"  each node's reader gets {loader_mbps:.0f} MB/s of its own mount's RAM, all {NODES} at once: more the "
        f"{os.cpu_count()} cores do not allow",
        highlight=False,
        soft_wrap=True,
    )
    for size in sizes:
        part = _part(work, work / "images", round(files * size / max(sizes)))
        modelled = Modelled(
            part, NODES, mbps, 100_000.0, str(room.ram_bytes), str(room.staging_bytes), EPOCHS, BATCH_SIZE, SEED,
            loader_MBps=loader_mbps,
        )  # fmt: skip
        ways = {name: replace(modelled, serve=serve) for name, serve in SERVED.items()}
        expected = {name: Expected(way.epochs_of_model(work), way.scheduled_s(work)) for name, way in ways.items()}
        data_mb = total * size / max(sizes) / 1e6
        console.print(
            f"  data set of {size:g} x all caches; read of the source once: {data_mb / mbps:.2f} s", highlight=False
        )
        direct, seen, _ = _measured(work, part, rate_mbit, "direct", room)
        _print_direct(direct, seen)
        runs, moved = {}, {}
        for name in SERVED:
            runs[name], seen, links_s = _measured(work, part, rate_mbit, name, room)
            _print(name, runs[name], seen, links_s, expected[name])
            moved[name] = _over_links(seen) / 1e6 / data_mb
        rates = ScaleOut(
            data_mb, modelled.compute_MBps, mbps, loader_mbps, remote_rate=NODES * mbps, balance_rate=NODES * mbps
        )
        _print_papers(rates, min(1.0, 1 / size), moved["locality"], direct, runs)


def _mbps(rate_mbit: int) -> float:
    """Millions of bytes of samples a second over a link."""
    return rate_mbit / 8 * PAYLOAD


def _part(work: Path, images: Path, files: int) -> Path:
    """The first files of the data set, in a directory of their own."""
    part = work / f"part{files}"
    for path in sorted(images.rglob("*.npy"), key=lambda path: path.name)[:files]:
        into = part / path.parent.name
        into.mkdir(parents=True, exist_ok=True)
        os.link(path, into / path.name)
    return part


def _flags(name: str, world_size: int = NODES) -> str:
    flags = f"--name bench --sampler torch-distributed --seed {SEED} --epochs {EPOCHS} --batch-size {BATCH_SIZE}"
    serve = SERVED.get(name)
    return f"{flags} --world-size {world_size} --extensions npy {f'--serve {serve}' if serve else ''}"


def _mount_flags(room: Room) -> list[str]:
    return ["--ram", str(room.ram_bytes), "--staging", str(room.staging_bytes), "--infer", "off"]


def _own_ram_mbps(work: Path, part: Path, room: Room) -> float:
    """Millions of bytes a second that a node's reader gets, all nodes at once, of a mount that holds all of `part`.

    Without peers: a job of its own on each node, whose epochs after the first read no byte but of the mount's RAM.
    """
    run, base = Run(OWN_RAM), work / "own-ram"
    base.mkdir()
    with Network(NODES, "", base) as network:
        cluster = Cluster(network, base)
        with cluster.mounted(part, _mount_flags(room)):
            for node in cluster.nodes:
                cluster.command(node, "mlfs", "register", node.data, *_flags(OWN_RAM, world_size=1).split())
            words = ['"$DATA"/.mlfs/order/bench/{epoch}/0', "--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE)]
            cluster.train(run, lambda node: node.data, words, lambda: None, program="read_in_order.py")
    total = sum(path.stat().st_size for path in part.rglob("*.npy"))
    return total / 1e6 / statistics.median(epoch.seconds for epoch in run.epochs[1:])


def _measured(work: Path, part: Path, rate_mbit: int, name: str, room: Room) -> tuple[Run, list[Seen], float]:
    """Read all epochs.

    Returns:
        their times, what had been counted before and after each, and the seconds that plain TCP takes for what an epoch
        after the first sends over the links.
    """
    run, seen = Run(name), list[Seen]()
    base = work / f"{part.name}-{name.replace(' ', '-')}"
    source, lists = base / "pfs", base / "lists"
    source.mkdir(parents=True)
    args = argparse.Namespace(open_latency="1ms", bandwidth=f"{_mbps(rate_mbit):.1f}M")
    through = name in SERVED
    epochs = EPOCHS if through else DIRECT_EPOCHS
    with Network(NODES, f"{rate_mbit}mbit", base) as network, slow_source(part, source, args) as root_fd:
        cluster = Cluster(network, base)

        def look() -> None:
            fetched = cluster.fetched() if through else None
            seen.append(Seen(source_counts(root_fd)["bytes"], network.sent_bytes(), fetched or {}, *core_seconds()))

        def read(data: str, where: Path | None, register: Sequence[str]) -> None:
            look()
            words = [data, "--epochs", str(epochs), "--batch-size", str(BATCH_SIZE)]
            cluster.train(run, lambda node: where or node.data, words, look, register, "read_in_order.py")

        if not through:
            _write_lists(part, lists)
            read(f"{lists}/{{epoch}}.{{rank}}", source, ())
        else:
            with cluster.mounted(source, _mount_flags(room)):
                read('"$DATA"/.mlfs/order/bench/{epoch}/{rank}', None, _flags(name).split())
                run.status = cluster.statuses()[0]
        links_s = cluster.all_to_all_s(round(_over_links(seen) / (NODES * (NODES - 1)))) if through else 0.0
    return run, seen, links_s


def _over_links(seen: Sequence[Seen]) -> float:
    """The bytes that an epoch after the first sends over the links."""
    return (sum(seen[-1].sent) - sum(seen[1].sent)) / (len(seen) - 2)


def _write_lists(part: Path, lists: Path) -> None:
    """The lists of the true order, for those who read without a mount."""
    lists.mkdir()
    for epoch in range(DIRECT_EPOCHS):
        for rank in range(NODES):
            words = [*_flags("direct").split(), "--epoch", str(epoch), "--rank", str(rank)]
            done = subprocess.run(
                [BIN / "mlfs", "order", part, *words], check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S
            )
            (lists / f"{epoch}.{rank}").write_bytes(done.stdout)


def _busy(before: Seen, after: Seen) -> float:
    """The share of the cores' time in which they computed."""
    return (after.busy_s - before.busy_s) / (after.all_s - before.all_s)


def _print_direct(run: Run, seen: Sequence[Seen]) -> None:
    source = (seen[1].source - seen[0].source) / 1e6
    console.print(
        f"    direct        an epoch {run.epochs[0].seconds:5.2f} s; source {source:.0f} MB;"
        f" cores {_busy(seen[0], seen[1]):.0%} busy",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _later_s(run: Run) -> float:
    return statistics.mean(epoch.seconds for epoch in run.epochs[1:])


def _print(name: str, run: Run, seen: Sequence[Seen], links_s: float, expected: Expected) -> None:
    """A line: the first epoch, and the mean of the later ones, beside what the simulator says of them."""
    first_s, later_s = run.epochs[0].seconds, _later_s(run)
    source = [(seen[1].source - seen[0].source) / 1e6, (seen[-1].source - seen[1].source) / 1e6 / (len(seen) - 2)]
    first, rest = expected.model[0]["seconds"], statistics.mean(epoch["seconds"] for epoch in expected.model[1:])
    pfs = statistics.mean(epoch["pfs_bytes"] for epoch in expected.model[1:]) / 1e6
    scheduled = statistics.mean(expected.scheduled_s[1:])
    console.print(
        f"    {name:13} epoch 0 {first_s:5.2f} s, later {later_s:5.2f} s;"
        f" source {source[0]:.0f} and {source[1]:.0f} MB, links {_over_links(seen) / 1e6:.0f} MB;"
        f" cores {_busy(seen[1], seen[-1]):.0%} busy; plain TCP {links_s:.2f} s for its links;"
        f" model {first:.2f} s, {rest:.2f} s, {pfs:.0f} MB: {first_s / first:.2f} and {later_s / rest:.2f} of it;"
        f" by the scheduler {scheduled:.2f} s: {later_s / scheduled:.2f}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _print_papers(
    rates: ScaleOut, cached_share: float, moved_share: float, direct: Run, runs: Mapping[str, Run]
) -> None:
    """What the papers say of this cluster, beside what was measured.

    Args:
        rates: of the source, the links and the readers. cached_share: of the data, in all caches together. moved_share:
            of what is cached, that went over the links in the locality order. runs: by the name in SERVED.
    """
    said = {
        "true order": rates.loading_s(NODES, rates.cached_io_s(NODES, cached_share)),
        "locality": rates.loading_s(NODES, rates.local_io_s(cached_share, min(1.0, moved_share / cached_share))),
    }
    large = replace(rates, balance_rate=rates.balance_rate * PAPER_NODES / NODES)
    large_s = large.loading_s(PAPER_NODES, large.local_io_s(cached_share, PAPER_MOVED_SHARE))
    direct_s, direct_said_s = direct.epochs[0].seconds, rates.loading_s(NODES)
    faster = {name: direct_s / _later_s(run) for name, run in runs.items()}
    times = [f"{name} {direct_said_s / seconds:.1f} (here {faster[name]:.1f})" for name, seconds in said.items()]
    [job] = runs["opportunistic"].status["jobs"]
    spec = job["spec"]
    console.print(
        f"    Yang and Cong, eq. 4, 7 and 8 with these rates, times as fast as direct: {', '.join(times)};"
        f" locality at {PAPER_NODES} nodes {large.loading_s(PAPER_NODES) / large_s:.0f}"
        f" (on their cluster they measured {PAPER_TIMES})\n"
        f"    DeepIO: {faster['opportunistic']:.1f} times as fast as direct, in {spec['rounds']} rounds;"
        f" {spec['level_reached']:.1%} of a uniform shuffle's entropy, {spec['published_level']:.2%} by their eq. 4",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
