"""The benchmark of a mount: prints each figure as a ratio against its limit, medians of several rounds in one run.

a  staged reads of 110 kB files by 1, 2 and 4 processes, beside ext4 from page cache, bindfs (a passthrough in C) and a
   bare pyfuse3 file system with all pages staged
b  demand reads of a slow source through the mount, beside the slow source itself and a bare pyfuse3 file system
c  a registered job (torch DataLoader, 2 ranks) on the slow source: epoch 0 beside the source's bound, later epochs
   beside the same loop without I/O
d  how fast the prefetcher fetches and pushes, and the CPU time a sample costs, beside plain loops that do the same
loader  a torch DataLoader that decodes nothing on the slow source: later epochs on both channels beside the same loader
   on ext4; as root (only when asked for)
walk  200,000 empty files: os.walk beside ext4, the first time and again (only when asked for)
e  1,000,000 empty files: mounting from a scan and from the saved index, os.walk beside ext4 (only when asked for)
restart  1,000,000 files, 10 GB in RAM, the server is killed: when the next one answers (only when asked for)
orders  permutations beside torch's and Python's own (only when asked for)
peers  samples from one node to another on one machine: two agents beside plain loops over MPI, two mounts beside one,
   messages beside one-sided reads, idle agents (only when asked for)
served, served-slow  four nodes that read in the true order and in served orders, beside direct reads and the simulator;
   slow: over links that leave two cores idle; as root (only when asked for)
versus  the demo's training over the slow source itself, bindfs, mergerfs, rclone, NFS, a copy made beforehand, mlfs and
   a local disk, side by side: a table and a picture (only when asked for)
big  files of 3 MiB to 1 GiB, front to back, in random windows and by their libraries: bytes, opens and time, cold,
   again and mounted anew, beside a plain mount of the slow source and the local disk (only when asked for)
clients  dlio_benchmark's workloads and fio's verify through a mount, beside its source (only when asked for)
plan, plan-large  planning a run of ImageNet-1k on 16 nodes, of ImageNet-22k on 1,024 ranks (only when asked for)

Results are for reading, not for passing: compare within a run, machines are noisy. But a part fails where the mount's
own counters say that it has measured something else than it says (scripts/benchmark/counters.py); then the exit code
is 1.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

VERSUS = "versus"
# What runs each part: a function of a directory to work in, the files, the number of rounds; by its module in here.
PARTS = {
    "a": "one_mount:staged_reads",
    "b": "one_mount:demand_reads",
    "c": "one_mount:registered_job",
    "d": "one_mount:prefetch_rate",
    "e": "one_mount:metadata_rate",
    "restart": "one_mount:restarts",
    "loader": "one_mount:bare_loader",
    "walk": "one_mount:walk_rate",
    "orders": "orders:permutations",
    "peers": "peers:peers",
    "served": "served:served",
    "served-slow": "served:served_slow",
    VERSUS: "versus:versus",
    "big": "big:big",
    "clients": "clients:clients",
    "plan": "plan:planning",
    "plan-large": "plan:planning_large",
}


def main() -> int | str:
    """Run the parts asked for. Returns 0, or which of them failed."""
    from benchmark.one_mount import make_files

    parser = argparse.ArgumentParser(
        "scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["a", "b", "c", "d"], help="which parts to run (default: a b c d)")
    parser.add_argument("--rounds", type=int, help="rounds the medians are taken of (default: 5; of versus 1)")
    parser.add_argument("--files", type=int, help="files of 110 kB (default: 4000; of versus 1500)")
    parser.add_argument("--picture", type=Path, help="of versus: draw it as a picture, into this file")
    args = parser.parse_args()
    unknown = sorted(set(args.parts) - PARTS.keys())
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; known: {', '.join(PARTS)}")
    work, failed = Path(tempfile.mkdtemp(prefix="mlfs-bench-")), list[str]()
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    try:
        data = make_files(work / "data", args.files or 4000) if set(args.parts) - {VERSUS, "big"} else work
        for part in args.parts:
            run = found(part)
            print(f"\n({part}) {(run.__doc__ or '').splitlines()[0]}", flush=True)
            try:
                if part == VERSUS:
                    run(work, args.files or 1500, args.rounds or 1, args.picture)
                else:
                    run(work, data, args.rounds or 5)
            except SystemExit as error:  # the other parts may still be measured
                print(f"  FAILED: {error}", flush=True)
                failed.append(part)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return f"failed: {', '.join(failed)}" if failed else 0


def found(part: str) -> Callable[..., None]:
    """What runs a part. Its module is imported only now: an older build lacks what other parts import of mlfs, and can
    be measured with the benchmark of today."""
    module, _, function = PARTS[part].partition(":")
    run: Callable[..., None] = getattr(importlib.import_module(f"benchmark.{module}"), function)
    return run


if __name__ == "__main__":
    # `python scripts/benchmark` has the package itself there, and its modules import the scripts beside it.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    sys.exit(main())
