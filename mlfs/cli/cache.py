"""`mlfs cache list|verify|clear DIR`: what lies on disk in a cache directory.

In: parsed arguments from `mlfs.cli.commands`. Out: a table or JSON on stdout, an exit code. The work is done by
`mlfs.places.cache_admin`. Errors leave as MlfsError for the main program to print.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from mlfs.cli.progress import Progress
from mlfs.errors import CacheError, ConfigError, ExitCode
from mlfs.places import cache_admin, cache_directory
from mlfs.places.cache_admin import Store
from mlfs.places.cache_directory import SourceDir
from mlfs.printable import printable
from mlfs.units import format_size
from mlfs.user_input import answer

_SHOWN_FAULTS = 20  # the most damaged copies that are named: a disk that fails has thousands


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Look after a cache directory."
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(dest="cache_action", metavar="ACTION", required=True)
    texts = {
        "list": "show whose copies lie in DIR, how many and how large",
        "verify": "read and check every copy in DIR; damaged ones are removed",
        "clear": "remove all copies from DIR; nothing that mlfs did not make is touched",
    }
    for name, text in texts.items():
        action = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        action.add_argument("directory", metavar="DIR", help="the directory given to --ssd or --lmdb")
        action.add_argument("--source", metavar="PATH", help="only the copies of this source")
        if name != "clear":
            action.add_argument("--json", action="store_true", help="print JSON")
        if name == "verify":
            action.add_argument("--keep", action="store_true", help="leave damaged copies where they are")
        if name == "clear":
            action.add_argument("--yes", action="store_true", help="do not ask")


def run(args: argparse.Namespace) -> int:
    """Run the action. Returns 1 when verify found damage or clear was declined, else 0.

    Raises CacheError (no cache there, in use by a mount) or ConfigError (clear without a terminal and without --yes).
    """
    try:
        sources = _chosen(args.directory, args.source)
        if args.cache_action == "list":
            return _list(sources, args.json)
        if args.cache_action == "verify":
            return _verify(sources, args.json, args.keep)
        return _clear(sources, args.directory, args.yes)
    except PermissionError as error:
        raise CacheError(f"{error.filename}: {error.strerror}", "run as the user who mounted with it") from None


def _chosen(directory: str, source: str | None) -> list[SourceDir]:
    sources = cache_directory.find_sources(directory)
    old = cache_directory.old_copies(directory)
    if old is not None:
        said = f"mlfs: {old} is of an earlier mlfs and not used any more; to remove it: rm -r {old}"
        print(printable(said), file=sys.stderr)
    if source is None:
        return sources
    # The source as the user wrote it, or as a mount would name it.
    names = {cache_directory.source_hash(source), cache_directory.source_hash(os.path.realpath(source))}
    chosen = [entry for entry in sources if os.path.basename(entry.path) in names]
    if not chosen:
        raise CacheError(f"no copies of {source} in {directory}", "`mlfs cache list` shows whose copies are there")
    return chosen


def _label(source: SourceDir) -> str:
    """The source's path for people: bytes that are not text are shown escaped."""
    if source.source is None:
        return f"unknown source in {source.path}"
    return printable(source.source)


def _list(sources: list[SourceDir], as_json: bool) -> int:
    found = [store for source in sources for store in cache_admin.stores(source)]
    if as_json:
        print(json.dumps([_as_dict(store) for store in found], indent=2))
        return ExitCode.OK
    rows = [("SOURCE", "KIND", "SAMPLES", "SIZE", "NEWEST")]
    for store in found:
        newest = datetime.fromtimestamp(store.newest_ns / 1e9).strftime("%Y-%m-%d %H:%M")
        samples = str(store.samples) if store.samples >= 0 else "damaged"
        rows.append((_label(store.source), str(store.kind), samples, format_size(store.used_bytes), newest))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}")
    return ExitCode.OK


def _as_dict(store: Store) -> dict[str, Any]:
    return {
        "source": store.source.source,
        "kind": str(store.kind),
        "samples": store.samples if store.samples >= 0 else None,
        "bytes": store.used_bytes,
        "newest": datetime.fromtimestamp(store.newest_ns / 1e9, UTC).isoformat(),
    }


def _verify(sources: list[SourceDir], as_json: bool, keep: bool) -> int:
    report = []
    faults: list[str] = []
    for store in (store for source in sources for store in cache_admin.stores(source)):
        right = damaged = 0
        for fault in _with_progress(cache_admin.verify(store, keep=keep), store):
            if fault is None:
                right += 1
                continue
            damaged += 1
            if len(faults) < _SHOWN_FAULTS:
                faults.append(fault)
        report.append({"source": store.source.source, "kind": str(store.kind), "right": right, "damaged": damaged})
        if not as_json:
            left = keep or cache_admin.is_read_only(store.source)
            fate = "" if not damaged else ", left in place" if left else ", removed"
            print(f"{_label(store.source)} ({store.kind}): {right} right, {damaged} damaged{fate}")
    if as_json:
        print(json.dumps({"stores": report, "faults": faults}, indent=2))
    else:
        if not report:
            print("There are no copies.")
        for fault in faults:
            print(f"  {printable(fault)}")
    return ExitCode.FAILURE if faults else ExitCode.OK


def _with_progress(verdicts: Iterator[str | None], store: Store) -> Iterator[str | None]:
    """Pass the verdicts on, and show how far it is if that takes long."""
    with Progress() as progress:
        for done, verdict in enumerate(verdicts, 1):
            progress.update({"phase": f"verifying {store.kind}: {done:,} of {max(store.samples, done):,} copies"})
            yield verdict


def _clear(sources: list[SourceDir], directory: str, yes: bool) -> int:
    found = [store for source in sources for store in cache_admin.stores(source)]
    size = format_size(sum(store.used_bytes for store in found))
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("clear asks before it removes anything, and there is no terminal", "give --yes")
        many = "1 source" if len(sources) == 1 else f"{len(sources)} sources"
        print(f"{printable(directory)} holds {size} of copies of {many}:")
        for source in sources:
            print(f"  {_label(source)}")
        if answer("Remove them? [y/N] ").lower() not in ("y", "yes"):
            print("Nothing was removed.")
            return ExitCode.FAILURE
    for source in sources:
        cache_admin.clear(source)
    print(f"Removed {size}.")
    return ExitCode.OK
