"""`mlfs audit MOUNT`: say whether a script reads what its author believes that it reads.

In: the file `.mlfs/audit` of the mount, which `mlfs.audit` made of the reads so far; the mount may be one that is made
for a command. Out: the epochs of each job in numbers, and each finding in a sentence with the line that mends it; with
--json as it is. Called by `mlfs.cli.commands`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from itertools import permutations
from typing import Any

from mlfs.cli import client
from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.printable import printable
from mlfs.shown import StatusPart, audited

# Millions of reads are judged in a few seconds.
_TIMEOUT_S = 120.0
_EPILOG = """\
examples:
  mlfs audit /data/imagenet
  mlfs audit /data/imagenet --json | jq '.findings[] | .kind'
  mlfs audit -- python train.py /data/imagenet --epochs 2
  mlfs audit --source /data/imagenet --source /data/labels -- ./train.sh

No job need be registered. The exit code is 11 where something was found (12 with --strict-order, and of a mount that
has that flag), and 0 otherwise. What each finding means, and what cannot be seen, is in docs/audit.md.

With COMMAND nothing need be mounted: COMMAND, and nobody else, sees a mount over its training files, which ends with
it. Root is not needed where user namespaces are allowed. Ctrl-C, SIGTERM and SIGHUP are passed on to COMMAND; the audit
follows. The exit code is COMMAND's where that fails, and 1 where COMMAND has read nothing of a source. With --json what
COMMAND prints goes to standard error.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say from the reads of a mount whether scripts read what they should: epochs that repeat an order, ranks or"
        " workers that read the same, samples that are left out or read twice, resumed runs that skip or repeat."
    )
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", nargs="?", help="the mount point")
    parser.add_argument("--json", action="store_true", help="print JSON (default: sentences)")
    parser.add_argument(
        "--strict-order", action="store_true", help="exit with 12 where something is found, not with 11 (default: no)"
    )
    parser.add_argument(
        "--source",
        metavar="DIR",
        action="append",
        help="with COMMAND: a directory with training files, once for each (default: the only one among COMMAND's"
        " words)",
    )
    parser.add_argument(
        "command_words", metavar="COMMAND", nargs="*", help="what to run over a mount of its own, behind --"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was found."""
    if args.command_words:
        return _run_command(args)
    if args.source is not None or args.mount is None:
        what = "there is no COMMAND behind --" if args.source is not None else "no mount point is given"
        raise ConfigError(what, "mlfs audit MOUNT, or mlfs audit --source DIR -- COMMAND")
    audit = _audit_of(client.require_mount(args.mount))
    _print(audit, args.json)
    return _outcome(audit, args.strict_order)


def _run_command(args: argparse.Namespace) -> int:
    """Run COMMAND over a mount of its own, and print what was found. Its exit code comes first."""
    if args.mount is not None:
        raise ConfigError("COMMAND has a mount of its own", "mlfs audit --source DIR -- COMMAND")
    sources = {os.path.realpath(one): one for one in args.source or [_source_among(args.command_words)]}
    for inner, outer in permutations(sources, 2):
        if os.path.commonpath((inner, outer)) == outer:
            raise ConfigError(f"--source {inner} lies in --source {outer}", "give the outer one alone")
    from mlfs.cli.own_mount import run_over_own_mount

    def ask(mountpoints: list[str]) -> int:
        audits = [_audit_of(mountpoint) for mountpoint in mountpoints]
        if args.json:
            _print(_together(mountpoints, audits), as_json=True)
        in_turn = sorted(zip(mountpoints, audits, strict=True), key=lambda of: bool(of[1]["findings"]))
        for mountpoint, audit in in_turn if not args.json else ():  # what is found stands last
            if len(audits) > 1:
                print(printable(f"{mountpoint}:"))
            _print(audit, as_json=False)
        if unread := [place for place, audit in zip(mountpoints, audits, strict=True) if not audit["jobs"]]:
            hint = "--source is the directory that COMMAND reads"
            print(printable(f"mlfs: COMMAND has read nothing of {', '.join(unread)} ({hint})"), file=sys.stderr)
            return ExitCode.FAILURE  # or a test would go on passing once its data lie elsewhere
        return max(_outcome(audit, args.strict_order) for audit in audits)

    settings = [{"source": source, "strict-order": args.strict_order} for source in sources.values()]
    return run_over_own_mount(settings, args.command_words, 2 if args.json else None, ask)


def _together(mountpoints: list[str], audits: list[dict[str, Any]]) -> dict[str, Any]:
    """Several audits as one; of several, each job and finding says its source."""
    together: dict[str, Any] = {"jobs": [], "findings": [], "forgotten": 0, "unknown": 0}
    for mountpoint, audit in zip(mountpoints, audits, strict=True):
        for name in ("jobs", "findings"):
            together[name] += [one | ({"source": mountpoint} if len(audits) > 1 else {}) for one in audit[name]]
        for name in ("forgotten", "unknown"):
            together[name] += audit[name]
    return audits[0] | together


def _source_among(words: list[str]) -> str:
    """The only directory that a command's arguments name, by themselves or behind a flag's equals sign."""
    named = (word.partition("=")[2] if word.startswith("-") else word for word in words[1:])
    found = {os.path.realpath(word): word for word in named if os.path.isdir(word)}
    if len(found) != 1:
        how_many = f"{len(found)} directories" if found else "no directory"
        hint = f"mlfs audit --source DIR{' --source DIR' if found else ''} -- COMMAND"
        raise ConfigError(f"COMMAND names {how_many}: where are its files?", hint)
    return next(iter(found.values()))


def _outcome(audit: dict[str, Any], strict: bool) -> ExitCode:
    if not audit["findings"]:
        return ExitCode.OK
    return ExitCode.STRICT_ORDER if strict or audit.get("strict_order") else ExitCode.AUDIT


def _audit_of(mountpoint: str) -> dict[str, Any]:
    try:
        audit: dict[str, Any] = json.loads(client.read_file(mountpoint, "audit", _TIMEOUT_S))
    except ValueError:
        raise MlfsError(f"the audit of {mountpoint} is not what this version of mlfs knows", "mount it again") from None
    return audit


def _print(audit: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(audit, indent=2) if as_json else "\n".join(_in_words(audit)))


def _in_words(audit: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for job in audit["jobs"]:
        title, *rest = audited(StatusPart(job))
        lines += [title, *(f"  {line}" for line in rest)]
        for finding in audit["findings"]:
            if finding["run"] == job["run"] and job is _first(audit, job["run"]):
                lines += [f"  {finding['kind']}: {finding['sentence']}", f"    to mend it: {finding['mend']}"]
    if not audit["jobs"]:
        came = audit["unknown"] or audit["forgotten"]
        lines.append("nothing that was read can be judged" if came else "nothing was read yet")
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
