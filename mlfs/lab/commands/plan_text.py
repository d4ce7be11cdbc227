"""The text that `mlfs plan` prints.

In: the result of mlfs.lab.commands.plan, in the form of its JSON. Out: lines. Called by mlfs.lab.commands.plan.
"""

from __future__ import annotations

from typing import Any

from mlfs.shown import count_of
from mlfs.units import format_duration, format_size

# How much more of each resource the table of gains adds: to each node, and to the source for all nodes together.
UNITS = {"ram": float(16 << 30), "ssd": float(100 << 30), "network": 1e9, "pfs": 1e9}
_NAMES = {"compute": "computing", "pfs": "the source", "network": "the network", "ram": "RAM", "ssd": "the disks"}


def lines(found: dict[str, Any]) -> list[str]:
    """The whole text."""
    return [*_head(found), "", *_epochs(found), "", *_places(found), "", *_limit(found), "", *_marginal(found)]


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


def _marginal(found: dict[str, Any]) -> list[str]:
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
