"""A report of a mount: one page of HTML that needs nothing else, with what happened in each epoch and what would help.

Pure. In: a status, as `mlfs status --json` prints it. Out: the page's text. Called by `mlfs.cli.report`. Parts that a
status does not have are left out, so the status of another version can be reported, too.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any

from mlfs.report import pictures
from mlfs.shown import count_of, is_number, number_of, of_which_ranks, part, parts_of
from mlfs.units import format_duration, format_size

MARK = "<!DOCTYPE html>\n<!-- a report of mlfs -->\n"
"""How each page begins; a file that begins otherwise is none of ours, and is not written over."""
_GIB = 1 << 30
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid #ddd; }
.advice { font-size: 1.15em; background: #f2f6fb; border-left: 4px solid #4c72b0; padding: .6em 1em; }
.message { background: #fdf6e3; border-left: 4px solid #dd8452; padding: .3em 1em; }
table { border-collapse: collapse; } td, th { padding: .15em 1.2em .15em 0; text-align: left; }
th + th, td.number { text-align: right; font-variant-numeric: tabular-nums; } svg { max-width: 100%; height: auto; }
footer { color: #777; margin-top: 3em; font-size: .85em; }
"""


def page(status: dict[str, Any], made: str) -> str:
    """The page; `made` says when, for people."""
    where, bound_bytes = _text(status.get("mountpoint", "-")), number_of(status, "pfs", "bound_bytes")
    body = "\n".join(
        (
            f"<h1>mlfs: {where}</h1>",
            f'<p class="advice">{_text(status.get("headline") or "nothing was read yet")}</p>',
            *(f'<p class="message">{_text(message)}</p>' for message in dict.fromkeys(parts_of(status, "messages"))),
            _facts(status),
            *(piece for job in parts_of(status, "jobs") for piece in _job(job, bound_bytes)),
            *_epochs(status),
            *_bandwidths(status),
            *_places(status),
            *_errors(status),
            f"<footer>made by mlfs {_text(status.get('version', '-'))}, {_text(made)}</footer>",
        )
    )
    head = f'<meta charset="utf-8"><title>mlfs: {where}</title><style>{_STYLE}</style>'
    return f'{MARK}<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _facts(status: dict[str, Any]) -> str:
    manifest = part(status, "manifest")
    rows = [
        ("source", str(status.get("source", "-"))),
        ("data set", f"{manifest.get('files', 0):,} files, {format_size(manifest.get('bytes', 0))}"),
        ("mounted for", format_duration(status.get("uptime_s", 0))),
        ("opens", f"{status.get('opens', 0):,}"),
        ("readers waited", format_duration(number_of(status, "stalls", "total_s"))),
        ("from the source", format_size(number_of(status, "pfs", "total_bytes"))),
    ]
    return _table([], rows)


def _job(job: dict[str, Any], bound_bytes: float) -> Iterator[str]:
    """A job: what it is, what was learned of it, and its epochs."""
    how = "inferred from its reads" if job.get("inferred") else "registered"
    yield f"<h2>Job {_text(job.get('name', '-'))}: {_text(job.get('state', '-'))}, {how}</h2>"
    spec = ", ".join(_field(key, value) for key, value in part(job, "spec").items() if value not in ("", None, []))
    yield f"<p>{_text(spec)}</p>" if spec else ""
    learned = [str(what) for what in parts_of(job, "found_out")]
    loader = [
        f"{name.replace('_', ' ')} {known['value']} ({known.get('from', '-')})"
        for name, known in part(job, "loader").items()
        if isinstance(known, dict) and known.get("value") is not None
    ]
    if learned or loader:
        yield f"<p>What was learned: {_text('; '.join(learned + loader))}.</p>"
    time = {int(epoch): told for epoch, told in part(job, "time_by_epoch").items()}
    if time:
        epochs = sorted(time)
        waiting = [time[epoch]["reading_s"] * time[epoch]["waited_share"] for epoch in epochs]
        computing = [time[epoch]["reading_s"] - wait for epoch, wait in zip(epochs, waiting, strict=True)]
        yield _picture("How long each epoch took", pictures.times(epochs, computing, waiting))
        rows = [
            (
                str(epoch),
                format_duration(time[epoch]["reading_s"]),
                f"{100 * time[epoch]['waited_share']:.1f} %",
                f"{time[epoch]['samples']:,}",
            )
            for epoch in epochs
        ]
        yield _table(["epoch", "time", "waited at most", "samples"], rows)
    yield from _load(job)
    agreed = {int(epoch): told for epoch, told in part(job, "agreement_by_epoch").items()}
    if agreed:
        epochs = sorted(agreed)
        shares = [100 * (agreed[epoch].get("agreement") or 0.0) for epoch in epochs]
        yield _picture("How many opens came as predicted", pictures.agreement(epochs, shares))
    brought = {int(epoch): size for epoch, size in part(job, "pfs_bytes_by_epoch").items()}
    if brought:
        epochs = sorted(brought)
        gib = [brought[epoch] / _GIB for epoch in epochs]
        yield _picture("What the source gave", pictures.source_bytes(epochs, gib, bound_bytes / _GIB))


