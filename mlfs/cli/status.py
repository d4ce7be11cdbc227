"""`mlfs status MOUNT`: what a mount does, in tables or as JSON, once or again and again.

In: parsed arguments, MOUNT/.mlfs/status. Out: text on stdout. Called by `mlfs.cli.commands`. Each section is made from
one part of the JSON (`mlfs.shown.StatusPart`). A value that is missing is shown as `-`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mlfs.cli.console import NumberTable, make_console
from mlfs.errors import ConfigError, ExitCode, MlfsError
from mlfs.shown import (
    NONE,
    ROUTE_NAMES,
    ROUTES_OF_ALL,
    StatusPart,
    audited,
    count,
    count_of,
    duration,
    is_number,
    number,
    of_which_ranks,
    out_of,
    percent,
    size,
)  # fmt: skip

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    Line = str | tuple[str, str] | RenderableType  # a line, which may have a style, or what rich prints as it is

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
_ROUTES = ROUTE_NAMES | {"pfs": "PFS"}
_SHOWN_STRANGERS = 5
_AUDITED_EPOCHS = 2
# So that the table of the nodes fits into 80 columns.
_NAME_WIDTH = 12


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show jobs, positions, agreement, reads by route, stalls and tiers of a mount."
    parser.epilog = _EPILOG
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
    from rich.text import Text

    def made(line: Line) -> RenderableType:
        if isinstance(line, str | tuple):
            text, style = (line, "") if isinstance(line, str) else line
            return Text(text, style=style)
        return line

    sections = (_headline, _messages, _inference, _strangers, _jobs, _audit, _reads, _tiers, _peers, _rates, _numbers)
    return Group(*(made(line) for section in sections for line in section(StatusPart(status))))


def _headline(status: StatusPart) -> list[Line]:
    from rich.text import Text

    state = str(status.state)
    line = Text(str(status.mountpoint), style="bold")
    line.append(f": {_STATES.get(state, state)}", style="")
    line.append(f" for {duration(status.uptime_s)} (process {status.pid})", style="dim")
    tree = status.manifest
    source = f"source {status.source}: {count(tree.files)} files, {size(tree.bytes)}, "
    source += f"{count(tree.changed)} changed since the scan"
    style = "bold red" if status.audit.strict_order and status.audit.findings else "bold"
    said: list[Line] = [(str(status.headline), style)] if status.headline else []
    return [*said, line, source, *_processes(status), *_channel(status)]


def _channel(status: StatusPart) -> list[Line]:
    """How reads are heard of, where somebody has asked about that."""
    name, why = status.channel.name, status.channel.why
    return [(f"the channel is {name}: {why}", "dim")] if why != "the default" else []


def _processes(status: StatusPart) -> list[Line]:
    """The processes of the mount, and how often each was started again."""
    said = []
    for process in status.processes:
        used = f"{process.name} {process.pid}: {size(process.rss_bytes)}, {duration(process.cpu_s)} computed"
        if number(process.restarts):
            used += f", started again {count_of(process.restarts, 'time', 'times')} (the one before {process.why})"
        said.append(used)
    return [("; ".join(said), "dim")] if said else []


def _messages(status: StatusPart) -> list[Line]:
    # Each once: an earlier version's daemon may say a thing of each job.
    return [(f"! {message}", "yellow") for message in dict.fromkeys(status.messages)]


def _inference(status: StatusPart) -> list[Line]:
    """How far the search for an unregistered job's order is; nothing while there is no search and no result."""
    search = status.inference
    lines: list[Line] = []
    if search.hypothesis:
        lines.append(f"inferred, not registered: {search.hypothesis}")
    if search.alternatives:
        lines.append(f"{count(search.alternatives)} less likely ones fit as well; the next epoch tells which")
    if search.why:
        lines.append(f"{search.state}: {search.why}")
    if search.state == "searching" and "seeds_tried" not in search:
        lines.append("searching for an order that explains the reads")
    if search.seeds_tried == 0:
        line = f"getting ready to try {count(search.seeds)} seeds ({search.stage}): "
        lines.append(f"{line}the first search of a mount takes up to half a minute before it begins")
    elif "seeds_tried" in search:
        line = f"searching for the seed ({search.stage}): {count(search.seeds_tried)} of {count(search.seeds)} tried "
        line += f"({percent(search.share)}), at most {duration(search.remaining_s)} left, with {search['with']}"
        lines.append(line)
    return lines


def _strangers(status: StatusPart) -> list[Line]:
    """The readers beside the jobs: those that read last; and what was learned of reads that no job follows."""
    latest = tuple(status.strangers)[-_SHOWN_STRANGERS:]
    learned = status.neighbours.words
    return [*(f"beside the jobs: {stranger.words}" for stranger in latest), *([str(learned)] if learned else [])]


