"""A report of a mount: one page of HTML that needs nothing else, with what happened in each epoch and what would help.

Pure. In: a status, as `mlfs status --json` prints it. Out: the page's text. Called by `mlfs.cli.report`. A part that
the status does not have (`mlfs.shown.StatusPart`) is left out.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlfs.shown import ROUTE_NAMES, StatusPart, audited, count_of, is_number, number, of_which_ranks
from mlfs.units import format_duration, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def page(json: dict[str, Any], made: str) -> str:
    """The page; `made` says when, for people."""
    status = StatusPart(json)
    where, bound_bytes = _text(status.mountpoint), number(status.pfs.bound_bytes)
    body = "\n".join(
        (
            f"<h1>mlfs: {where}</h1>",
            f'<p class="advice">{_text(status.headline or "nothing was read yet")}</p>',
            *(f'<p class="message">{_text(message)}</p>' for message in dict.fromkeys(status.messages)),
            _facts(status),
            *(piece for job in status.jobs for piece in _job(job, bound_bytes)),
            *_epochs(status),
            *_audit(status),
            *_bandwidths(status),
            *_places(status),
            *_errors(status),
            f"<footer>made by mlfs {_text(status.version)}, {_text(made)}</footer>",
        )
    )
    head = f'<meta charset="utf-8"><title>mlfs: {where}</title><style>{_STYLE}</style>'
    return f'{MARK}<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _facts(status: StatusPart) -> str:
    tree = status.manifest
    rows = [
        ("source", str(status.source)),
        ("data set", f"{number(tree.files):,} files, {format_size(number(tree.bytes))}"),
        ("mounted for", format_duration(number(status.uptime_s))),
        ("opens", f"{number(status.opens):,}"),
        ("readers waited", format_duration(number(status.stalls.total_s))),
        ("from the source", format_size(number(status.pfs.total_bytes))),
    ]
    return _table([], rows)


def _job(job: StatusPart, bound_bytes: float) -> Iterator[str]:
    """A job: what it is, what was learned of it, and its epochs."""
    how = "inferred from its reads" if job.inferred else "registered"
    yield f"<h2>Job {_text(job.name)}: {_text(job.state)}, {how}</h2>"
    spec = ", ".join(_field(key, value) for key, value in job.spec.items() if value or value in (0, False))
    yield f"<p>{_text(spec)}</p>" if spec else ""
    learned = [str(what) for what in job.found_out]
    loader = [
        f"{name.replace('_', ' ')} {known.value} ({known['from']})"
        for name, known in job.loader.items()
        if isinstance(known, StatusPart) and is_number(known.value)
    ]
    if learned or loader:
        yield f"<p>What was learned: {_text('; '.join(learned + loader))}.</p>"
    if time := _by_epoch(job.time_by_epoch):
        read_s = [number(of.reading_s) for of in time.values()]
        waited = [number(of.waited_share) for of in time.values()]
        waiting_s = [seconds * share for seconds, share in zip(read_s, waited, strict=True)]
        computing_s = [seconds - wait_s for seconds, wait_s in zip(read_s, waiting_s, strict=True)]
        yield _picture("How long each epoch took", times_svg([*time], computing_s, waiting_s))
        rows = [
            (str(epoch), format_duration(seconds), f"{100 * share:.1f} %", f"{number(of.samples):,}")
            for (epoch, of), seconds, share in zip(time.items(), read_s, waited, strict=True)
        ]
        yield _table(["epoch", "time", "waited at most", "samples"], rows)
    yield from _load(job)
    if agreed := _by_epoch(job.agreement_by_epoch):
        shares = [100 * number(of.agreement) for of in agreed.values()]
        yield _picture("How many opens came as predicted", agreement_svg([*agreed], shares))
    if brought := _by_epoch(job.pfs_bytes_by_epoch):
        gib = [number(size) / _GIB for size in brought.values()]
        yield _picture("What the source gave", source_bytes_svg([*brought], gib, bound_bytes / _GIB))


def _by_epoch(of: StatusPart) -> dict[int, Any]:
    """The values of each epoch, in the order of the epochs."""
    return dict(sorted((int(epoch), value) for epoch, value in of.items()))


def _load(job: StatusPart) -> Iterator[str]:
    """The loaders of its ranks and their time, and how unevenly they load."""
    load = job.load
    rows = [
        (
            f"rank {rank}",
            f"{0 if of.reader_trains else number(of.workers):,}",
            *(
                format_duration(number(seconds))
                for seconds in (of.waiting_s, of.preprocess_s, of.handing_s, of.idle_s, of.step_s)
            ),
            str(of.limit),
        )
        for rank, of in load.ranks.items()
    ]
    if not rows:
        return
    if is_number(load.imbalanced_steps):
        uneven, apart = 100 * load.imbalanced_steps, 100 * number(load.imbalance)
        last = count_of(number(load.steps), "step", "steps")
        which = of_which_ranks(job)
        said = f"Of the last {last} {uneven:.1f} % are uneven (imbalance {apart:.1f} %){which}."
        yield f"<p>{_text(said)}</p>"
    columns = (
        "workers", "a worker waits for a batch", "preprocesses it", "hands it over", "is idle", "batch every", "limit",
    )  # fmt: skip
    yield _table(["load", *columns], rows)
    if any(of.reader_trains for _, of in load.ranks.items()):
        yield "<p>A rank of 0 workers loads in its training process: it trains where others hand a batch over.</p>"


def _field(key: str, value: object) -> str:
    """A field of a registration, as `mlfs register` writes its flags."""
    name, text = key.replace("_", "-"), str(value)
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, tuple):
        text = " ".join(str(one) for one in value)
    return f"{name} {text}"


def _epochs(status: StatusPart) -> Iterator[str]:
    """Reads by route, epoch by epoch."""
    epochs = [epoch.reads for epoch in status.epochs if epoch.reads]
    if not epochs:
        return
    routes = [route for route in ROUTE_NAMES if any(route in reads for reads in epochs)]
    by_route = {route: [number(reads[route].reads) for reads in epochs] for route in routes}
    yield "<h2>Where reads were answered</h2>"
    yield _picture("Of each epoch, the latest last", reads_svg(range(len(epochs)), by_route))


def _audit(status: StatusPart) -> Iterator[str]:
    """The numbers of the auditor's last look; findings are among the messages above."""
    jobs = [audited(job) for job in status.audit.jobs]
    if jobs:
        yield "<h2>What scripts read, epoch by epoch</h2>"
    for title, *lines in jobs:
        yield f"<h3>{_text(title)}</h3>\n<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"


