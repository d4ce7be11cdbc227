"""What the side-by-side benchmark says of its runs: a table, what others do better than mlfs, and a picture.

Pure but for the picture's file. In: the figures of each run. Out: lines of text, a PNG. Called by
scripts/benchmark/versus.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

from mlfs.report import ROUTE_COLOURS

MLFS = "mlfs, registered"
LOCAL = "a local disk"
# What is less by less than a tenth, or by less than this, is noise.
NOISE_S, NOISE_MB, NOISE_SHARE = 0.1, 5.0, 0.1


@dataclass(frozen=True)
class Figures:
    """One training over one way to the data."""

    name: str
    ready_s: float
    """What it takes to mount, to copy, to register."""
    first_batch_s: float
    """From the beginning of what makes the way ready (a mount, a copy) to the slowest rank's first batch."""
    epochs_s: tuple[float, ...]
    all_s: float
    """From the same beginning to the end of the last epoch."""
    source_mb: float
    memory_mb: float
    """Of the processes that serve, at the end: with the samples that they keep."""
    page_cache_mb: float
    """By how much that of the whole machine has grown meanwhile: other programs count, too."""
    disk_mb: float

    @property
    def epoch_0_s(self) -> float:
        return self.epochs_s[0]

    @property
    def later_s(self) -> float:
        """The median of the epochs after the first; the first, if that is all."""
        return statistics.median(self.epochs_s[1:] or self.epochs_s)


@dataclass(frozen=True)
class Column:
    """A figure of the table."""

    heading: str
    unit: str
    of: Callable[[Figures], float]

    def shown(self, row: Figures) -> str:
        return f"{self.of(row):.2f}" if self.unit == "s" else f"{self.of(row):,.0f}"

    def is_less(self, one: Figures, other: Figures) -> bool:
        """Whether one is less than the other by more than noise."""
        saved = self.of(other) - self.of(one)
        return saved > max(NOISE_S if self.unit == "s" else NOISE_MB, NOISE_SHARE * self.of(other))


COLUMNS = (
    Column("ready", "s", lambda row: row.ready_s),
    Column("first batch", "s", lambda row: row.first_batch_s),
    Column("epoch 0", "s", lambda row: row.epoch_0_s),
    Column("later epoch", "s", lambda row: row.later_s),
    Column("all", "s", lambda row: row.all_s),
    Column("of the source", "MB", lambda row: row.source_mb),
    Column("memory", "MB", lambda row: row.memory_mb),
    Column("page cache", "MB", lambda row: row.page_cache_mb),
    Column("disk", "MB", lambda row: row.disk_mb),
)


def middle(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure over the rounds of one way."""
    epochs = tuple(statistics.median(times) for times in zip(*(row.epochs_s for row in rounds), strict=True))
    others = {
        field.name: statistics.median(getattr(row, field.name) for row in rounds)
        for field in fields(Figures)
        if field.name not in ("name", "epochs_s")
    }
    return Figures(name=rounds[0].name, epochs_s=epochs, **others)


def table(rows: Sequence[Figures], left_out: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The rows as a table that is read as it stands, and is Markdown too. The last column: of the local disk's time.

    Args:
        left_out: ways that could not be gone, and why: lines without figures.
    """
    least = next((row.all_s for row in rows if row.name == LOCAL), None)
    lines = [["over", *(f"{column.heading}, {column.unit}" for column in COLUMNS), "all, of a local disk"]]
    for row in rows:
        ratio = f"{row.all_s / least:.2f}" if least else ""
        lines.append([row.name, *(column.shown(row) for column in COLUMNS), ratio])
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return [
        f"| {line[0]:{widths[0]}} | "
        + " | ".join(f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
        + " |"
        for line in lines
    ] + [f"| {name}: not here, {why} |" + " |" * (len(widths) - 1) for name, why in left_out.items()]


def others_do_better(rows: Sequence[Figures]) -> str:
    """In one line: in which figures other ways beat mlfs with a registered job. A local disk is no other way."""
    ours = next((row for row in rows if row.name == MLFS), None)
    if ours is None:
        return f"what others do better is not known: {MLFS} has not run"
    found = []
    for column in COLUMNS:
        less = sorted((row for row in rows if row.name != LOCAL and column.is_less(row, ours)), key=column.of)
        if less:
            told = ", ".join(f"{row.name} {column.shown(row)}" for row in less)
            found.append(f"{column.heading} ({column.unit}, mlfs {column.shown(ours)}): {told}")
    return f"others do better than {MLFS}: " + ("; ".join(found) or "in nothing that is told here")


def draw(cases: Sequence[tuple[str, Sequence[Figures]]], path: Path) -> None:
    """The times of each case as bars: to the first batch, the rest of epoch 0, later epochs; source bytes in words."""
    from matplotlib.figure import Figure

    most = max(len(rows) for _, rows in cases)
    figure = Figure(figsize=(10.5, 1.3 + 0.34 * most), layout="constrained")
    all_axes = figure.subplots(1, len(cases), squeeze=False)[0]
    for axes, (title, rows) in zip(all_axes, cases, strict=True):
        names = [row.name for row in rows]
        first = [row.first_batch_s for row in rows]
        later = [sum(row.epochs_s[1:]) for row in rows]
        rest = [max(0.0, row.all_s - a - b) for row, a, b in zip(rows, first, later, strict=True)]
        below = [0.0] * len(rows)
        parts = (
            ("until the first batch", first, ROUTE_COLOURS["pfs"]),
            ("the rest of epoch 0", rest, ROUTE_COLOURS["peer"]),
            ("later epochs", later, ROUTE_COLOURS["page_cache"]),
        )
        for label, values, colour in parts:
            axes.barh(names, values, left=below, color=colour, label=label, height=0.7)
            below = [a + b for a, b in zip(below, values, strict=True)]
        for at, row in enumerate(rows):
            axes.text(row.all_s, at, f" {row.all_s:.1f} s, {row.source_mb:,.0f} MB", va="center", fontsize=7)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("seconds; beside them what the source gave")
        axes.set_xlim(0, 1.35 * max(row.all_s for row in rows))
        axes.invert_yaxis()
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
