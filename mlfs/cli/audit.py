"""`mlfs audit MOUNT`: say whether a script reads what its author believes that it reads.

In: the file `.mlfs/audit` of the mount, which `mlfs.audit` made of the reads so far. Out: the epochs of each job in
numbers, and each finding in a sentence with the line that mends it; with --json as it is. Called by
`mlfs.cli.commands`.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from mlfs.cli import client
from mlfs.errors import ExitCode, MlfsError

# Millions of reads are judged in a few seconds.
_TIMEOUT_S = 120.0
_MOST_EPOCHS = 8  # that are shown of a job, the last ones
_EPILOG = """\
examples:
  mlfs audit /data/imagenet
  mlfs audit /data/imagenet --json | jq '.findings[] | .kind'

No job need be registered. The exit code is 11 where something was found, and 0 otherwise. What each finding means, and
what cannot be seen, is in docs/audit.md.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `audit`."""
    parser.description = (
        "Say from the reads of a mount whether scripts read what they should: epochs that repeat an order, ranks or"
        " workers that read the same, samples that are left out or read twice, resumed runs that skip or repeat."
    )
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", help="the mount point")
    parser.add_argument("--json", action="store_true", help="print JSON (default: sentences)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was found."""
    mountpoint = client.require_mount(args.mount)
    try:
        audit = json.loads(client.read_file(mountpoint, "audit", _TIMEOUT_S))
    except ValueError:
        raise MlfsError(f"the audit of {mountpoint} is not what this version of mlfs knows", "mount it again") from None
    print(json.dumps(audit, indent=2) if args.json else "\n".join(_in_words(audit)))
    return ExitCode.AUDIT if audit["findings"] else ExitCode.OK


def _in_words(audit: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for job in audit["jobs"]:
        lines += _job(job)
        for finding in audit["findings"]:
            if finding["run"] == job["run"] and job is _first(audit, job["run"]):
                lines += [f"  {finding['kind']}: {finding['sentence']}", f"    to mend it: {finding['mend']}"]
    if not audit["jobs"]:
        lines.append("nothing was read yet")
    if audit["unknown"]:
        lines.append(f"{audit['unknown']:,} reads by processes of another pid namespace cannot be judged")
    if audit["forgotten"]:
        lines.append(f"{audit['forgotten']:,} reads were too long ago to be judged")
    if audit["jobs"] and not audit["findings"]:
        lines.append("nothing was found")
    return lines


def _first(audit: dict[str, Any], run: int) -> dict[str, Any]:
    """A run's first job, with which its findings are shown."""
    first: dict[str, Any] = next(job for job in audit["jobs"] if job["run"] == run)
    return first


def _job(job: dict[str, Any]) -> list[str]:
    ranks = f"{job['ranks']} rank" + "s" * (job["ranks"] > 1)
    readers = f"{job['readers']} process" + "es" * (job["readers"] > 1)
    lines = [f"process {job['run']}: {ranks}, {readers}, {job['samples']:,} samples"]
    shown = job["epochs"][-_MOST_EPOCHS:]
    if len(shown) < len(job["epochs"]):
        lines.append(f"  ({len(job['epochs']) - len(shown)} earlier epochs are in --json)")
    for epoch in shown:
        others = [
            f"{epoch[name]:,} by {who}" for name, who in (("by_several", "several"), ("by_none", "none")) if epoch[name]
        ]
        tail = f", {', '.join(others)}" if others else ""
        under_way = "" if epoch["is_over"] else " (not over)"
        lines.append(f"  epoch {epoch['epoch']}{under_way}: {epoch['by_one']:,} samples were read by one rank{tail}")
    return lines + [f"  not judged: {why}" for why in job["unjudged"]]
