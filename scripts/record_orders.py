"""Records the orders in which the real libraries read: tests/orders/recorded/LIBRARY.json.

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

import importlib
import random
import sys
from importlib.metadata import version
from pathlib import Path

import recording

HERE = Path(__file__).resolve().parent
RECORDED = HERE.parent / "tests" / "orders" / "recorded"


def record(name: str, seed: int, count: int, out: Path) -> Path:
    """Write one library's file."""
    module = importlib.import_module(f"oracles.{name}")
    drawn = (case._asdict() for case in module.cases(random.Random(f"{name} {seed}"), count))
    cases = [{field: value for field, value in case.items() if value is not None} for case in drawn]
    told = getattr(module, "VERSION", None) or version(module.DISTRIBUTION)
    return recording.write(out / f"{name}.json", module.DISTRIBUTION, told, cases)


if __name__ == "__main__":
    known = sorted(path.stem for path in (HERE / "oracles").glob("*.py") if path.stem not in ("__init__", "case"))
    sys.exit(recording.run(__doc__, known, 12, RECORDED, record))
