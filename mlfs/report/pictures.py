"""The pictures of a report: bars and lines by epoch, as SVG that stands in a page.

Pure. In: numbers by epoch. Out: SVG text. Called by `mlfs.report.page`; matplotlib is loaded only then.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mlfs.shown import ROUTE_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def times(epochs: Sequence[int], computing_s: Sequence[float], waiting_s: Sequence[float]) -> str:
    """How long each epoch took: without waiting, and the waiting above it."""
    figure, axes = _figure("seconds", epochs)
    axes.bar(epochs, computing_s, color="#4c72b0", label="without waiting")
    axes.bar(epochs, waiting_s, bottom=computing_s, color="#c44e52", label="waiting for data")
    return _svg(figure, axes)


def reads(epochs: Sequence[int], by_route: Mapping[str, Sequence[float]]) -> str:
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


def source_bytes(epochs: Sequence[int], gib: Sequence[float], bound_gib: float) -> str:
    """The source's bytes in each epoch, beside the least that caches of this size leave to it after the first."""
    figure, axes = _figure("GiB from the source", epochs)
    axes.bar(epochs, gib, color="#c44e52", label="read from the source")
    axes.axhline(bound_gib, color="black", linewidth=0.8, linestyle=":", label="the least after the first epoch")
    return _svg(figure, axes)


def agreement(epochs: Sequence[int], percent: Sequence[float]) -> str:
    """The share of each epoch's opens that came as predicted, in per cent."""
    figure, axes = _figure("% as predicted", epochs)
    axes.plot(epochs, percent, color="#55a868", marker="o", markersize=4, label="opens that came as predicted")
    axes.set_ylim(0, 103)
    return _svg(figure, axes)


def bandwidths(points: Mapping[str, Sequence[tuple[float, float]]]) -> str:
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
