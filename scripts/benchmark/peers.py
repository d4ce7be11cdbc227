"""The part `peers` of scripts/bench: agents beside plain loops over MPI, and mounts that are nodes on one machine.

In: a directory to work in, samples of 110 kB. Out: lines of figures beside their limits, each measured in the same run.
The ranks' own programs are in scripts/benchmark/peer_rank.py.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmark.counters import NEARLY_ALL, Since, must_be, settled

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_BYTES = 110_000
# Samples in one run of two ranks: a second or two of work on an idle machine.
P1_SAMPLES = 30_000
BY_SIZE = {4_000: 60_000, 110_000: 20_000, 1_000_000: 3_000, 8_000_000: 300}
IDLE_S = 5.0
# An agent looks the less often the longer nothing has happened, as seldom as it ever does after 20 of its longest naps.
BEFORE_IDLE_S = 2.0
READS = 40


def peers(work: Path, data: Path, rounds: int) -> None:
    """nodes give each other samples. Wanted: >= 0.5 of a plain loop, 0.8 of the RAM tier, idle < 1 % of a core"""
    agents_and_loops(rounds)
    one_sided(rounds)
    with nodes(work / "two", data, [["--ram", "2G", "--staging", "1M"], ["--ram", "1M", "--staging", "2G"]]) as two:
        read_all(two[0])  # all that is owned by anybody lies in the memory of node 0 then
        kept = sum(tier["samples"] for tier in settled(two[0].status)["tiers"])
        must_be("samples in a peer's memory", kept >= NEARLY_ALL * len(paths_of(two[0])), f"{kept} are kept there")
        idle_and_back_off(two)
        to_the_page_cache(work, data, two)
    growth(work, data)


def ranks(what: str, samples: int, size_bytes: int) -> dict[int, dict[str, float]]:
    """Run two ranks of scripts/benchmark/peer_rank.py; their figures by rank."""
    program = [sys.executable, str(ROOT / "scripts/benchmark/peer_rank.py"), what, str(samples), str(size_bytes)]
    command = [str(Path(sys.executable).parent / "mpiexec"), "-n", "2", *program]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=120)
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(figures) != 2:
        raise SystemExit(f"{what}: {done.stdout}{done.stderr}")
    return {int(figure["rank"]): figure for figure in figures}


def agents_and_loops(rounds: int) -> None:
    """Two agents beside the same loop written plainly, in turns."""
    ratios, lines = [], []
    for _ in range(rounds):
        plain, agents = (ranks(what, P1_SAMPLES, SAMPLE_BYTES) for what in ("plain", "agents"))
        ratios.append(agents[0]["rate"] / plain[0]["rate"])
        lines.append((plain[0]["rate"], agents[0]["rate"], agents[0]["cpu_us"], agents[1]["cpu_us"]))
    plain_rate, rate, asker_us, owner_us = (statistics.median(column) for column in zip(*lines, strict=True))
    ratio = statistics.median(ratios)
    print(
        f"  (p1) agents {rate:.0f} samples/s, plain loop {plain_rate:.0f}; ratio {ratio:.2f}"
        f" (all {[round(r, 2) for r in ratios]}), of 0.5: {ratio / 0.5:.2f};"
        f" CPU a sample: asker {asker_us:.0f} us, owner {owner_us:.0f} us, waiting included",
        flush=True,
    )


def one_sided(rounds: int) -> None:
    """One-sided reads of a registered arena beside requests and answers, by size."""
    for size_bytes, samples in BY_SIZE.items():
        rates: dict[str, list[float]] = {"messages": [], "rma": []}
        for _ in range(min(rounds, 3)):
            for what, found in rates.items():
                found.append(ranks(what, samples, size_bytes)[0]["rate"])
        messages, rma = statistics.median(rates["messages"]), statistics.median(rates["rma"])
        print(
            f"  (p3) {size_bytes:>9,} bytes: messages {messages:8.0f}/s, one-sided {rma:8.0f}/s,"
            f" one-sided of messages {rma / messages:.2f}",
            flush=True,
        )


# -- nodes


class Node:
    """A mount with a state of its own."""

    def __init__(self, directory: Path, source: Path, flags: Sequence[str]) -> None:
        self.path = directory / "mount"
        self.path.mkdir(parents=True)
        run = directory / "run"
        run.mkdir(mode=0o700)
        self.env = os.environ | {"XDG_CACHE_HOME": str(directory / "cache"), "MLFS_RUNTIME_DIR": str(run)}
        self.mlfs("mount", str(source), str(self.path), "--infer", "off", *flags)
        self.agent = 0

    def mlfs(self, *argv: str) -> None:
        """Run the mlfs command; its failure ends the benchmark."""
        command = [sys.executable, "-m", "mlfs.cli.main", *argv]
        done = subprocess.run(command, cwd=ROOT, env=self.env, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"mlfs {' '.join(argv)}: {done.stderr}")

    def status(self) -> dict[str, Any]:
        """What the mount says of itself."""
        found: dict[str, Any] = json.loads((self.path / ".mlfs/status").read_text())
        return found

    def fetched(self, route: str) -> int:
        """Samples that were fetched from there."""
        return int(self.status()["fetches"].get(route, {"count": 0})["count"])


@contextmanager
def nodes(directory: Path, source: Path, flags: Sequence[Sequence[str]]) -> Iterator[list[Node]]:
    """Nodes that have joined while the context lasts."""
    with ExitStack() as stack:
        found = []
        for number, words in enumerate(flags):
            found.append(Node(directory / str(number), source, words))
            stack.callback(found[-1].mlfs, "unmount", str(found[-1].path), "--force")
        command = [str(Path(sys.executable).parent / "mpiexec")]
        for number, node in enumerate(found):
            agent = [sys.executable, "-m", "mlfs.cli.main", "peers", str(node.path), "--peer-timeout", "20"]
            env = ["-env", "MLFS_RUNTIME_DIR", node.env["MLFS_RUNTIME_DIR"]]
            command += [*([":"] if number else []), "-n", "1", *env, *agent]
        launcher = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        stack.callback(launcher.wait, 30)
        stack.callback(launcher.terminate)
        until(lambda: all((node.status()["peers"] or {}).get("joined") for node in found))
        for node in found:
            node.agent = node.status()["peers"]["agent"]
        yield found


def until(condition: Callable[[], bool], patience_s: float = 120.0) -> None:
    """Wait for something. Raises: SystemExit when it does not come."""
    ends = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > ends:
            raise SystemExit("the nodes did not come so far in time")
        time.sleep(0.05)


def paths_of(node: Node) -> list[Path]:
    """All samples."""
    return sorted(node.path.glob("*/*.jpg"))


def read_all(node: Node) -> None:
    """Read each file once."""
    for path in paths_of(node):
        path.read_bytes()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Memory that a process has mapped and touched."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- what is measured of them


def idle_and_back_off(two: list[Node]) -> None:
    """CPU time of agents that nobody asks for anything, and what a read waits because they sleep."""
    time.sleep(BEFORE_IDLE_S)
    since = [Since(node.status) for node in two]
    before = [cpu_seconds(node.agent) for node in two]
    time.sleep(IDLE_S)
    shares = [(cpu_seconds(node.agent) - first) / IDLE_S for node, first in zip(two, before, strict=True)]
    fetched = [node.now().fetches for node in since]
    must_be("agents that nobody asks for anything", not any(sum(some.values()) for some in fetched), fetched)
    spent: dict[float, list[float]] = {0.0: [], 0.05: []}
    paths = paths_of(two[1])
    random.Random(0).shuffle(paths)  # files in their order would be fetched ahead: they are to be asked for when read
    for number, path in enumerate(paths[: 2 * READS]):
        pause_s = (0.0, 0.05)[number >= READS]
        time.sleep(pause_s)
        began = time.perf_counter()
        path.read_bytes()
        spent[pause_s].append((time.perf_counter() - began) * 1e3)
    counted, reads = since[1].now(), min(len(paths), 2 * READS)
    must_be(
        f"{reads} reads that a peer answers when they come",
        counted.by("peer") == counted.all_reads == counted.fetched("peer") == counted.stalls == reads,
        counted,
    )
    busy, after = (statistics.median(values) for values in spent.values())
    print(
        f"  (p4) idle agents: {', '.join(f'{share:.2%}' for share in shares)} of a core, of 1 %:"
        f" {max(shares) / 0.01:.2f};  a read from a peer: {busy:.1f} ms one after the other,"
        f" {after:.1f} ms after a pause of 50 ms",
        flush=True,
    )


def to_the_page_cache(work: Path, data: Path, two: list[Node]) -> None:
    """Samples prefetched from a peer's memory, beside those from the own memory of a mount that has no peers."""
    fields = {"seed": 0, "epochs": 1, "batch_size": 64}
    asker, owner = two[1], two[0]
    pids = {"agents": [asker.agent, owner.agent], "servers": [node.status()["pid"] for node in (asker, owner)]}
    before = {name: [cpu_seconds(pid) for pid in some] for name, some in pids.items()}
    first = asker.fetched("peer")
    rate = prefetched(asker, "peer", fields | {"world_size": 2})
    count = asker.fetched("peer") - first
    (asker_us, owner_us), (server_us, owners_server_us) = (
        [(cpu_seconds(pid) - spent) / count * 1e6 for pid, spent in zip(some, before[name], strict=True)]
        for name, some in pids.items()
    )
    alone = Node(work / "alone", data, ["--ram", "2G", "--staging", "2G"])
    try:
        read_all(alone)
        own = prefetched(alone, "ram", fields | {"world_size": 1})
    finally:
        alone.mlfs("unmount", str(alone.path), "--force")
    print(
        f"  (p2) to the page cache from a peer's memory {rate:.0f} samples/s ({count} of them), from the own memory"
        f" {own:.0f}; ratio {rate / own:.2f}, of 0.8: {rate / own / 0.8:.2f};  CPU a sample, waiting included: asker's"
        f" agent {asker_us:.0f} us, its server {server_us:.0f} us; owner's agent {owner_us:.0f} us,"
        f" its server {owners_server_us:.0f} us",
        flush=True,
    )


