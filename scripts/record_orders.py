"""Asks the real libraries for orders of reads and writes them down: tests/orders/recorded/LIBRARY.json.

In: names of libraries (modules of scripts/oracles; all that can be imported by default). Out: a JSON file each, with
the library's version, checked against mlfs in every test run (tests/orders/test_orders_recorded.py). The same command
with another --seed, --cases and --out makes fresh cases for the live comparison (`python -m pytest -m oracle`).

    scripts/record_orders.py                       record again what is in the repository
    scripts/record_orders.py timm --seed 7 --cases 200 --out DIRECTORY

A module of scripts/oracles has a DISTRIBUTION (whose version is recorded, unless it tells a VERSION of its own) and
cases(draw, count), which yields that many `Case`s drawn from the given random.Random; it imports the library inside of
the function, and raises ImportError where that is not possible.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECORDED = HERE.parent / "tests" / "orders" / "recorded"


def main() -> int:
    """Record the libraries asked for; 1 if one could not be."""
    known = sorted(path.stem for path in (HERE / "oracles").glob("*.py") if path.stem not in ("__init__", "case"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases drawn (default: 0)")
    parser.add_argument("--cases", type=int, default=12, help="how many of each library (default: 12)")
    parser.add_argument("--out", type=Path, default=RECORDED, help="the directory written to")
    args = parser.parse_args()
    unknown = sorted(set(args.libraries) - set(known))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    failed = 0
    for name in args.libraries or known:
        try:
            path = record(name, args.seed, args.cases, args.out)
        except ImportError as error:
            print(f"record_orders: {name}: {error}: install it, or leave it out", file=sys.stderr)
            failed = 1
        else:
            print(path)
    return failed


def record(name: str, seed: int, count: int, out: Path) -> Path:
    """Write one library's file."""
    module = importlib.import_module(f"oracles.{name}")
    cases = [json.dumps(case._asdict()) for case in module.cases(random.Random(f"{name} {seed}"), count)]
    told = getattr(module, "VERSION", None) or version(module.DISTRIBUTION)
    what = {"library": module.DISTRIBUTION, "version": told}
    head = json.dumps(what)[:-1]
    path = out / f"{name}.json"
    path.write_text(f'{head}, "cases": [\n' + ",\n".join(cases) + "\n]}\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
