"""Compares what a node keeps and evicts, in bytes from the source: the table of docs/decisions/reuse-distance.md.

In: nothing, or names of cases. Out: a table in Markdown on stdout. Run by hand: scripts/eviction_variants.py [CASE ...]
With --simulate: the simulator's own policies, in seconds too.
Samples are all of one size, and each row is one order of reads, drawn from a seed. The rules:

- first: what comes first stays.
- counts: what is read most often in the whole run stays (`keep_most_read`, which the daemon's planner calls).
- counts to come: the same, planned anew at the beginning of each epoch by the reads to come; what no plan names goes.
- lobster: after an epoch goes what the node does not read in the next one (`mlfs.lab.policies.lobster`).
- as built: that of the next rule, as the daemon does it: with what it knows of the order, and some copies at a time.
- next use: the copy whose next read lies furthest ahead goes, or what was just read if that is it (Belady's rule).
"""

from __future__ import annotations

import heapq
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import parse
from mlfs.plan.next_use import Reads, missed_evicting
from mlfs.plan.owners import place
from mlfs.plan.placement import NOWHERE, keep_most_read

SAMPLES, EPOCHS, SEEDS = 2000, 12, 3
SHARES = (0.1, 0.25, 0.5, 0.75)
Ids = npt.NDArray[np.int64]
Run = list[Ids]
"""What a node reads, epoch by epoch."""


def drawn(weights: npt.NDArray[np.float64], rng: np.random.Generator) -> Run:
    """A sampler that draws with replacement by weights."""
    return [rng.choice(SAMPLES, SAMPLES, p=weights / weights.sum()) for _ in range(EPOCHS)]


def jobs_beside(parts: list[Ids], rng: np.random.Generator) -> Run:
    """Jobs that each read a part of the data once an epoch, side by side."""
    epochs = []
    for _ in range(EPOCHS):
        reads = np.concatenate([rng.permutation(part) for part in parts])
        at = np.concatenate([(np.arange(len(part)) + rng.random()) / len(part) for part in parts])
        epochs.append(reads[np.argsort(at, kind="stable")])
    return epochs


def jobs_in_turn(parts: list[Ids], rng: np.random.Generator) -> Run:
    """One job after the other, each for its part of the epochs."""
    each = EPOCHS // len(parts)
    return [rng.permutation(part) for part in parts for _ in range(each)]


def some(share: float, rng: np.random.Generator) -> Ids:
    """A drawn part of the samples."""
    return np.sort(rng.permutation(SAMPLES)[: int(share * SAMPLES)])


def of_a_rank(ranks: int, rng: np.random.Generator) -> Run:
    """The part of one rank of several, dealt anew in each epoch."""
    return [rng.permutation(SAMPLES)[::ranks] for _ in range(EPOCHS)]


CASES: dict[str, Callable[[np.random.Generator], Run]] = {
    "once an epoch": lambda rng: jobs_beside([np.arange(SAMPLES)], rng),
    "one rank of 4": lambda rng: of_a_rank(4, rng),
    "drawn with equal weights": lambda rng: drawn(np.ones(SAMPLES), rng),
    "drawn, a tenth 10 times as often": lambda rng: drawn(1.0 + 9.0 * (np.arange(SAMPLES) % 10 == 0), rng),
    "drawn, weights as 1/rank": lambda rng: drawn(1.0 / np.arange(1, SAMPLES + 1), rng),
    "3 jobs of drawn halves": lambda rng: jobs_beside([some(0.5, rng) for _ in range(3)], rng),
    "2 jobs, one of a tenth": lambda rng: jobs_beside([np.arange(SAMPLES), some(0.1, rng)], rng),
    "2 jobs in turn, halves": lambda rng: jobs_in_turn([some(0.5, rng), some(0.5, rng)], rng),
}


def first(run: Run, room: int) -> int:
    """Misses where what comes first stays."""
    held: set[int] = set()
    misses = 0
    for sample in np.concatenate(run).tolist():
        if sample not in held:
            misses += 1
            if len(held) < room:
                held.add(sample)
    return misses