def _load(job: dict[str, Any]) -> Iterator[str]:
    """The loaders of its ranks and their time, and how unevenly they load."""
    load, times = part(job, "load"), ("waiting_s", "preprocess_s", "handing_s", "idle_s", "step_s")
    rows = [
        (
            f"rank {rank}",
            f"{0 if of.get('reader_trains') else of.get('workers', 0):,}",
            *(format_duration(of.get(key) or 0.0) for key in times),
            str(of.get("limit", "-")),
        )
        for rank, of in part(load, "ranks").items()
    ]
    if not rows:
        return
    if is_number(load.get("imbalanced_steps")):
        uneven, apart = (100 * number_of(job, "load", key) for key in ("imbalanced_steps", "imbalance"))
        last = count_of(load.get("steps", 0), "step", "steps")
        which = of_which_ranks(job)
        said = f"Of the last {last} {uneven:.1f} % are uneven (imbalance {apart:.1f} %){which}."
        yield f"<p>{_text(said)}</p>"
    columns = (
        "workers", "a worker waits for a batch", "preprocesses it", "hands it over", "is idle", "batch every", "limit",
    )  # fmt: skip
    yield _table(["load", *columns], rows)
    if any(of.get("reader_trains") for of in part(load, "ranks").values()):
        yield "<p>A rank of 0 workers loads in its training process: it trains where others hand a batch over.</p>"


def _field(key: str, value: object) -> str:
    """A field of a registration, as `mlfs register` writes its flags."""
    name, text = key.replace("_", "-"), str(value)
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, list):
        text = " ".join(str(one) for one in value)
    return f"{name} {text}"


def _epochs(status: dict[str, Any]) -> Iterator[str]:
    """Reads by route, epoch by epoch."""
    epochs = [epoch for epoch in parts_of(status, "epochs") if part(epoch, "reads")]
    if not epochs:
        return
    routes = [route for route in pictures.ROUTE_NAMES if any(route in epoch["reads"] for epoch in epochs)]
    by_route = {route: [epoch["reads"].get(route, {}).get("reads", 0) for epoch in epochs] for route in routes}
    yield "<h2>Where reads were answered</h2>"
    yield _picture("Of each epoch, the latest last", pictures.reads(range(len(epochs)), by_route))


def _bandwidths(status: dict[str, Any]) -> Iterator[str]:
    points = {}
    for place, rates in part(status, "rates").items():
        known = parts_of(rates, "measured") or parts_of(rates, "refined") or parts_of(rates, "calibrated")
        if known:
            points[str(place)] = [(float(lanes), rate / 1e6) for lanes, rate in known]
    if points:
        yield "<h2>Bandwidths</h2>"
        yield _picture("What each place gives", pictures.bandwidths(points))


def _places(status: dict[str, Any]) -> Iterator[str]:
    rows = [
        (
            str(tier.get("name", "-")),
            format_size(tier.get("used_bytes", 0)),
            format_size(tier.get("capacity_bytes", 0)),
            f"{tier.get('samples', 0):,}",
        )
        for tier in parts_of(status, "tiers")
    ]
    if rows:
        yield "<h2>Caches</h2>"
        yield _table(["cache", "used", "of", "samples"], rows)


def _errors(status: dict[str, Any]) -> Iterator[str]:
    rows = [(name.replace("_", " "), f"{count:,}") for name, count in part(status, "errors").items() if count]
    if rows:
        yield "<h2>What went wrong</h2>"
        yield _table(["what", "how often"], rows)


def _picture(title: str, svg: str) -> str:
    return f"<h3>{_text(title)}</h3>\n{svg}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = f"<tr>{''.join(f'<th>{_text(column)}</th>' for column in columns)}</tr>" if columns else ""
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def _cells(row: Sequence[str]) -> str:
    first, *others = row
    return f"<td>{_text(first)}</td>" + "".join(f'<td class="number">{_text(cell)}</td>' for cell in others)


def _text(value: object) -> str:
    """The value as text of a page: names may hold anything, also bytes that are no text."""
    return html.escape(str(value).encode("utf-8", "backslashreplace").decode())
