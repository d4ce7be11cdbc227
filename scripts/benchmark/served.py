"""The part `served` of scripts/bench: four nodes read data sets of half, once and twice all their caches, in four ways.

Directly; through mlfs in the true order; in an order that mlfs deals by location (Yang and Cong); in one that it
shuffles where samples lie (DeepIO). In: a directory to work in. Out: for each the seconds of an epoch, beside what
`mlfs simulate` says of the same cluster and beside what plain TCP takes for the bytes over the links, bytes of the
source and bytes over the links; for each data set what the papers say of such a cluster. The nodes are those of
scripts/demo-cluster: a network namespace, a mount and an agent each, links and the source limited alike. The readers
compute nothing (scripts/read_in_order.py). Root is needed.

All nodes share the cores of one machine, so measured first is what these allow. What the nodes' readers get, all at
once, when each mount holds in its RAM all that its reader wants, is what the simulator takes for a loader's rate. What
that computes for each byte, and plain TCP for each byte over a link, gives the least that an epoch takes the cores: the
simulator knows no cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cluster_model import Modelled
from cluster_net import Network, check_able
from cluster_nodes import COMMAND_TIMEOUT_S, Cluster
from demo import BIN, Run, console, slow_source, source_counts
from demo_cluster import PAYLOAD, Seen, busy_share, core_seconds, make_arrays, over_links

from benchmark.counters import AT_EDGES, NEARLY_ALL, PFS, must_be, must_be_followed, settled
from mlfs.lab.sizing.scaling import ScaleOut
from mlfs.served.locality import imbalance

NODES, EPOCHS, BATCH_SIZE, SEED = 4, 4, 16, 0
DIRECT_EPOCHS = 1  # without a mount one epoch is like the other
OWN_RAM = "own RAM"
SIZES = (0.5, 1.0, 2.0)
SIDE = 384  # of a picture: 442 kB
# What each way of reading through mlfs is registered with as --serve.
SERVED = {"true order": "", "locality": "locality", "opportunistic": "opportunistic"}
# What each node sends to each other one to find out what plain TCP computes for a byte.
TCP_BYTES = 100_000_000
# What Yang and Cong measured (VI-A): so many times less loading time than direct reads at so many nodes, where so much
# of a batch moves (Fig. 6, local batches of 32).
PAPER_NODES, PAPER_TIMES, PAPER_MOVED_SHARE = 256, 34, 0.069
DRAWN_BATCHES = 10_000


class Room(NamedTuple):
    """The room of a node: its RAM tier, and its staging window."""

    ram_bytes: int
    staging_bytes: int


FAST = Room(100_000_000, 32_000_000)
# An epoch of half the caches is six windows long, so its end counts for little: the model does not know that the nodes
# stop there, and with a window of two thirds of an epoch most of what it predicts depends on that.
SLOW = Room(200_000_000, 16_000_000)


class Machine(NamedTuple):
    """What the cores allow, which all nodes share.

    Attributes:
        loader_mbps: millions of bytes a second that each node's reader gets of its own mount's RAM, all nodes at once.
        read_s, sent_s: seconds of a core for a million bytes that are read so, and that plain TCP sends.
    """

    loader_mbps: float
    read_s: float
    sent_s: float

    def least_s(self, read_mb: float, sent_mb: float) -> float:
        """The seconds that all cores together take for no more than that."""
        return (self.read_s * read_mb + self.sent_s * sent_mb) / (os.cpu_count() or 1)


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
    caches = NODES * room.ram_bytes
    files = round(max(sizes) * caches / (3 * SIDE * SIDE + 128))
    total = make_arrays(work / "images", files, SIDE)
    half = _part(work, work / "images", round(files * room.ram_bytes / 2 / total))
    machine = _of_machine(work, half, room)
    console.print(
        f"  each node's reader gets {machine.loader_mbps:.0f} MB/s of its own mount's RAM, all {NODES} at once: more "
        f"the {os.cpu_count()} cores do not allow; a core computes {1000 * machine.read_s:.2f} s to read 1 GB so, and "
        f"{1000 * machine.sent_s:.2f} s to send it over plain TCP",
        highlight=False,
        soft_wrap=True,
    )
    for size in sizes:
        part = _part(work, work / "images", round(files * size / max(sizes)))
        _compare_size(work, part, size, total * size / max(sizes) / 1e6, rate_mbit, room, machine)


def _compare_size(
    work: Path, part: Path, size: float, data_mb: float, rate_mbit: int, room: Room, machine: Machine
) -> None:  # fmt: skip
    """Read one data set in all ways, and say what the simulator and the papers say of it.

    Args:
        part: the data set. size: how large it is beside all caches together. data_mb: in millions of bytes.
    """
    mbps = _mbps(rate_mbit)
    modelled = Modelled(
        part, NODES, mbps, 100_000.0, str(room.ram_bytes), str(room.staging_bytes), EPOCHS, BATCH_SIZE, SEED,
        loader_MBps=machine.loader_mbps,
    )  # fmt: skip
    ways = {name: replace(modelled, serve=serve) for name, serve in SERVED.items()}
    expected = {name: Expected(way.epochs_of_model(work), way.scheduled_s(work)) for name, way in ways.items()}
    console.print(
        f"  data set of {size:g} x all caches; read of the source once: {data_mb / mbps:.2f} s", highlight=False
    )
    direct, seen, _ = _measured(work, part, rate_mbit, "direct", room)
    _print_direct(direct, seen, sum(path.stat().st_size for path in part.rglob("*.npy")) / 1e6)
    runs, links_mb = {}, {}
    for name in SERVED:
        runs[name], seen, links_s = _measured(work, part, rate_mbit, name, room)
        links_mb[name] = over_links(seen) / 1e6
        least_s = machine.least_s(data_mb, links_mb[name])
        _print(name, runs[name], seen, links_s, least_s, expected[name])
    rates = ScaleOut(
        data_mb, modelled.compute_MBps, mbps, machine.loader_mbps, remote_rate=NODES * mbps,
        balance_rate=NODES * mbps,
    )  # fmt: skip
    _print_papers(rates, min(1.0, 1 / size), direct, runs, links_mb)


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


def _of_machine(work: Path, part: Path, room: Room) -> Machine:
    """Measure what the cores allow: each node reads `part` of its own mount's RAM, then each sends to each other one.

    Without peers: a job of its own on each node, whose epochs after the first read no byte but of the mount's RAM.
    """
    run, base, busy_s = Run(OWN_RAM), work / "own-ram", list[float]()
    base.mkdir()
    with Network(NODES, "", base) as network:
        cluster = Cluster(network, base)
        with cluster.mounted(part, _mount_flags(room)):
            for node in cluster.nodes:
                cluster.command(node, "mlfs", "register", node.data, *_flags(OWN_RAM, world_size=1).split())
            words = ['"$DATA"/.mlfs/order/bench/{epoch}/0', "--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE)]
            cluster.train(
                run, lambda node: node.data, words, lambda: busy_s.append(core_seconds()[0]),
                program="read_in_order.py",
            )  # fmt: skip
            _must_be_read_of_own_ram(cluster, len(list(part.rglob("*.npy"))))
        sent = [_busy_to_send_s(cluster, count) for count in (0, TCP_BYTES)]
    mb = sum(path.stat().st_size for path in part.rglob("*.npy")) / 1e6
    return Machine(
        mb / statistics.median(epoch.seconds for epoch in run.epochs[1:]),
        (busy_s[-1] - busy_s[0]) / (EPOCHS - 1) / (NODES * mb),
        (sent[1] - sent[0]) / (NODES * (NODES - 1) * TCP_BYTES / 1e6),
    )


def _busy_to_send_s(cluster: Cluster, count: int) -> float:
    """What all cores compute while each node sends so many bytes to each other one."""
    before_s = core_seconds()[0]
    cluster.all_to_all_s(count)
    return core_seconds()[0] - before_s


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
                _must_be_followed_by_all(cluster, len(list(part.rglob("*.npy"))))
        links_s = cluster.all_to_all_s(round(over_links(seen) / (NODES * (NODES - 1)))) if through else 0.0
    return run, seen, links_s


def _statuses(cluster: Cluster) -> list[dict[str, Any]]:
    """What the mounts say when all reads are counted."""
    return [
        settled(lambda: json.loads((node.data / ".mlfs/status").read_bytes()))  # noqa: B023 - called here
        for node in cluster.nodes
    ]


def _must_be_read_of_own_ram(cluster: Cluster, files: int) -> None:
    """Each node has read each file of the source once, and nothing of other nodes."""
    for status in _statuses(cluster):
        must_be_followed(status, EPOCHS * files)
        fetched = {route: tally["count"] for route, tally in status["fetches"].items()}
        once = fetched[PFS] <= max(files / NEARLY_ALL, files + AT_EDGES)
        must_be("reads of the own RAM", once and fetched.keys() <= {PFS, "ram"}, fetched)


def _must_be_followed_by_all(cluster: Cluster, files: int) -> None:
    """The nodes' reads are those of the job, and came as predicted."""
    jobs = [job for status in _statuses(cluster) for job in status["jobs"]]
    told = [(job["agreed_opens"], job["observed_opens"]) for job in jobs]
    agreed = sum(agreed for agreed, _ in told)
    must_be("a job that all nodes follow", len(jobs) == NODES and agreed >= NEARLY_ALL * EPOCHS * files, told)


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


