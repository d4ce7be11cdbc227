"""The part `served` of scripts/bench: four nodes read data sets of half, once and twice all their caches, in four ways.

Directly; through mlfs in the true order; in an order that mlfs deals by location (Yang and Cong); in one that it
shuffles where samples lie (DeepIO). In: a directory to work in. Out: for each the seconds of an epoch, beside what
`mlfs simulate` says of the same cluster, bytes of the source and bytes over the links. The nodes are those of
scripts/demo-cluster: a network namespace, a mount and an agent each, links and the source limited alike. The readers
compute nothing (scripts/read_in_order.py). Root is needed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cluster_model import Modelled
from cluster_net import Network, check_able
from cluster_nodes import COMMAND_TIMEOUT_S, Cluster
from demo import BIN, Run, console, slow_source, source_counts
from demo_cluster import PAYLOAD, Seen, core_seconds, make_arrays

NODES, EPOCHS, BATCH_SIZE, SEED = 4, 4, 16, 0
RAM_BYTES, STAGING_BYTES = 100_000_000, 32_000_000
SIZES = (0.5, 1.0, 2.0)
# What each way of reading through mlfs is registered with as --serve.
SERVED = {"true order": "", "locality": "locality", "opportunistic": "opportunistic"}


def served(work: Path, data: Path, rounds: int, rate_mbit: int = 1000, side: int = 384) -> None:
    """four nodes, links and source of 1 Gbit/s; s an epoch. Wanted: within 15 % of the simulator"""
    check_able()
    mbps = rate_mbit / 8 * PAYLOAD
    caches = NODES * RAM_BYTES
    files = round(max(SIZES) * caches / (3 * side * side + 128))
    total = make_arrays(work / "images", files, side)
    for size in SIZES:
        part = _part(work, work / "images", round(files * size / max(SIZES)))
        modelled = Modelled(
            part, NODES, mbps, 100_000.0, str(RAM_BYTES), str(STAGING_BYTES), EPOCHS, BATCH_SIZE, SEED
        )  # fmt: skip
        expected = {name: replace(modelled, serve=serve).epochs_of_model(work) for name, serve in SERVED.items()}
        bound_s = total * size / max(SIZES) / 1e6 / mbps
        console.print(f"  data set of {size:g} x all caches; read of the source once: {bound_s:.2f} s", highlight=False)
        for name in ("direct", *SERVED):
            run, seen = _measured(work, part, mbps, rate_mbit, name)
            _print(name, run, seen, expected.get(name, []))


def _part(work: Path, images: Path, files: int) -> Path:
    """The first files of the data set, in a directory of their own."""
    part = work / f"part{files}"
    for path in sorted(images.rglob("*.npy"), key=lambda path: path.name)[:files]:
        into = part / path.parent.name
        into.mkdir(parents=True, exist_ok=True)
        os.link(path, into / path.name)
    return part


def _flags(name: str) -> str:
    flags = f"--name bench --sampler torch-distributed --seed {SEED} --epochs {EPOCHS} --batch-size {BATCH_SIZE}"
    serve = SERVED.get(name)
    return f"{flags} --world-size {NODES} --extensions npy {f'--serve {serve}' if serve else ''}"


def _measured(work: Path, part: Path, mbps: float, rate_mbit: int, name: str) -> tuple[Run, list[Seen]]:
    """Read all epochs. Returns their times, and what had been counted before and after each."""
    run, seen = Run(name), list[Seen]()
    base = work / f"{part.name}-{name.replace(' ', '-')}"
    source, lists = base / "pfs", base / "lists"
    source.mkdir(parents=True)
    args = argparse.Namespace(open_latency="1ms", bandwidth=f"{mbps:.1f}M")
    through = name in SERVED
    with Network(NODES, f"{rate_mbit}mbit", base) as network, slow_source(part, source, args) as root_fd:
        cluster = Cluster(network, base)

        def look() -> None:
            fetched = cluster.fetched() if through else None
            seen.append(Seen(source_counts(root_fd)["bytes"], network.sent_bytes(), fetched or {}, *core_seconds()))

        def read(data: str, where: Path | None, register: Sequence[str]) -> None:
            look()
            words = [data, "--epochs", str(EPOCHS)]
            cluster.train(run, lambda node: where or node.data, words, look, register, "read_in_order.py")

        if not through:
            _write_lists(part, lists)
            read(f"{lists}/{{epoch}}.{{rank}}", source, ())
        else:
            flags = ["--ram", str(RAM_BYTES), "--staging", str(STAGING_BYTES), "--infer", "off"]
            with cluster.mounted(source, flags):
                read('"$DATA"/.mlfs/order/bench/{epoch}/{rank}', None, _flags(name).split())
    return run, seen


def _write_lists(part: Path, lists: Path) -> None:
    """The lists of the true order, for those who read without a mount."""
    lists.mkdir()
    for epoch in range(EPOCHS):
        for rank in range(NODES):
            words = [*_flags("direct").split(), "--epoch", str(epoch), "--rank", str(rank)]
            done = subprocess.run(
                [BIN / "mlfs", "order", part, *words], check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S
            )
            (lists / f"{epoch}.{rank}").write_bytes(done.stdout)


def _print(name: str, run: Run, seen: Sequence[Seen], expected: Sequence[dict[str, float]]) -> None:
    """A line: the first epoch, and the median of the later ones, beside the model's."""
    first_s, later_s = run.epochs[0].seconds, statistics.median(epoch.seconds for epoch in run.epochs[1:])
    later = len(run.epochs) - 1
    source = [(seen[1].source - seen[0].source) / 1e6, (seen[-1].source - seen[1].source) / 1e6 / later]
    links = (sum(seen[-1].sent) - sum(seen[1].sent)) / 1e6 / later
    busy = (seen[-1].busy_s - seen[1].busy_s) / (seen[-1].all_s - seen[1].all_s)
    model = ""
    if expected:
        first, rest = expected[0]["seconds"], statistics.median(epoch["seconds"] for epoch in expected[1:])
        pfs = statistics.median(epoch["pfs_bytes"] for epoch in expected[1:]) / 1e6
        model = (
            f"; model {first:.2f} s, {rest:.2f} s, {pfs:.0f} MB: {first_s / first:.2f} and {later_s / rest:.2f} of it"
        )
    console.print(
        f"    {name:13} epoch 0 {first_s:5.2f} s, later {later_s:5.2f} s;"
        f" source {source[0]:.0f} and {source[1]:.0f} MB, links {links:.0f} MB; cores {busy:.0%} busy{model}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