def _title(text: str) -> Line:
    """A line of its own: rich would fold a table's title to the width of the table."""
    return text, "bold"


def _jobs(status: StatusPart) -> list[Line]:
    parts: list[Line] = []
    for job in status.jobs:
        title = f"job {job.name}{' (inferred, not registered)' if job.inferred else ''}: {job.state}"
        if job.observed_opens != 0:
            title += f", agreement {percent(job.agreement)}: {count(job.agreed_opens)} of {count(job.observed_opens)}"
            title += f" opens that were compared, of {count(status.opens)} in all"
            if "agreement_recent" in job:
                title += f"; {percent(job.agreement_recent)} of the last {count(job.recent_opens)}"
        if unknown := dict(job.opens_in_unknown_order.items()):
            title += f" ({count(sum(map(number, unknown.values())))} opens, of epoch {', '.join(unknown)}, came before"
            title += " their order was known)"
        table = NumberTable("rank", "epoch", "step", "position", "ahead: samples", "bytes", "time")
        for rank in job.ranks:
            table.add(
                count(rank.rank),
                out_of(rank.epoch, None if job.inferred else job.epochs),
                out_of(rank.step, rank.steps_per_epoch),
                count(rank.position),
                count(rank.ahead.samples),
                size(rank.ahead.bytes),
                duration(rank.ahead.seconds),
            )
        parts += [_title(title), *_loader(job), *_served(job), table, *_load(job)]
        if job.message and job.message not in status.messages:
            parts.append((f"! {job.message}", "yellow"))
    if not parts and not status.messages:
        return ["no job is registered: reads are served as they come (mlfs register --help)"]
    return parts


def _audit(status: StatusPart) -> list[Line]:
    """The last epochs of the script that reads most, as the auditor saw them last."""
    most = max(status.audit.jobs, key=lambda job: number(job.samples), default=None)
    return [] if most is None else ["\n  ".join(audited(most, _AUDITED_EPOCHS))]


def _load(job: StatusPart) -> list[Line]:
    """The loaders and their time, and how unevenly the ranks load."""
    load = job.load
    if not load:
        return []
    columns = ("waits", "preprocesses", "hands over", "is idle", "batch every", "limit")
    table = NumberTable("rank", "workers", "advised", *columns)
    for rank, of in load.ranks.items():
        times = map(duration, (of.waiting_s, of.preprocess_s, of.handing_s, of.idle_s, of.step_s))
        workers = 0 if of.reader_trains else of.workers
        table.add(rank, count(workers), count(load.advice.workers[rank]), *times, str(of.limit))
    said = []
    if is_number(load.imbalanced_steps):
        uneven = f"{percent(load.imbalanced_steps)} of the last "
        uneven += f"{count_of(load.steps, 'step is', 'steps are')} uneven (imbalance "
        uneven += f"{percent(load.imbalance)}){of_which_ranks(job)}"
        said.append(uneven)
    if is_number(load.straggler):
        said.append(f"rank {load.straggler} will be late in the next steps")
    return [*(["; ".join(said)] if said else []), _title("what each process of a loader does for a batch"), table]


def _loader(job: StatusPart) -> list[Line]:
    """How the processes of a rank share its stream, and whether that was registered or observed."""
    said = []
    for name, key in (("batch size", "batch_size"), ("workers", "num_workers"), ("prefetch depth", "prefetch_depth")):
        known = job.loader[key]
        if not known:
            continue
        value = f"{count(known.value)} ({known['from']})"
        if not is_number(known.value):
            least, most = known.at_least, known.at_most
            value = f"at least {count(least)}" if is_number(most) or (is_number(least) and least != 1) else "unknown"
            value += f", at most {count(most)}" if is_number(most) else ""
        said.append(f"{name} {value}")
    return [f"loader: {', '.join(said)}"] if said else []


def _served(job: StatusPart) -> list[Line]:
    """The order that mlfs serves to the job, and how random it is."""
    spec = job.spec
    if "serve" not in spec:
        return []
    said = f"order: served, {spec.serve}, dealt to {count_of(len(spec.nodes), 'node', 'nodes')}"
    if "level_reached" in spec:
        rounds = count_of(spec.rounds, "round", "rounds")
        said += f"; {percent(spec.level_reached)} of the randomness of a uniform shuffle, in {rounds}"
        said += f"; nodes keep {percent(spec.kept)} of the samples"
    return [said]


