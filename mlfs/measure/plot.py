"""A picture of a calibration: bandwidth by number of threads, one line for each place.

In: a calibration, a path. Out: a file of the kind that the path's ending says. Called by mlfs.cli.calibrate.
"""

from __future__ import annotations

from mlfs.measure.calibration import Calibration

_MB = 1e6


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
    figure.savefig(path, dpi=120)