def planned(run: Run, room: int, again: bool) -> int:
    """Misses where what is read most stays; `again`: planned anew in each epoch by what is to come.

    What no plan names is kept as long as there is room that the named ones will not need, as the daemon does.
    """
    held: set[int] = set()
    misses = 0
    named: set[int] = set()
    for epoch, reads in enumerate(run):
        if again or not epoch:
            counts = np.bincount(np.concatenate(run[epoch:]), minlength=SAMPLES)
            classes = keep_most_read(np.ones(SAMPLES, dtype=np.int64), counts, [room], at_least=1 if again else 2)
            named = set(np.flatnonzero(classes != NOWHERE).tolist())
            if again:
                held &= named
        for sample in reads.tolist():
            if sample in held:
                continue
            misses += 1
            if sample in named or len(held | named) < room:
                held.add(sample)
    return misses


def lobster(run: Run, room: int) -> int:
    """Misses under Lobster's rule: as the simulator's policy has it, for a node without peers."""
    held: Ids = np.empty(0, dtype=np.int64)
    misses = 0
    for epoch, reads in enumerate(run):
        new = np.setdiff1d(reads, held)
        # A sample that is read again in the same epoch, and that no room is for, is missed again; one that was kept is
        # not: the policy sees an epoch as one.
        candidates = np.concatenate([held, new])
        coming = run[epoch + 1] if epoch + 1 < len(run) else np.empty(0, dtype=np.int64)
        rank = np.where(np.isin(candidates, coming), 0, 1)
        kept = candidates[np.argsort(rank, kind="stable")][:room]
        missed = reads[~np.isin(reads, held)]
        stays = np.isin(missed, kept)
        misses += len(np.unique(missed[stays])) + int((~stays).sum())
        held = kept
    return misses


def next_use(run: Run, room: int) -> int:
    """Misses under Belady's rule."""
    reads = np.concatenate(run).tolist()
    never, soonest = len(reads), {}
    coming = [0] * len(reads)
    for at in range(len(reads) - 1, -1, -1):
        coming[at] = soonest.get(reads[at], never)
        soonest[reads[at]] = at
    held: dict[int, int] = {}  # sample -> its next read
    furthest: list[tuple[int, int]] = []
    misses = 0
    for at, sample in enumerate(reads):
        misses += sample not in held
        held[sample] = coming[at]
        heapq.heappush(furthest, (-coming[at], sample))
        while len(held) > room:
            when, gone = heapq.heappop(furthest)
            if held.get(gone) == -when:
                del held[gone]
    return misses


def built(run: Run, room: int) -> int:
    """Misses under the daemon's rule (`mlfs.plan.scheduler.evicting`): by this epoch and the next one, in rounds."""
    reads = np.concatenate(run)
    ends = np.cumsum([len(epoch) for epoch in run]).tolist()
    stream = Reads(reads, np.arange(len(reads)), ends)
    return missed_evicting([stream], [0] * len(reads), np.ones(SAMPLES, dtype=np.int64), room)


RULES: dict[str, Callable[[Run, int], int]] = {
    "first": first,
    "counts": lambda run, room: planned(run, room, again=False),
    "counts to come": lambda run, room: planned(run, room, again=True),
    "lobster": lobster,
    "as built": built,
    "next use": next_use,
}


CLUSTER = """
title = "{nodes} nodes of one GPU, a slow source"
seed = 1
[cluster]
nodes = {nodes}
compute_MBps = 400
preprocess_MBps = 4000
network_MBps = 1200
pfs_MBps = 100
[cluster.staging]
name = "staging"
capacity = "40MB"
read_MBps = 20000
threads = 4
[[cluster.classes]]
name = "ram"
capacity = "{room}MB"
read_MBps = 10000
threads = 4
[data]
samples = {samples}
mean = "1MB"
deviation = "0.1MB"
[job]
epochs = {epochs}
batch = 20
[job.order]
"""