def _bandwidths(status: StatusPart) -> Iterator[str]:
    points = {}
    for place, rates in status.rates.items():
        if known := rates.measured or rates.refined or rates.calibrated:
            points[place] = [(float(lanes), rate / 1e6) for lanes, rate in known]
    if points:
        yield "<h2>Bandwidths</h2>"
        yield _picture("What each place gives", bandwidths_svg(points))


def _places(status: StatusPart) -> Iterator[str]:
    rows = [
        (
            str(tier.name),
            format_size(number(tier.used_bytes)),
            format_size(number(tier.capacity_bytes)),
            f"{number(tier.samples):,}",
        )
        for tier in status.tiers
    ]
    if rows:
        yield "<h2>Caches</h2>"
        yield _table(["cache", "used", "of", "samples"], rows)


def _errors(status: StatusPart) -> Iterator[str]:
    rows = [(name.replace("_", " "), f"{count:,}") for name, count in status.errors.items() if count]
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


# -- pictures: bars and lines by epoch, as SVG that stands in the page
#
# In: numbers by epoch. Out: SVG text.

# From the page cache to the source: the warmer the colour, the slower the place.
ROUTE_COLOURS = {
    "page_cache": "#4c72b0",
    "ram": "#64b5cd",
    "ssd": "#55a868",
    "lmdb": "#8172b3",
    "peer": "#ccb974",
    "pfs": "#c44e52",
}
_WIDTH_IN, _HEIGHT_IN = 7.2, 2.6
_MOST_TICKS = 20


def times_svg(epochs: Sequence[int], computing_s: Sequence[float], waiting_s: Sequence[float]) -> str:
    """How long each epoch took: without waiting, and the waiting above it."""
    figure, axes = _figure("seconds", epochs)
    axes.bar(epochs, computing_s, color="#4c72b0", label="without waiting")
    axes.bar(epochs, waiting_s, bottom=computing_s, color="#c44e52", label="waiting for data")
    return _svg(figure, axes)


def reads_svg(epochs: Sequence[int], by_route: Mapping[str, Sequence[float]]) -> str:
    """The share of each epoch's reads that each route answered, in per cent."""
    figure, axes = _figure("% of reads", epochs)
    sums = [max(1.0, sum(counts)) for counts in zip(*by_route.values(), strict=True)]
    below = [0.0] * len(epochs)
    for route, counts in by_route.items():
        shares = [100 * count / whole for count, whole in zip(counts, sums, strict=True)]
        axes.bar(
            epochs,
            shares,
            bottom=below,
            color=ROUTE_COLOURS.get(route, "#8c8c8c"),
            label=ROUTE_NAMES.get(route, route),
        )
        below = [a + b for a, b in zip(below, shares, strict=True)]
    axes.set_ylim(0, 100)
    return _svg(figure, axes)


def source_bytes_svg(epochs: Sequence[int], gib: Sequence[float], bound_gib: float) -> str:
    """The source's bytes in each epoch, beside the least that caches of this size leave to it after the first."""
    figure, axes = _figure("GiB from the source", epochs)
    axes.bar(epochs, gib, color="#c44e52", label="read from the source")
    axes.axhline(bound_gib, color="black", linewidth=0.8, linestyle=":", label="the least after the first epoch")
    return _svg(figure, axes)


def agreement_svg(epochs: Sequence[int], percent: Sequence[float]) -> str:
    """The share of each epoch's opens that came as predicted, in per cent."""
    figure, axes = _figure("% as predicted", epochs)
    axes.plot(epochs, percent, color="#55a868", marker="o", markersize=4, label="opens that came as predicted")
    axes.set_ylim(0, 103)
    return _svg(figure, axes)


def bandwidths_svg(points: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Megabytes a second that each place gave, by how many lanes read it at once."""
    figure, axes = _figure("MB/s")
    for place, measured in points.items():
        lanes, rates = zip(*sorted(measured), strict=True)
        axes.plot(lanes, rates, marker="o", markersize=4, label=place)
    axes.set_xlabel("lanes that read at once")
    axes.set_ylim(bottom=0)
    return _svg(figure, axes)


def _figure(unit: str, epochs: Sequence[int] = ()) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
    axes = figure.subplots()
    axes.set_ylabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    if epochs:
        axes.set_xlabel("epoch")
        axes.set_xticks(list(epochs)[:: max(1, -(-len(epochs) // _MOST_TICKS))])
    return figure, axes


def _svg(figure: Figure, axes: Axes) -> str:
    import matplotlib

    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=8, frameon=False)
    out = io.StringIO()
    # Text stays text, so the page is small and can be searched; without a date the same numbers give the same page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "mlfs"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