def _reads(status: StatusPart) -> list[Line]:
    epoch, total, fetches = status.reads.epoch, status.reads["all"], status.fetches
    columns = ("reads: since the epoch began", "bytes", "reads: all", "bytes", "fetches", "bytes")
    table = NumberTable("route", *columns)
    # Routes of a later version come behind those that are known here.
    names = _ROUTES | {name: name for part in (total, epoch, fetches) for name in part if name not in _ROUTES}
    for key, name in names.items():
        now, ever, ahead = epoch[key], total[key], fetches[key]
        if key not in ROUTES_OF_ALL and not any(map(number, (now.reads, ever.reads, ahead.count))):
            continue
        cells = [count(now.reads), size(now.bytes), count(ever.reads), size(ever.bytes)]
        table.add(name, *cells, count(ahead.count), size(ahead.bytes))
    return [_title("reads and fetches by route"), table]


def _tiers(status: StatusPart) -> list[Line]:
    table = NumberTable("name", "used", "of", "full", "samples", "errors")
    rows = [(str(tier.name), tier) for tier in status.tiers]
    rows += [("staging", status.staging)] if status.staging else []
    for name, tier in rows:
        used, capacity = tier.used_bytes, tier.capacity_bytes
        full = used / capacity if is_number(used) and is_number(capacity) and capacity else None
        table.add(name, size(used), size(capacity), percent(full), count(tier.samples), count(tier.errors))
    return [_title("tiers"), table] if rows else []


def _peers(status: StatusPart) -> list[Line]:
    """The nodes of the cluster; nothing where no agent speaks for this one."""
    peers = status.peers
    if not peers:
        return []
    table = NumberTable("node", "name", "is", "holds", "bytes", "gave", "got", "missed", "shared")
    for member in peers.members:
        table.add(
            f"{count(member.node)}{' (here)' if member.node == peers.node else ''}",
            _shortened(str(member.name)),
            f"lost {duration(member.lost_s)}" if is_number(member.lost_s) else str(member.state),
            count(member.held),
            size(member.held_bytes),
            count(member.given),
            count(member.got),
            count(member.missing),
            str(member.plan or NONE).removeprefix("by "),
        )
    title = f"nodes of the cluster: {count(peers.nodes)}"
    title += "" if peers.joined else ", not all have joined"
    if peers.silent:
        title += f"; the agent here (process {peers.agent}) does not answer, and no node is asked meanwhile"
    if peers.away:
        title += f"; lost for good: {', '.join(map(str, peers.away))}, others own what they owned"
    why = [f"! node {node} is no peer: {reason}" for node, reason in peers.refused.items()]
    return [_title(title), table, *why]


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}~"


def _rates(status: StatusPart) -> list[Line]:
    """The best bandwidth of each place; nothing while none is known."""
    table = NumberTable("place", "measured", "by lanes", "calibrated", "by lanes", "refined", "by lanes")
    rows = 0
    for name, rates in status.rates.items():
        kinds = (rates.measured, rates.calibrated, rates.refined)
        best = [max(points, key=lambda point: point[1], default=None) for points in kinds]
        if any(best):
            cells = [part for point in best for part in ((_rate(point[1]), str(point[0])) if point else (NONE, NONE))]
            table.add(name, *cells)
            rows += 1
    return [_title("bandwidths"), table] if rows else []


def _rate(bytes_per_s: Any) -> str:
    return f"{size(bytes_per_s)}/s"


def _numbers(status: StatusPart) -> list[Line]:
    stalls, pfs, loading, no_room = status.stalls, status.pfs, status.plan.loading, status.no_room
    happened = ", ".join(f"{name.replace('_', ' ')} {count(value)}" for name, value in status.errors.items() if value)
    rules = "the source" if loading.rules == "pfs" else loading.rules
    chosen = f", {size(pfs.by_choice_bytes)} though a tier has it" if pfs.by_choice_bytes else ""
    return [
        f"stalls   {count(stalls.count)}, {duration(stalls.total_s)} in all, worst {duration(stalls.worst_s)}",
        f"PFS      {size(pfs.epoch_bytes)} this epoch, bound {size(pfs.bound_bytes)}, {size(pfs.total_bytes)} in all"
        + chosen,
        *([f"no room  for {count(no_room.samples)} that were read, {size(no_room.bytes)}"] if no_room.samples else []),
        *(["plan     what is needed furthest ahead makes room in memory"] if status.plan.evicts else []),
        *([f"loading  {duration(loading.epoch_s)} an epoch at least, {rules} rules"] if loading else []),
        f"errors   {happened or ('none' if 'errors' in status else NONE)}",
        f"memory   {size(status.memory.rss_bytes)} of the daemon",
    ]