def prefetched(node: Node, route: str, fields: dict[str, int]) -> float:
    """Register a job, and wait until nothing more comes that way; samples a second while it came."""
    began = time.perf_counter()
    first, since = node.fetched(route), Since(node.status)
    seen = [(0.0, first)]
    (node.path / ".mlfs/control").write_text(json.dumps(fields))
    while len(seen) < 8 or seen[-1][1] == first or seen[-1][1] != seen[-6][1]:
        time.sleep(0.1)
        seen.append((time.perf_counter() - began, node.fetched(route)))
        if seen[-1][0] > 60:
            raise SystemExit(f"nothing more comes by the route {route}: {seen[-1]}")
    counted = since.now()
    must_be(
        f"samples that are fetched ahead from {route}",
        not counted.all_reads and counted.fetched(route) >= NEARLY_ALL * sum(counted.fetches.values()),
        counted,
    )
    moving = [at for at in range(1, len(seen)) if seen[at][1] > seen[at - 1][1]]
    (from_s, before), (to_s, after) = seen[moving[0] - 1 if len(moving) == 1 else moving[0]], seen[moving[-1]]
    return (after - before) / (to_s - from_s)


def growth(work: Path, data: Path) -> None:
    """Memory of a node by how many there are."""
    found = {}
    for count in (2, 4, 8):
        with nodes(work / f"of{count}", data, [["--ram", "16M", "--staging", "16M"]] * count) as some:
            agents = [rss_bytes(node.agent) for node in some]
            servers = [rss_bytes(node.status()["pid"]) for node in some]
            found[count] = statistics.median(agents) / 1e6, statistics.median(servers) / 1e6
    sizes = "; ".join(
        f"{count} nodes: agent {agent:.0f} MB, server {server:.0f} MB" for count, (agent, server) in found.items()
    )
    print(f"  (p5) memory of a node: {sizes}", flush=True)
