"""Shows on stderr the progress of what may take long: a scan, the start of a daemon.

In: reports of how far it is. Out: nothing for two seconds; then a line that changes on a terminal, elsewhere a line
every few seconds. Used by the commands that scan, start or search.
"""

from __future__ import annotations

import sys
import time
from typing import Any

# Most starts take less, and then a command that says nothing but its result is the easiest to read.
PROGRESS_AFTER_S = 2.0
# A few reports do where each is a line of its own, as in the log of a batch job.
PLAIN_PROGRESS_EVERY_S = 5.0
_COUNTED = (("dirs", "directories"), ("files", "files"))


class Progress:
    """Shows the last report, once it takes longer than `PROGRESS_AFTER_S`."""

    def __init__(self) -> None:
        self._started = self._printed = time.monotonic()
        self._live: Any = None
        self._text = "starting"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, progress: dict[str, Any]) -> None:
        """Take a report: `phase` in words, and how many `dirs` and `files` are done."""
        counts = [f"{progress[key]:,} {name}" for key, name in _COUNTED if isinstance(progress.get(key), int)]
        self._text = ": ".join([str(progress.get("phase", "starting")), *([", ".join(counts)] if counts else [])])
        self.tick()

    def tick(self) -> None:
        """Show the last report, if it is time to."""
        now = time.monotonic()
        if now - self._started < PROGRESS_AFTER_S:
            return
        if sys.stderr.isatty():
            if self._live is None:
                from rich.console import Console

                self._live = Console(stderr=True, markup=False).status(self._text)
                self._live.start()
            self._live.update(self._text)
        elif now - self._printed >= PLAIN_PROGRESS_EVERY_S or self._printed == self._started:
            self._printed = now
            print(f"mlfs: {self._text}", file=sys.stderr)

    def close(self) -> None:
        """Take the line off the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None
