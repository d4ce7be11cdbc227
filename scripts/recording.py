"""What the recorders of orders and layouts share: their command line, and the file that they write.

In: what can be recorded and how. Out: a JSON file each, with the library's version and a case a line. Used by
scripts/record_orders.py and scripts/record_layouts.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Record = Callable[[str, int, int, Path], Path]
"""Name, seed, number of cases, directory: writes the file and says where it is. Raises ImportError."""


def run(about: str | None, known: Sequence[str], cases: int, out: Path, record: Record) -> int:
    """Run the command line: record what is asked for, all by default. Returns 1 if something could not be recorded.

    Args:
        about: the text of --help.
        known: the names that can be recorded.
        cases: how many of each are recorded by default.
        out: the directory by default.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases drawn (default: 0)")
    parser.add_argument("--cases", type=int, default=cases, help=f"how many of each (default: {cases})")
    parser.add_argument("--out", type=Path, default=out, help="the directory written to")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(known))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    failed = 0
    for name in args.names or known:
        try:
            print(record(name, args.seed, args.cases, args.out))
        except ImportError as error:
            print(f"{parser.prog}: {name}: {error}: install it, or leave it out", file=sys.stderr)
            failed = 1
    return failed


def write(path: Path, library: str, version: str, cases: Iterable[dict[str, Any]]) -> Path:
    """Write one file, with a case a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"library": library, "version": version})[:-1]
    path.write_text(f'{head}, "cases": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]}\n")
    return path
