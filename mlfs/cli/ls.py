"""`mlfs ls`: every mlfs mount of this machine, a line each, with the one thing that a person should know of it.

In: the kernel's table of mounts, each mount's status. Out: a table or JSON on stdout. Called by `mlfs.cli.commands`,
and by `mlfs.cli.status` when no mount is named. The mounts are asked at the same time, and each with a timeout, so one
that hangs makes the others wait for no longer than that.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from mlfs.errors import ExitCode, MlfsError

if TYPE_CHECKING:
    from mountd.interface import MountEntry

_EPILOG = """\
examples:
  mlfs ls
  mlfs ls --json | jq '.[] | select(.state != "serving") | .mountpoint'

A mount whose daemon was killed is "dead", one that does not answer within two
seconds "hangs", and another user's mount is "closed" to all but root.
"""
# A mount answers from memory. People who list mounts want them now, and are told which one did not answer.
_TIMEOUT_S = 2.0
_AT_ONCE = 16
_PREFIX = "mlfs:"


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the mlfs mounts of this machine, a line each."
    parser.epilog = _EPILOG
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """List them. No mount at all is no error."""
    show(args.json)
    return ExitCode.OK


def show(as_json: bool) -> None:
    """Print all mounts of this machine."""
    rows = mounts()
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        _print_table(rows)
    else:
        print("nothing is mounted here: mlfs mount SOURCE")


def mounts() -> list[dict[str, Any]]:
    """Each mount by its mount point: mountpoint, source, state, pid, jobs, uptime_s, headline."""
    from mountd import interface

    # Readers see the topmost of mounts that are stacked on one path.
    found = {entry.mountpoint: entry for entry in interface.mount_table() if entry.is_mlfs}
    visible = [entry for path, entry in sorted(found.items()) if (top := interface.mount_at(path)) and top.is_mlfs]
    if not visible:
        return []
    with ThreadPoolExecutor(_AT_ONCE) as asking:
        return list(asking.map(_ask, visible))


def _ask(entry: MountEntry) -> dict[str, Any]:
    from mlfs.cli import client

    row: dict[str, Any] = {
        "mountpoint": entry.mountpoint,
        "source": entry.source.removeprefix(_PREFIX),
        "state": "serving",
        "pid": None,
        "jobs": [],
        "uptime_s": None,
        "headline": "",
    }
    try:
        status = client.read_status(entry.mountpoint, _TIMEOUT_S)
    except MlfsError as error:
        state = {ExitCode.NOT_MOUNTED: "dead", ExitCode.NOT_PERMITTED: "closed"}.get(error.exit_code, "hangs")
        return row | {"state": state, "headline": error.hint}
    jobs = [{key: job.get(key) for key in ("name", "state", "agreement", "inferred")} for job in status.get("jobs", ())]
    known = {key: status.get(key, row[key]) for key in ("state", "pid", "uptime_s", "headline")}
    return row | known | {"jobs": jobs}


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from mlfs.cli.console import make_console
    from mlfs.units import format_duration

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("mount", "state", "up", "jobs", "what to know"):
        table.add_column(column, overflow="fold")
    for one in rows:
        jobs = ", ".join(_job(job) for job in one["jobs"]) or "-"
        up = format_duration(one["uptime_s"]) if one["uptime_s"] is not None else "-"
        table.add_row(*(Text(str(cell)) for cell in (one["mountpoint"], one["state"], up, jobs, one["headline"])))
    make_console().print(table)


def _job(job: dict[str, Any]) -> str:
    agreement = job["agreement"]
    share = f" {100 * agreement:.0f} %" if isinstance(agreement, int | float) else ""
    return f"{job['name']}{share}"