def _print_direct(run: Run, seen: Sequence[Seen], data_mb: float) -> None:
    source = (seen[1].source - seen[0].source) / 1e6
    must_be("direct reads of all data", source >= data_mb, f"{source:.0f} of {data_mb:.0f} MB were read of the source")
    console.print(
        f"    direct        an epoch {run.epochs[0].seconds:5.2f} s; source {source:.0f} MB;"
        f" cores {busy_share(seen[0], seen[1]):.0%} busy",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _later_s(run: Run) -> float:
    return statistics.mean(epoch.seconds for epoch in run.epochs[1:])


def _print(
    name: str, run: Run, seen: Sequence[Seen], links_s: float, least_s: float, expected: Expected
) -> None:  # fmt: skip
    """A line: the first epoch, and the mean of the later ones, beside what the simulator says of them.

    Args:
        links_s: what plain TCP takes for what a later epoch sends over the links. least_s: what the cores take for an
            epoch at least.
    """
    first_s, later_s = run.epochs[0].seconds, _later_s(run)
    source = [(seen[1].source - seen[0].source) / 1e6, (seen[-1].source - seen[1].source) / 1e6 / (len(seen) - 2)]
    first, rest = expected.model[0]["seconds"], statistics.mean(epoch["seconds"] for epoch in expected.model[1:])
    pfs = statistics.mean(epoch["pfs_bytes"] for epoch in expected.model[1:]) / 1e6
    scheduled = statistics.mean(expected.scheduled_s[1:])
    console.print(
        f"    {name:13} epoch 0 {first_s:5.2f} s, later {later_s:5.2f} s;"
        f" source {source[0]:.0f} and {source[1]:.0f} MB, links {over_links(seen) / 1e6:.0f} MB;"
        f" cores {busy_share(seen[1], seen[-1]):.0%} busy, which take {least_s:.2f} s at least:"
        f" {later_s / least_s:.2f} of it;"
        f" plain TCP {links_s:.2f} s for its links;"
        f" model {first:.2f} s, {rest:.2f} s, {pfs:.0f} MB: {first_s / first:.2f} and {later_s / rest:.2f} of it;"
        f" by the scheduler {scheduled:.2f} s: {later_s / scheduled:.2f}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _moved_share() -> float:
    """How much of a batch moves, as in Fig. 6: samples fall to nodes by chance. The mean of many batches."""
    batches = np.random.default_rng(SEED).multinomial(NODES * BATCH_SIZE, [1 / NODES] * NODES, DRAWN_BATCHES)
    return float(imbalance(batches).mean())


def _print_papers(
    rates: ScaleOut, cached_share: float, direct: Run, runs: Mapping[str, Run], links_mb: Mapping[str, float]
) -> None:
    """What the papers say of this cluster, beside what was measured.

    Args:
        rates: of the source, the links and the readers. cached_share: of the data, in all caches together. runs,
            links_mb: by the name in SERVED; millions of bytes that an epoch after the first sends over the links.
    """
    moved_share = _moved_share()
    said = {
        "true order": rates.loading_s(NODES, rates.cached_io_s(NODES, cached_share)),
        "locality": rates.loading_s(NODES, rates.local_io_s(cached_share, moved_share)),
    }
    cached_mb = cached_share * rates.data
    moved_mb = {"true order": cached_mb * (NODES - 1) / NODES, "locality": cached_mb * moved_share}
    over_links = [f"{name} {mb:.0f} (here {links_mb[name]:.0f})" for name, mb in moved_mb.items()]
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
        f" (on their cluster they measured {PAPER_TIMES});"
        f" MB over the links, with {moved_share:.1%} of a batch that moves: {', '.join(over_links)}\n"
        f"    DeepIO: {faster['opportunistic']:.1f} times as fast as direct, in {spec['rounds']} rounds;"
        f" {spec['level_reached']:.1%} of a uniform shuffle's entropy, {spec['published_level']:.2%} by their eq. 4",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
