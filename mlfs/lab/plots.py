"""Pictures of simulations and of a calibration.

In: results, a path. Out: a PNG or whatever matplotlib makes of the file's name. Called by `mlfs simulate` and
`mlfs calibrate`; matplotlib is loaded only then.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlfs.errors import ConfigError
from mlfs.ours import check_replaceable, write_ours

if TYPE_CHECKING:
    from mlfs.lab.sim.run import PolicyResult
    from mlfs.measure.calibration import Calibration
    from mlfs.plan.model import Floats

# -- simulations: stacked bars of several policies (as NoPFS, Fig. 8), a heat map over RAM and SSD (Fig. 9)

COLOURS = ("#c44e52", "#dd8452", "#ccb974", "#8c8c8c", "#55a868", "#64b5cd", "#4c72b0", "#8172b3")


def bars(results: Sequence[PolicyResult], title: str, path: Path) -> None:
    """Run time by policy; each bar is divided by the share of loading time of each route. Raises ConfigError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.5 * len(results) + 1.6), layout="constrained")
    axes = figure.subplots()
    names = [result.policy for result in results]
    left = [0.0] * len(results)
    routes = list(dict.fromkeys(route for result in results for route in result.seconds_share))
    for number, route in enumerate(routes):
        widths = [result.seconds * result.seconds_share.get(route, 0.0) for result in results]
        if any(widths):
            axes.barh(names, widths, left=left, label=route, color=COLOURS[number % len(COLOURS)])
        left = [a + b for a, b in zip(left, widths, strict=True)]
    bare = [result.seconds - done for result, done in zip(results, left, strict=True)]
    axes.barh(names, bare, left=left, label="no loading", color="#dddddd")
    for index, result in enumerate(results):
        axes.text(result.seconds, index, f" {result.seconds:.4g} s", va="center", fontsize=8)
    axes.axvline(min(result.compute_s for result in results), color="black", linewidth=0.8, linestyle=":")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("simulated seconds, divided by share of loading time")
    axes.set_title(textwrap.fill(title, 60), fontsize=10)
    figure.legend(fontsize=8, loc="outside lower center", ncols=4)
    _save(figure, path)


def heat_map(seconds: Floats, ram: Sequence[str], ssd: Sequence[str], title: str, path: Path) -> None:
    """Run time by size of RAM (columns) and SSD (rows); `seconds` (len(ssd), len(ram)). Raises ConfigError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.1 * len(ram) + 2, 0.8 * len(ssd) + 1.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(seconds, cmap="viridis_r", aspect="auto")
    axes.set_xticks(range(len(ram)), ram)
    axes.set_yticks(range(len(ssd)), ssd)
    axes.set_xlabel("first class of each node")
    axes.set_ylabel("second class of each node")
    middle = float(seconds.min() + seconds.max()) / 2
    for row, column in ((row, column) for row in range(len(ssd)) for column in range(len(ram))):
        value = float(seconds[row, column])
        axes.text(
            column, row, f"{value:.4g}", ha="center", va="center", fontsize=8, color="w" if value > middle else "k"
        )
    figure.colorbar(image, label="simulated seconds")
    axes.set_title(textwrap.fill(title, 60), fontsize=10)
    _save(figure, path)


def _save(figure: object, path: Path) -> None:
    if path.is_dir():  # matplotlib would write DIR.png beside it
        raise ConfigError(f"--plot {path}: Is a directory", "name a file that can be written, for example out.png")
    try:
        figure.savefig(path, dpi=150)  # type: ignore[attr-defined]
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ConfigError(f"--plot {path}: {said}", "name a file that can be written, for example out.png") from None


# -- a calibration: bandwidth by number of threads, one line for each place
#
# In: a calibration, a path. Out: a file of the kind that the path's ending says; of those that are there already, only
# a PNG or SVG made here is replaced.

_MB = 1e6
_MADE_BY = "mlfs calibrate"
_KIND = "a picture made by mlfs calibrate"
# How matplotlib calls what a picture says of its maker. In a PDF that stands at the end, where nobody looks for it.
_MAKER_FIELD = {".png": "Software", ".svg": "Creator"}


def check_path(path: Path) -> None:
    """Whether a picture may be written there. Raises NotOursError for a file that is none of ours; OSError."""
    check_replaceable(str(path), _KIND, _is_picture)


def _is_picture(beginning: bytes) -> bool:
    return _MADE_BY.encode() in beginning


def draw(calibration: Calibration, path: str) -> None:
    """Write the picture.

    Raises: OSError, ValueError (an ending that matplotlib does not know).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    lines = {"source, read": calibration.source.read, "memory, read": calibration.memory.read}
    lines["memory, write"] = calibration.memory.write
    for speeds in calibration.ssd:
        lines[f"{speeds.path}, read"] = speeds.read
        lines[f"{speeds.path}, write"] = speeds.write
    for name, points in lines.items():
        axes.plot([n for n, _ in points], [rate / _MB for _, rate in points], marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="threads", ylabel="MB/s, all threads together")
    axes.set_xscale("log", base=2)
    axes.set_title(calibration.source.path)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    ending = Path(path).suffix.lower()
    metadata = {_MAKER_FIELD[ending]: _MADE_BY} if ending in _MAKER_FIELD else {}
    kind = ending.removeprefix(".") or "png"
    write_ours(path, lambda file: figure.savefig(file, dpi=120, format=kind, metadata=metadata), _KIND, _is_picture)
