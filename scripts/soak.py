"""Runs failures that are drawn from seeds (tests/support/failures), for as long as asked for, or one seed again.

    scripts/soak                      the first 10,000 seeds, and the first 2,000 clusters whose nodes have agents
    scripts/soak --hours 8            seeds from a random one on; Ctrl-C ends it with what was found
    scripts/soak --hours 8 --seed 1   seeds from 1 on
    scripts/soak --seed 841           this seed alone: what it draws, and whether all holds
    scripts/soak --cluster --hours 8  the same with clusters whose nodes have agents
    scripts/soak --tests 100          100 cases of each test that draws its cases (tests/support/drawn.py)
    scripts/soak --channel silent     the tests of jobs on real mounts, with all mounts on that channel (as root)
    scripts/soak --simulated-hours 24 a cluster of 1,000 epochs of a node for so long by its own clock: nothing grows

A seed that fails is printed with the smallest case that fails like it. Ends with 1 if any did.
"""

from __future__ import annotations

import argparse
import math
import os
import pprint
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.failures.drawing import Case, draw, draw_cluster
from support.failures.run import Trial, fails, shrunk
from support.failures.steady import Growth, steady

SAY_EVERY_S = 1.0
# What is run before a release; scripts/test runs the first 400 and 100 of them.
NODES, CLUSTERS = 10_000, 2_000
Draw = Callable[[int], Case]
# Tests of what both channels promise of jobs.
JOBS = (
    "jobs",
    "inference",
    "strangers_beside",
    "wrong_registrations",
    "half_registrations",
    "proved",
    "resumed",
    "served",
    "loader_workers",
    "torch_script",
    "audit",
    "record",
    "frameworks_torch",
    "frameworks_other",
    "warmup",
    "namespaces",
)


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, help="run on for so long")
    parser.add_argument("--seed", type=int, help="the first seed, or with no --hours the only one")
    parser.add_argument("--cluster", action="store_true", help="draw clusters whose nodes have agents")
    parser.add_argument("--simulated-hours", type=float, help="a steady cluster for so long by its own clock")
    parser.add_argument("--tests", type=int, metavar="CASES", help="run the tests that draw, with so many cases each")
    parser.add_argument("--channel", choices=["open", "silent"], help="run the tests of jobs with all mounts on it")
    args = parser.parse_args()
    if args.channel is not None:
        return run_jobs(args.channel)
    if args.tests is not None:
        return run_tests(args.tests)
    if args.simulated_hours is not None:
        return stay_steady(args.simulated_hours)
    drawn = draw_cluster if args.cluster else draw
    if args.hours is None and args.seed is None:
        parts = {draw_cluster: CLUSTERS} if args.cluster else {draw: NODES, draw_cluster: CLUSTERS}
        return max([soak(range(count), math.inf, one) for one, count in parts.items()])
    if args.hours is None:
        return replay(args.seed, drawn)
    first = random.SystemRandom().randrange(1 << 40) if args.seed is None else args.seed
    return soak(range(first, sys.maxsize), args.hours * 3600, drawn)


def run_tests(cases: int) -> int:
    """All tests that ask support.drawn for their number of cases."""
    tests = Path(__file__).resolve().parents[1] / "tests"
    drawn = [path for path in sorted(tests.rglob("test_*.py")) if "from support.drawn import" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "--timeout", "0", *map(str, drawn)]
    environment = os.environ | {"MLFS_DRAWN": str(cases), "MLFS_TEST_FORKS": "off"}
    return subprocess.run(command, env=environment, check=False).returncode


def run_jobs(channel: str) -> int:
    """All tests in which mounts follow jobs."""
    tests = Path(__file__).resolve().parents[1] / "tests/e2e"
    command = [sys.executable, "-m", "pytest", *(str(tests / f"test_{name}.py") for name in JOBS)]
    return subprocess.run(command, env=os.environ | {"MLFS_TEST_CHANNEL": channel}, check=False).returncode


def replay(seed: int, drawn: Draw) -> int:
    """Show the case of one seed, and run it."""
    case = drawn(seed)
    pprint.pprint(case, width=120)
    try:
        print(Trial(case).run())
    except Exception as error:
        traceback.print_exc()
        print("as small as it gets:")
        pprint.pprint(shrunk(case, error), width=120)
        return 1
    return 0


def soak(seeds: range, seconds: float, drawn: Draw) -> int:
    """Run the cases of these seeds, as far as time goes."""
    began_s = said_s = time.monotonic()
    ran, failed = 0, []
    try:
        for seed in seeds:
            if time.monotonic() - began_s > seconds:
                break
            case = drawn(seed)
            error = fails(case)
            if error is not None:
                failed.append(seed)
                print(f"\nseed {seed}: {error!r}\nas small as it gets:")
                pprint.pprint(shrunk(case, error), width=120)
            ran += 1
            if time.monotonic() - said_s > SAY_EVERY_S:
                said_s = time.monotonic()
                rate = ran / (said_s - began_s)
                print(f"\r{ran:,} seeds, {rate:.0f} a second, {len(failed)} failed ", end="", flush=True)
    except KeyboardInterrupt:
        pass
    print(f"\nseeds {seeds.start} to {seeds.start + ran - 1}: {len(failed)} failed {failed[:20] or ''}")
    return 1 if failed else 0


def stay_steady(hours: float) -> int:
    """Run a steady cluster, and show how much its schedulers hold."""

    def say(growth: Growth) -> None:
        print(
            f"\r{growth.hours:.1f} simulated hours, {growth.epochs:,} epochs, {growth.held:,} held ", end="", flush=True
        )

    growth = steady(hours, say)
    print(f"\n{growth}")
    return 0 if growth.bounded else 1


if __name__ == "__main__":
    sys.exit(main())
