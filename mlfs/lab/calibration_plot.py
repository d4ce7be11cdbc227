"""A picture of a calibration: bandwidth by number of threads, one line for each place.

In: a calibration, a path. Out: a file of the kind that the path's ending says; of those that are there already, only a
PNG or SVG made here is replaced. Called by mlfs.cli.calibrate.
"""

from __future__ import annotations

from pathlib import Path

from mlfs.measure.calibration import Calibration
from mlfs.ours import check_replaceable, write_ours

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
