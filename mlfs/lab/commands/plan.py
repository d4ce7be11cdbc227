"""`mlfs plan SOURCE ...`: how long a training run will take, before it runs and before the cluster is bought.

In: parsed arguments (the flags of a job, the cluster's nodes and caches), a directory's real sizes, measured or given
bandwidths. Out: the time of each epoch, stalls, PFS bytes, where the data lie, what more hardware would save; as text
or JSON. mlfs.plan.epochs has the mathematics. Called by `mlfs.cli.commands`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from mlfs.cli.job_flags import add_job_flags
from mlfs.cli.parser import whole
from mlfs.cli.progress import Progress
from mlfs.cli.register import add_origin_flags, job_fields
from mlfs.cli.tree import job_streams
from mlfs.errors import ConfigError, ExitCode, SourceError
from mlfs.printable import printable
from mlfs.shown import count_of
from mlfs.units import format_duration, format_size
from mountd import interface

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlfs.job import JobSpec
    from mlfs.measure.earlier import EarlierSpeeds
    from mlfs.measure.refine import Points
    from mlfs.orders.streams import JobStreams
    from mlfs.plan.epochs import Workload
    from mlfs.plan.model import PerformanceModel, StorageClass

_EPILOG = """\
examples:
  mlfs calibrate /data/imagenet --ssd /scratch
  mlfs plan /data/imagenet --nodes 4 --ram 64G --ssd 400G \\
      --epochs 90 --batch-size 64 --world-size 16 --step-time 250ms
  mlfs plan /data/imagenet --nodes 4 --ram 64G --epochs 90 --step-time 250ms \\
      --pfs-bandwidth 2GB --json

Bandwidths are bytes a second (2GB, 500M). Those not given come from the calibration of SOURCE. One node's calibration
does not tell what the source gives to many: without --pfs-bandwidth all nodes together get what one measured.
"""
_PAGE_BYTES = 4096
MOST_NODES = 32767  # as in a scenario
_NETWORK = 1.25e9  # 10 Gbit/s, what is assumed where --network is not given
_THREADS = 4  # prefetch threads of a class, as a mount has them


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.usage = "mlfs plan [-h] SOURCE --epochs N --step-time TIME ... [flags, see below]"
    parser.description = "Predict a training run from the data set's real sizes and measured or given bandwidths."
    parser.epilog = _EPILOG
    parser.add_argument("source", metavar="SOURCE", help="the directory with the training files")
    group = parser.add_argument_group("the cluster")
    nodes = whole(1, MOST_NODES)
    group.add_argument("--nodes", metavar="N", type=nodes, default=1, help="number of nodes (default: 1)")
    group.add_argument("--ram", metavar="SIZE", default="0", help="memory for kept samples, of a node (default: 0)")
    group.add_argument("--ssd", metavar="SIZE", default="0", help="disk for kept samples, of a node (default: 0)")
    text = "nodes give each other what they keep, as mounts do under `mlfs peers` (default: yes)"
    group.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help=text)
    text = "computing time of one step, all ranks at once: 250ms"
    group.add_argument("--step-time", metavar="TIME", required=True, help=text)
    group = parser.add_argument_group("bandwidths, bytes a second")
    group.add_argument("--pfs-bandwidth", metavar="SIZE", help="of the source, all nodes together")
    group.add_argument("--network", metavar="SIZE", help="of a node's network (default: 1.25GB)")
    group.add_argument("--ssd-bandwidth", metavar="SIZE", help="of a node's disks (default: as measured, or 500MB)")
    group.add_argument("--ram-bandwidth", metavar="SIZE", help="of a node's memory (default: as measured, or 10GB)")
    text = "what `mlfs calibrate` wrote (default: the one of SOURCE, if there is one)"
    group.add_argument("--calibration", metavar="FILE", help=text)
    add_job_flags(parser)
    add_origin_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON (default: text)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan; raises MlfsError for what is wrong with job, source or numbers."""
    from mlfs.job import parse_job

    fields = job_fields(args, os.environ)
    fields.setdefault("world_size", args.nodes)
    fields.setdefault("ranks", [0])  # the plan is about all ranks, so it does not matter which are this node's
    if "epochs" not in fields:
        raise ConfigError("the number of epochs is not known", "give --epochs N")
    spec = parse_job(fields)
    if spec.world_size < args.nodes:
        raise ConfigError(f"--nodes {args.nodes}: the job has {spec.world_size} ranks", "give a larger --world-size")
    earlier = _earlier(args)
    began = time.perf_counter()
    with job_streams(args.source, spec) as (streams, manifest):
        found = _foretell(args, spec, streams, manifest.sample_sizes, earlier, time.perf_counter() - began)
    print(json.dumps(found, indent=2) if args.json else "\n".join(map(printable, lines(found))))
    return ExitCode.OK


