"""Part `plan` of scripts/bench: the time and the memory that planning takes, from a job to the place of all samples.

In: nothing. Out: lines on stdout. Each case runs in a process of its own, whose peak memory is reported. Wanted:
1,281,167 samples x 90 epochs x 16 nodes in 15 s and 1 GiB, 1 s to the first sample; 14,197,103 x 90 x 1,024 ranks in
15 minutes and 4 GiB, 10 s to the first.

The time to the first sample is that from a job to the sample that rank 0 reads first, which is the first to fetch.
"""

from __future__ import annotations

import multiprocessing as mp
import resource
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmark.counters import must_be

GIB = 1 << 30


class Case(NamedTuple):
    """A data set and a cluster."""

    samples: int
    epochs: int
    nodes: int
    capacities_gb: tuple[float, float]
    wanted: str


CASES = (
    Case(1_281_167, 90, 16, (32, 64), "15 s, 1 GiB, first 1 s"),
    Case(1_281_167, 90, 16, (2, 4), "15 s, 1 GiB, first 1 s (does not fit)"),
)
LARGE = (Case(14_197_103, 90, 1024, (64, 400), "900 s, 4 GiB, first 10 s"),)


def planning(work: Path, data: Path, rounds: int) -> None:
    """Planning a whole run: ImageNet-1k, 90 epochs, 16 nodes."""
    for case in CASES:
        _run(case)


def planning_large(work: Path, data: Path, rounds: int) -> None:
    """Planning a whole run: ImageNet-22k, 90 epochs, 1,024 ranks (minutes)."""
    for case in LARGE:
        _run(case)


def _run(case: Case) -> None:
    context = mp.get_context("spawn")
    process = context.Process(target=_measure, args=(case,))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"planning failed with exit code {process.exitcode}")


def _measure(case: Case) -> None:
    from mlfs.job import parse_job
    from mlfs.orders.order import build_order
    from mlfs.plan.epoch_readers import Readers
    from mlfs.plan.owners import place

    base_bytes = _peak_bytes()
    fields = {"sampler": "torch-distributed", "seed": 1, "epochs": case.epochs, "world_size": case.nodes, "ranks": [0]}
    spec = parse_job(fields)
    sizes = np.random.default_rng(0).normal(110_000, 20_000, case.samples).clip(1000)
    began, cpu_began = time.perf_counter(), time.process_time()
    order = build_order(spec, case.samples, None)
    first = int(order.rank_stream(0, 0)[0])
    first_s = time.perf_counter() - began
    readers = Readers(case.samples, case.nodes, case.epochs)
    for epoch in range(case.epochs):
        readers.add([(node, order.rank_stream(epoch, node)) for node in range(case.nodes)])
    read_s = time.perf_counter() - began
    placement = place(sizes, readers.by_epoch, case.nodes, 1e9 * np.array(case.capacities_gb), copies=False)
    all_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    owned = np.count_nonzero(placement.owner >= 0)
    fits = sizes.sum() < 0.9 * case.nodes * 1e9 * sum(case.capacities_gb)
    must_be("a plan in which each sample that fits has an owner", not fits or owned == case.samples, owned)
    peak = (_peak_bytes() - base_bytes) / GIB
    print(
        f"  {case.samples:,} x {case.epochs} x {case.nodes}: first sample ({first}) {first_s:.2f} s,"
        f" streams {read_s:.1f} s, whole plan {all_s:.1f} s ({cpu_s:.1f} s of CPU),"
        f" {peak:.2f} GiB above Python's {base_bytes / GIB:.2f};"
        f" {owned / case.samples:.1%} owned, {len(placement.copies[0].ids):,} copies at node 0."
        f" Wanted: {case.wanted}",
        flush=True,
    )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
