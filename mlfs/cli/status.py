"""`mlfs status MOUNT`: what a mount does, in tables or as JSON, once or again and again.

In: parsed arguments, MOUNT/.mlfs/status. Out: text on stdout. Called by `mlfs.cli.commands`. Each section is made from
one part of the JSON. A value that is missing is shown as `-`, so that the status of another version can be read too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mlfs.cli.console import make_console
from mlfs.cli.tables import NumberTable
from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.shown import NONE, count, count_of, duration, is_number, of_which_ranks, out_of, part, parts_of, percent, size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_EPILOG = """\
examples:
  mlfs status /data/imagenet
  mlfs status /data/imagenet --watch           again every second, until Ctrl-C
  mlfs status /data/imagenet --watch 5s
  mlfs status /data/imagenet --json | jq '.jobs[0].agreement'

agreement: share of the opens compared with the prediction that were predicted; opens before a job was found, or of
files that it does not read, are compared with nothing. Under 50 % mlfs stops guessing and says why it may be.
ahead: what lies ready for a rank beyond its position. stall: the time a reader waits. bound: what has to come from the
source in an epoch after the first, because it does not fit into the caches. reads since the epoch began: of all ranks,
since the fastest one has come to its epoch.
"""

_STATES = {
    "serving": "serving reads",
    "draining": "ending: readers may finish, nothing is fetched ahead",
}
_ROUTES = {"page_cache": "page cache", "ram": "RAM", "ssd": "SSD", "lmdb": "LMDB", "peer": "peers", "pfs": "PFS"}
_SHOWN_STRANGERS = 5
# So that the table of the nodes fits into 80 columns.
_NAME_WIDTH = 12


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `status`."""
    parser = subparsers.add_parser(
        "status",
        help="show what a mount does, how far each rank is, where reads came from",
        description="Show jobs, positions, agreement, reads by route, stalls and tiers of a mount.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "mount", metavar="MOUNT", nargs="?", help="the mount point (default: all of this machine, a line each)"
    )
    parser.add_argument("--json", action="store_true", help="print the mount's JSON (default: tables)")
    text = "show it again every TIME until Ctrl-C: 500ms, 1s, 1m (default: once; --watch alone: 1s)"
    parser.add_argument("--watch", metavar="TIME", nargs="?", const="1s", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the status; raises NOT_MOUNTED or whatever keeps the mount from answering."""
    from mlfs.cli import client
    from mlfs.units import parse_duration

    if args.mount is None and args.watch not in (None, "1s"):
        # `mlfs status --watch /data/x`: argparse takes the path for the time.
        args.mount, args.watch = args.watch, "1s"
    if args.mount is None:
        if args.watch is not None:
            raise ConfigError("no mount point is given", "mlfs status MOUNT --watch")
        from mlfs.cli import ls

        ls.show(args.json)
        return ExitCode.OK
    mountpoint = client.require_mount(args.mount)
    if args.watch is not None:
        return _watch(mountpoint, max(0.1, parse_duration(args.watch, what="--watch")), args.json)
    _print(make_console(), client.read_status(mountpoint), args.json)
    return ExitCode.OK


def _print(console: Console, status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(status, indent=2), flush=True)
    else:
        console.print(render(status))


def _watch(mountpoint: str, every_s: float, as_json: bool) -> int:
    console = make_console()
    try:
        if as_json or not console.is_terminal:
            for status in _statuses(mountpoint, every_s):
                _print(console, status, as_json)
        else:
            from rich.live import Live

            with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
                for status in _statuses(mountpoint, every_s):
                    live.update(render(status), refresh=True)
    except KeyboardInterrupt:
        # The way to end it: no error.
        return ExitCode.OK
    print(f"mlfs: the mount at {mountpoint} is gone", file=sys.stderr)
    return ExitCode.OK


def _statuses(mountpoint: str, every_s: float) -> Iterator[dict[str, Any]]:
    """The status again and again, until nothing is mounted there any more."""
    from mlfs.cli import client

    while True:
        try:
            client.require_mount(mountpoint)
            yield client.read_status(mountpoint)
        except MlfsError as error:
            if error.exit_code is not ExitCode.NOT_MOUNTED:
                raise
            return
        time.sleep(every_s)


def render(status: dict[str, Any]) -> RenderableType:
    """The whole status as something rich can print."""
    from rich.console import Group

    sections = (_headline, _messages, _inference, _strangers, _jobs, _reads, _tiers, _peers, _rates, _numbers)
    return Group(*(part for section in sections for part in section(status)))


def _headline(status: dict[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    state = str(status.get("state", NONE))
    line = Text(str(status.get("mountpoint", NONE)), style="bold")
    line.append(f": {_STATES.get(state, state)}", style="")
    line.append(f" for {duration(status.get('uptime_s'))} (process {status.get('pid', NONE)})", style="dim")
    manifest = part(status, "manifest")
    source = f"source {status.get('source', NONE)}: {count(manifest.get('files'))} files, "
    source += f"{size(manifest.get('bytes'))}, {count(manifest.get('changed'))} changed since the scan"
    said = [Text(str(status["headline"]), style="bold")] if status.get("headline") else []
    return [*said, line, Text(source)]


def _messages(status: dict[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    # Each once: an earlier version's daemon may say a thing of each job.
    return [Text(f"! {message}", style="yellow") for message in dict.fromkeys(parts_of(status, "messages"))]


def _inference(status: dict[str, Any]) -> list[RenderableType]:
    """How far the search for an unregistered job's order is; nothing while there is no search and no result."""
    from rich.text import Text

    search = part(status, "inference")
    lines = []
    if search.get("explanation"):
        lines.append(f"inferred, not registered: {search['explanation']}")
    if search.get("other_explanations"):
        lines.append(f"{count(search['other_explanations'])} less likely ones fit as well; the next epoch tells which")
    if search.get("why"):
        lines.append(f"{search['state']}: {search['why']}")
    if search.get("state") == "searching" and "seeds_tried" not in search:
        lines.append("searching for an order that explains the reads")
    if search.get("seeds_tried") == 0:
        line = f"getting ready to try {count(search.get('seeds'))} seeds ({search.get('stage', NONE)}): "
        lines.append(f"{line}the first search of a mount takes up to half a minute before it begins")
    elif "seeds_tried" in search:
        line = f"searching for the seed ({search.get('stage', NONE)}): {count(search['seeds_tried'])} of "
        line += f"{count(search.get('seeds'))} tried ({percent(search.get('share'))}), "
        line += f"at most {duration(search.get('remaining_s'))} left, with {search.get('with', NONE)}"
        lines.append(line)
    return [Text(line) for line in lines]


def _strangers(status: dict[str, Any]) -> list[RenderableType]:
    """The readers beside the jobs: those that read last; and what was learned of reads that no job follows."""
    from rich.text import Text

    latest = parts_of(status, "strangers")[-_SHOWN_STRANGERS:]
    lines = [f"beside the jobs: {stranger.get('words', NONE)}" for stranger in latest]
    learned = part(status, "neighbours").get("words")
    return [Text(line) for line in [*lines, *([learned] if learned else [])]]


def _title(text: str) -> RenderableType:
    """A line of its own: rich would fold a table's title to the width of the table."""
    from rich.text import Text

    return Text(text, style="bold")


def _jobs(status: dict[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    parts: list[RenderableType] = []
    for job in parts_of(status, "jobs"):
        title = f"job {job.get('name', NONE)}{' (inferred, not registered)' if job.get('inferred') else ''}: "
        title += str(job.get("state", NONE))
        if job.get("observed_opens") != 0:
            title += f", agreement {percent(job.get('agreement'))}: {count(job.get('agreed_opens'))} of "
            title += (
                f"{count(job.get('observed_opens'))} opens that were compared, of {count(status.get('opens'))} in all"
            )
            if "agreement_recent" in job:
                title += f"; {percent(job['agreement_recent'])} of the last {count(job.get('recent_opens'))}"
        unknown = part(job, "opens_in_unknown_order")
        if unknown:
            title += f" ({count(sum(unknown.values()))} opens, of epoch {', '.join(unknown)}, came before their order"
            title += " was known)"
        table = NumberTable("rank", "epoch", "step", "position", "ahead: samples", "bytes", "time")
        for rank in parts_of(job, "ranks"):
            ahead = part(rank, "ahead")
            table.add(
                count(rank.get("rank")),
                out_of(rank.get("epoch"), None if job.get("inferred") else job.get("epochs")),
                out_of(rank.get("step"), rank.get("steps_per_epoch")),
                count(rank.get("position")),
                count(ahead.get("samples")),
                size(ahead.get("bytes")),
                duration(ahead.get("seconds")),
            )
        parts += [_title(title), *_loader(job), *_served(job), table, *_load(job)]
        if job.get("message") and job["message"] not in parts_of(status, "messages"):
            parts.append(Text(f"! {job['message']}", style="yellow"))
    if not parts and not parts_of(status, "messages"):
        return [Text("no job is registered: reads are served as they come (mlfs register --help)")]
    return parts


def _load(job: dict[str, Any]) -> list[RenderableType]:
    """The loaders and their time, and how unevenly the ranks load."""
    from rich.text import Text

    load = part(job, "load")
    if not load:
        return []
    columns = ("waits", "preprocesses", "hands over", "is idle", "batch every", "limit")
    table = NumberTable("rank", "workers", "advised", *columns)
    advised = part(part(load, "advice"), "workers")
    for rank, of in part(load, "ranks").items():
        times = [duration(of.get(key)) for key in ("waiting_s", "preprocess_s", "handing_s", "idle_s", "step_s")]
        workers = 0 if of.get("reader_trains") else of.get("workers")
        table.add(rank, count(workers), count(advised.get(rank)), *times, str(of.get("limit", NONE)))
    said = []
    if is_number(load.get("imbalanced_steps")):
        uneven = f"{percent(load['imbalanced_steps'])} of the last "
        uneven += f"{count_of(load.get('steps'), 'step is', 'steps are')} uneven (imbalance "
        uneven += f"{percent(load.get('imbalance'))}){of_which_ranks(job)}"
        said.append(uneven)
    if load.get("straggler") is not None:
        said.append(f"rank {load['straggler']} will be late in the next steps")
    lines = [Text("; ".join(said))] if said else []
    return [*lines, _title("what each process of a loader does for a batch"), table]


def _loader(job: dict[str, Any]) -> list[RenderableType]:
    """How the processes of a rank share its stream, and whether that was registered or observed."""
    from rich.text import Text

    said = []
    for name, key in (("batch size", "batch_size"), ("workers", "num_workers"), ("prefetch depth", "prefetch_depth")):
        known = part(part(job, "loader"), key)
        if not known:
            continue
        value = f"{count(known.get('value'))} ({known.get('from', NONE)})"
        if known.get("value") is None:
            least, most = known.get("at_least"), known.get("at_most")
            value = f"at least {count(least)}" if is_number(most) or least not in (None, 1) else "unknown"
            value += f", at most {count(most)}" if is_number(most) else ""
        said.append(f"{name} {value}")
    return [Text(f"loader: {', '.join(said)}")] if said else []


def _served(job: dict[str, Any]) -> list[RenderableType]:
    """The order that mlfs serves to the job, and how random it is."""
    from rich.text import Text

    spec = part(job, "spec")
    if "serve" not in spec:
        return []
    nodes = count_of(len(parts_of(spec, "nodes")), "node", "nodes")
    said = f"order: served, {spec['serve']}, dealt to {nodes}"
    if "level_reached" in spec:
        rounds = count_of(spec.get("rounds"), "round", "rounds")
        said += f"; {percent(spec['level_reached'])} of the randomness of a uniform shuffle, in {rounds}"
        said += f"; nodes keep {percent(spec.get('kept'))} of the samples"
    return [Text(said)]


def _reads(status: dict[str, Any]) -> list[RenderableType]:
    reads, fetches = part(status, "reads"), part(status, "fetches")
    epoch, total = part(reads, "epoch"), part(reads, "all")
    columns = ("reads: since the epoch began", "bytes", "reads: all", "bytes", "fetches", "bytes")
    table = NumberTable("route", *columns)
    # Routes of a later version come behind those that are known here.
    names = _ROUTES | {name: name for part in (total, epoch, fetches) for name in part if name not in _ROUTES}
    for key, name in names.items():
        now, ever, ahead = part(epoch, key), part(total, key), part(fetches, key)
        cells = [count(now.get("reads")), size(now.get("bytes")), count(ever.get("reads")), size(ever.get("bytes"))]
        table.add(name, *cells, count(ahead.get("count")), size(ahead.get("bytes")))
    return [_title("reads and fetches by route"), table]


def _tiers(status: dict[str, Any]) -> list[RenderableType]:
    table = NumberTable("name", "used", "of", "full", "samples", "errors")
    staging = part(status, "staging")
    rows = [*parts_of(status, "tiers"), *([{"name": "staging", **staging}] if staging else [])]
    for tier in rows:
        used, capacity = tier.get("used_bytes"), tier.get("capacity_bytes")
        full = used / capacity if is_number(used) and is_number(capacity) and capacity else None
        cells = (size(used), size(capacity), percent(full), count(tier.get("samples")), count(tier.get("errors")))
        table.add(str(tier.get("name", NONE)), *cells)
    return [_title("tiers"), table] if rows else []


def _peers(status: dict[str, Any]) -> list[RenderableType]:
    """The nodes of the cluster; nothing where no agent speaks for this one."""
    from rich.text import Text

    peers = part(status, "peers")
    if not peers:
        return []
    table = NumberTable("node", "name", "is", "holds", "bytes", "gave", "got", "missed", "shared")
    for member in parts_of(peers, "members"):
        lost_s = member.get("lost_s")
        here = " (here)" if member.get("node") == peers.get("node") else ""
        table.add(
            f"{count(member.get('node'))}{here}",
            _shortened(str(member.get("name", NONE))),
            f"lost {duration(lost_s)}" if is_number(lost_s) else str(member.get("state", NONE)),
            count(member.get("held")),
            size(member.get("held_bytes")),
            count(member.get("given")),
            count(member.get("got")),
            count(member.get("missing")),
            str(member.get("plan") or NONE).removeprefix("by "),
        )
    title = f"nodes of the cluster: {count(peers.get('nodes'))}"
    title += "" if peers.get("joined") else ", not all have joined"
    if peers.get("silent"):
        title += f"; the agent here (process {peers.get('agent')}) does not answer, and no node is asked meanwhile"
    if away := parts_of(peers, "away"):
        title += f"; lost for good: {', '.join(map(str, away))}, others own what they owned"
    why = [Text(f"! node {node} is no peer: {reason}") for node, reason in part(peers, "refused").items()]
    return [_title(title), table, *why]


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}~"


def _rates(status: dict[str, Any]) -> list[RenderableType]:
    """The best bandwidth of each place; nothing while none is known."""
    table = NumberTable("place", "measured", "by lanes", "calibrated", "by lanes", "refined", "by lanes")
    rows = 0
    for name, rates in part(status, "rates").items():
        kinds = ("measured", "calibrated", "refined")
        best = [max(parts_of(rates, kind), key=lambda point: point[1], default=None) for kind in kinds]
        if any(best):
            cells = [part for point in best for part in ((_rate(point[1]), str(point[0])) if point else (NONE, NONE))]
            table.add(name, *cells)
            rows += 1
    return [_title("bandwidths"), table] if rows else []


def _rate(bytes_per_s: Any) -> str:
    return f"{size(bytes_per_s)}/s"


def _numbers(status: dict[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    stalls, pfs, errors = part(status, "stalls"), part(status, "pfs"), part(status, "errors")
    happened = ", ".join(f"{name.replace('_', ' ')} {count(value)}" for name, value in errors.items() if value)
    plan, chosen = part(status, "plan"), pfs.get("by_choice_bytes")
    loading = part(plan, "loading")
    rules = {"pfs": "the source"}.get(str(loading.get("rules")), loading.get("rules"))
    lines = [
        f"stalls   {count(stalls.get('count'))}, {duration(stalls.get('total_s'))} in all, "
        f"worst {duration(stalls.get('worst_s'))}",
        f"PFS      {size(pfs.get('epoch_bytes'))} this epoch, bound {size(pfs.get('bound_bytes'))}, "
        f"{size(pfs.get('total_bytes'))} in all" + (f", {size(chosen)} though a tier has it" if chosen else ""),
        *(["plan     what is needed furthest ahead makes room in memory"] if plan.get("evicts") else []),
        *([f"loading  {duration(loading.get('epoch_s'))} an epoch at least, {rules} rules"] if loading else []),
        f"errors   {happened or ('none' if 'errors' in status else NONE)}",
        f"memory   {size(part(status, 'memory').get('rss_bytes'))} of the daemon",
    ]
    return [Text(line) for line in lines]