def simulated() -> None:
    """Print what the simulator's own policies take: samplers that draw with replacement, jobs with other subsets.

    The simulator notes one reader of a sample in an epoch. The plan of a daemon has a row for each job, so where nodes
    run jobs of their own another line says what that plan comes to.
    """
    print("| order | room | policy | seconds | PFS bytes | time over mlfs | PFS bytes over mlfs |")
    print("|---|---:|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as directory:
        for name, order, nodes in _orders(Path(directory)):
            for share in SHARES:
                room = int(share * SAMPLES / nodes)
                text = CLUSTER.format(nodes=nodes, room=room, samples=SAMPLES, epochs=EPOCHS) + order
                simulation = Simulation(parse(text, name))
                results = [
                    simulation.run(POLICIES[policy], Sharing.CONSERVING) for policy in ("mlfs", "nopfs", "lobster")
                ]
                for of in results:
                    seconds, size = of.seconds / results[0].seconds - 1, of.pfs_bytes / results[0].pfs_bytes - 1
                    figures = f"{of.seconds:.1f} | {of.pfs_bytes / 1e9:.2f} GB | {seconds:+.1%} | {size:+.1%}"
                    print(f"| {name} | {share:.0%} | {of.policy} | {figures} |")
                if nodes > 1:
                    size_bytes = _row_for_each_job(simulation)
                    over = size_bytes / results[0].pfs_bytes - 1
                    figures = f"- | {size_bytes / 1e9:.2f} GB | - | {over:+.1%}"
                    print(f"| {name} | {share:.0%} | mlfs, a row a job | {figures} |")


def _row_for_each_job(simulation: Simulation) -> float:
    """PFS bytes where owners are chosen by who reads in each job: what is owned comes once, the rest each time."""
    nodes, sizes = simulation.model.nodes, simulation.sizes
    epochs = [simulation.order.epoch(epoch) for epoch in range(EPOCHS)]
    rows = np.full((EPOCHS * nodes, SAMPLES), 255, dtype=np.uint8)
    for index, (epoch, node) in enumerate(np.ndindex(EPOCHS, nodes)):
        mine = epochs[epoch][:, node]
        rows[index, mine[mine >= 0]] = node
    owned = place(sizes, rows, nodes, simulation.model.node_capacities_bytes()).owner >= 0
    times = (rows != 255).sum(axis=0)
    return float((sizes * np.where(owned, np.minimum(times, 1), times)).sum())


def _orders(directory: Path) -> Iterator[tuple[str, str, int]]:
    """Name, [job.order], nodes."""
    for name, weights in (("equal weights", [1.0] * SAMPLES), ("a tenth 10 times as often", [10.0] + [1.0] * 9)):
        file = directory / f"{name.replace(' ', '-')}.txt"
        file.write_text("\n".join(str(weights[index % len(weights)]) for index in range(SAMPLES)))
        yield f"drawn, {name}", f'sampler = "torch-weighted"\nweights_file = "{file}"\n', 1
    rng = np.random.default_rng(0)
    parts = [some(0.5, rng) for _ in range(3)]
    for epoch in range(EPOCHS):
        for rank, part in enumerate(parts):
            text = "\n".join(map(str, rng.permutation(part).tolist()))
            (directory / f"jobs-{epoch}-{rank}.txt").write_text(text)
    yield (
        "3 jobs of drawn halves, a node each",
        f'sampler = "explicit"\norder_file = "{directory}/jobs-{{epoch}}-{{rank}}.txt"\n',
        3,
    )


def main() -> None:
    """Print the table."""
    if sys.argv[1:] == ["--simulate"]:
        simulated()
        return
    print(f"| reads | room | {' | '.join(RULES)} |")
    print(f"|---|---:|{'---:|' * len(RULES)}")
    for name in sys.argv[1:] or CASES:
        for share in SHARES:
            missed = np.zeros(len(RULES))
            for seed in range(SEEDS):
                run = CASES[name](np.random.default_rng(seed))
                whole = sum(map(len, run))
                missed += [rule(run, int(share * SAMPLES)) / whole / SEEDS for rule in RULES.values()]
            print(f"| {name} | {share:.0%} | {' | '.join(f'{100 * value:.1f} %' for value in missed)} |")


if __name__ == "__main__":
    main()
