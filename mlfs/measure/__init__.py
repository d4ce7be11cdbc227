"""Measures how fast the source, the cache directories and the memory are; saves, merges and gives the figures.

- Before a mount, `mlfs calibrate` measures: `trials` says what is read, written and copied, `meter` runs it and counts.
  `calibration` is the file that it writes, `mlfs.lab.plots` draws it.
- While a mount runs, `rates` measures each batch of its prefetch lanes.
- `refine` merges both: it moves a calibrated curve to what was measured since. `speeds` is where the mount asks for the
  result.
- When the mount ends, `refined` saves the result beside the calibration, and `earlier` tells the next mount and
  `mlfs plan` what both files say.

A bandwidth is always a curve: points (lanes, bytes a second of all these lanes together). A lane is one thread that
reads or writes.
"""