def _earlier(args: argparse.Namespace) -> EarlierSpeeds:
    """Earlier measurements of the source; if the path is that of a mount, those of the mount's source."""
    from mlfs.measure import calibration
    from mlfs.measure.earlier import earlier_speeds

    if args.calibration is not None:
        return earlier_speeds(args.source, calibration.load(args.calibration), named=True)
    source = interface.resolve(args.source)
    for entry in interface.enclosing_mlfs(args.source)[:1]:
        if entry.mountpoint == source:
            source = os.fsdecode(unquote_to_bytes(entry.source.removeprefix("mlfs:")))
    path = calibration.default_path(source)
    return earlier_speeds(source, calibration.load(path) if path.exists() else None, named=False)


def _foretell(
    args: argparse.Namespace, spec: JobSpec, streams: JobStreams, sizes: npt.NDArray[np.int64],
    earlier: EarlierSpeeds, planned_s: float,
) -> dict[str, Any]:  # fmt: skip
    from mlfs.lab.sizing.scaling import ScaleOut
    from mlfs.plan.epochs import Workload, held_bytes, run_cost
    from mlfs.units import parse_duration

    ids = streams.sample_ids[streams.sample_ids >= 0]
    data_bytes = int(sizes[ids].sum())
    if not data_bytes:
        raise SourceError(f"{args.source}: the job's samples hold no bytes", "nothing is to be planned")
    rounded = int((-(-sizes[ids] // _PAGE_BYTES) * _PAGE_BYTES).sum())
    model = _model(args, spec, earlier, data_bytes / max(data_bytes, rounded))
    read, first_batch_s = _first_epoch(args.nodes, spec, streams, sizes, model)
    steps = -(-streams.length(spec.start_epoch) // spec.batch_size)
    compute_s = steps * parse_duration(args.step_time, what="--step-time")
    work = Workload(data_bytes, read, compute_s, spec.epochs - spec.start_epoch, args.peers)
    cost = run_cost(model, work)
    held = held_bytes(model, work)
    pfs = float(model.pfs.at(args.nodes))
    crossover = None
    if compute_s > 0:
        crossover = ScaleOut(read, read / (args.nodes * compute_s), pfs).crossover_nodes()
    return {
        "source": args.source, "samples": len(ids), "data_bytes": data_bytes, "nodes": args.nodes,
        "world_size": spec.world_size, "epochs": work.epochs, "steps": steps, "batch_size": spec.batch_size,
        "peers": args.peers,
        "calibrated": earlier.calibrated.made if earlier.calibrated else None, "pfs_bytes_per_s": pfs,
        "refined": earlier.refined.made if earlier.refined else None,
        "fits": sum(held.values()) >= data_bytes, "held_bytes": held | {"pfs": data_bytes - sum(held.values())},
        "first_batch_s": first_batch_s, "planning_s": planned_s,
        "first_epoch": _epoch(cost.first), "later_epochs": _epoch(cost.later),
        "seconds": cost.seconds, "stall_s": cost.stall_s, "pfs_bytes": cost.pfs_bytes,
        "crossover_nodes": crossover, "marginal": _marginal(args, model, work),
    }  # fmt: skip


def _epoch(cost: Any) -> dict[str, Any]:
    return dict(cost._asdict()) | {"stall_s": cost.stall_s, "rules": cost.rules}


def _first_epoch(
    nodes: int, spec: JobSpec, streams: JobStreams, sizes: npt.NDArray[np.int64], model: PerformanceModel
) -> tuple[float, float]:
    """Bytes that all ranks read in the first epoch, and how long the slowest node waits for its first batch."""
    import numpy as np

    total, firsts = 0, np.zeros(nodes)
    with Progress() as progress:
        for rank in range(spec.world_size):
            ids = streams.epoch_ids(spec.start_epoch, rank)
            inside = ids >= 0
            total += int(sizes[ids[inside]].sum())
            batch = ids[: spec.batch_size]
            firsts[rank * nodes // spec.world_size] += int(sizes[batch[batch >= 0]].sum())
            progress.update({"phase": f"the first epoch of {rank + 1:,} of {spec.world_size:,} ranks"})
    return float(total), float(firsts.max() / model.pfs_share_bytes_per_s(nodes))


def _bytes(text: str | None) -> float | None:
    from mlfs.units import parse_size

    if text is None:
        return None
    value = float(parse_size(text.removesuffix("/s"), what="bandwidth"))
    if value <= 0:
        raise ConfigError(f"a bandwidth of {text!r} moves nothing", "write for example 2GB or 500M")
    return value


def _model(args: argparse.Namespace, spec: JobSpec, earlier: EarlierSpeeds, filling: float) -> PerformanceModel:
    """The model of the cluster. `filling`: content bytes in a byte of cache, as samples take whole pages."""
    from mlfs.measure.refine import MEMORY_BYTES_PER_S
    from mlfs.plan.model import Curve, PerformanceModel, StorageClass

    pfs = _bytes(args.pfs_bandwidth)
    if pfs is None and earlier.source is None:
        hint = f"measure it: mlfs calibrate {args.source}; or give --pfs-bandwidth"
        raise ConfigError("the bandwidth of the source is not known", hint)
    one_node = earlier.source.best_bytes_per_s if earlier.source else float("inf")
    staging = Curve.flat(MEMORY_BYTES_PER_S)
    disk = earlier.disk(earlier.disks[0]) if earlier.disks else ()
    ram = _class("ram", args.ram, args.ram_bandwidth, earlier.memory, filling)
    ssd = _class("ssd", args.ssd, args.ssd_bandwidth, disk, filling)
    return PerformanceModel(
        nodes=args.nodes, epochs=spec.epochs, global_batch=spec.batch_size * spec.world_size,
        drop_last=spec.drop_last or False, compute_bytes_per_s=float("inf"), preprocess_bytes_per_s=float("inf"),
        network_bytes_per_s=_bytes(args.network) or _NETWORK, pfs=Curve.flat(pfs or one_node),
        node_pfs_bytes_per_s=one_node, staging=StorageClass("staging", 0, staging, staging, 1),
        classes=tuple(storage for storage in (ram, ssd) if storage.capacity_bytes > 0),
    )  # fmt: skip


def _class(name: str, size: str, given: str | None, measured: Points, filling: float) -> StorageClass:
    from mlfs.measure.refine import DISK_BYTES_PER_S, MEMORY_BYTES_PER_S
    from mlfs.plan.model import Curve, StorageClass
    from mlfs.units import parse_size

    rate, default = _bytes(given), MEMORY_BYTES_PER_S if name == "ram" else DISK_BYTES_PER_S
    curve = Curve.flat(rate) if rate else Curve(tuple(measured)) if measured else Curve.flat(default)
    return StorageClass(name, parse_size(size, what=f"--{name}") * filling, curve, curve, _THREADS)


def _marginal(args: argparse.Namespace, model: PerformanceModel, work: Workload) -> list[dict[str, Any]]:
    """The gains of one more unit of each resource over the whole run, the one that saves most time first."""
    from mlfs.plan.epochs import run_cost

    changed: dict[str, PerformanceModel] = {}
    for name, unit in (("ram", UNITS["ram"]), ("ssd", UNITS["ssd"])):
        changed[name] = _with_more(args, model, name, unit)
    changed["network"] = model.changed(network_bytes_per_s=model.network_bytes_per_s + UNITS["network"])
    more = (float(model.pfs.at(1)) + UNITS["pfs"]) / float(model.pfs.at(1))
    share = model.node_pfs_bytes_per_s * more
    changed["pfs"] = model.changed(pfs=model.pfs.scaled(more), node_pfs_bytes_per_s=share)
    before, found = run_cost(model, work), []
    for name, other in changed.items():
        after = run_cost(other, work)
        saved = {"saved_s": before.seconds - after.seconds, "saved_pfs_bytes": before.pfs_bytes - after.pfs_bytes}
        found.append({"unit_bytes": UNITS[name], "what": name, **saved})
    return sorted(found, key=lambda gain: -gain["saved_s"])


def _with_more(args: argparse.Namespace, model: PerformanceModel, name: str, unit: float) -> PerformanceModel:
    from dataclasses import replace

    if not any(storage.name == name for storage in model.classes):
        given = {"ram": args.ram_bandwidth, "ssd": args.ssd_bandwidth}[name]
        new = _class(name, str(int(unit)), given, (), 1.0)
        classes = (new, *model.classes) if name == "ram" else (*model.classes, new)
    else:
        classes = tuple(
            replace(storage, capacity_bytes=storage.capacity_bytes + unit) if storage.name == name else storage
            for storage in model.classes
        )
    return model.changed(classes=classes)


# -- the text that is printed
#
# In: the result, in the form of its JSON. Out: lines.

# How much more of each resource the table of gains adds: to each node, and to the source for all nodes together.
UNITS = {"ram": float(16 << 30), "ssd": float(100 << 30), "network": 1e9, "pfs": 1e9}
_NAMES = {"compute": "computing", "pfs": "the source", "network": "the network", "ram": "RAM", "ssd": "the disks"}


def lines(found: dict[str, Any]) -> list[str]:
    """The whole text."""
    return [*_head(found), "", *_epochs(found), "", *_places(found), "", *_limit(found), "", *_gains(found)]


def _head(found: dict[str, Any]) -> list[str]:
    shared = "which share their caches" if found["peers"] else "each with its own caches"
    nodes = count_of(found["nodes"], "node", "nodes") + (f", {shared}" if found["nodes"] > 1 else "")
    ranks, batch = count_of(found["world_size"], "rank", "ranks"), count_of(found["batch_size"], "sample", "samples")
    size = format_size(found["data_bytes"])
    made = _made(found)
    head = [
        f"{found['source']}: {found['samples']:,} samples, {size}; {nodes}, {ranks}",
        f"source {_rate(found['pfs_bytes_per_s'])} for all nodes ({made})",
        f"{count_of(found['steps'], 'step', 'steps')} an epoch, each of {batch} a rank" + _one_by_one(found),
    ]
    if found["peers"] and found["nodes"] > 1:
        head.append("mounts share their caches while `mlfs peers` runs on all nodes; --no-peers plans without")
    return head


def _one_by_one(found: dict[str, Any]) -> str:
    """A hint for users who forgot the batch size: with batches of one sample a run has many steps."""
    return " (if batches are larger: --batch-size)" if found["batch_size"] == 1 else ""


def _made(found: dict[str, Any]) -> str:
    said = [f"calibrated {found['calibrated']}"] if found["calibrated"] else []
    said += [f"refined by mounts until {found['refined']}"] if found["refined"] else []
    return ", ".join(said) or "bandwidths as given"


def _rate(bytes_per_s: float) -> str:
    return f"{format_size(bytes_per_s)}/s"


def _epochs(found: dict[str, Any]) -> list[str]:
    rows = [f"{'epoch':<12} {'time':>12} {'computing':>12} {'stalls':>12} {'from source':>12} {'from peers':>12}"]
    names = [("first", "first_epoch")] + ([("each other", "later_epochs")] if found["epochs"] > 1 else [])
    for name, key in names:
        cost = found[key]
        times = [format_duration(cost[field]) for field in ("seconds", "compute_s", "stall_s")]
        sizes = [format_size(cost[field]) for field in ("pfs_bytes", "peer_bytes")]
        rows.append(f"{name:<12} " + " ".join(f"{cell:>12}" for cell in times + sizes))
    total = [format_duration(found["seconds"]), "", format_duration(found["stall_s"]), format_size(found["pfs_bytes"])]
    rows.append(f"{'all ' + str(found['epochs']):<12} " + " ".join(f"{cell:>12}" for cell in total))
    wait = format_duration(found["first_batch_s"])
    rows.append(f"first batch: {wait} to read it; scan and order took {format_duration(found['planning_s'])} here")
    return rows


def _places(found: dict[str, Any]) -> list[str]:
    held, data = found["held_bytes"], found["data_bytes"]
    parts = [
        f"{_NAMES[name]} {format_size(size)} ({100 * size / data:.0f} %)" for name, size in held.items() if size > 0
    ]
    said = f"it {'fits' if found['fits'] else 'does not fit'}: {', '.join(parts)}"
    if found["epochs"] == 1:
        return [f"{said}; there is no epoch after the first"]
    missing = found["later_epochs"]["pfs_bytes"]
    if not missing:
        return [f"{said}; nothing comes from the source after the first epoch"]
    if found["peers"] or found["nodes"] == 1:
        return [said, f"  {format_size(missing)} come from the source in every epoch after the first"]
    return [said, f"  {format_size(missing)} come from the source in an epoch after the first, on average: each node",
            "  keeps what it reads most, and fetches each sample itself the first time that it reads it"]  # fmt: skip


def _limit(found: dict[str, Any]) -> list[str]:
    first, later = found["first_epoch"]["rules"], found["later_epochs"]["rules"]
    if found["epochs"] == 1 or first == later:
        said = f"limit: {_NAMES[first]} rules every epoch"
    else:
        said = f"limit: {_NAMES[first]} rules the first epoch, {_NAMES[later]} the others"
    said += ": faster storage changes nothing" if first == later == "compute" else ""
    crossover = found["crossover_nodes"]
    if crossover is None:
        return [said]
    return [said, f"without caches the source would rule beyond p = R / V = {crossover:.1f} nodes"]


def _gains(found: dict[str, Any]) -> list[str]:
    units = {
        "ram": f"RAM +{format_size(UNITS['ram'])} a node",
        "ssd": f"disk +{format_size(UNITS['ssd'])} a node",
        "network": f"network +{UNITS['network'] / 1e9:g} GB/s a node",
        "pfs": f"source +{UNITS['pfs'] / 1e9:g} GB/s",
    }
    rows = [f"{'one unit more':<26} {'saves':>14} {'of the run':>10} {'source reads':>14}"]
    for gain in found["marginal"]:
        share = gain["saved_s"] / found["seconds"] if found["seconds"] else 0.0
        saved = format_duration(gain["saved_s"]) if abs(share) >= 0.0005 else "nothing"
        less = f"-{format_size(gain['saved_pfs_bytes'])}" if gain["saved_pfs_bytes"] > 0 else "as before"
        rows.append(f"{units[gain['what']]:<26} {saved:>14} {100 * share:>8.1f} % {less:>14}")
    return rows
