"""The process that searches for a seed, on one core, and the daemon's end of it.

In: one question on stdin. Out: events on stdout; both pickled, as either end is mlfs. Begun by `mlfs.explain.attempt`.
The process ends when it is done, when it is killed, and when its stdin is closed: so it never outlives its daemon.

It is a process of its own because it computes for minutes. So it takes nothing of the daemon's interpreter, its memory
is free when it ends, and the kernel can prefer everybody else: after its first seconds it runs at a low priority, but
where it looks through the words of one seed. It is not the lowest priority, at which the search would stand still
beside a busy loader on the same core; what it finds pays for the tenth of the core that it takes there.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from mlfs.explain.question import DataSet
from mlfs.explain.search import find
from mlfs.explain.search_stages import (
    COMMON_SEEDS,
    LATEST_WORD,
    WHOLE,
    Event,
    Ranges,
    SearchExtent,
    StageProgress,
    WordsAsked,
)
from mlfs.processes import OF_HELPER, be_killed_sooner

LOW_PRIORITY = 10  # a niceness
# The ways of nearly all scripts are found within so much time of a core.
PROMPT_S = 6.0
PROGRESS_EVERY_S = 0.5  # often enough for a person who watches `mlfs status`
RANGES_VARIABLE = "MLFS_INFER_SEEDS"
# Words of a generator, and small numbers, where the ranges are narrowed: only tests do that.
FEW_WORDS, FEW_SEEDS = 1 << 12, 1 << 17
_ONE_THREAD = {name: "1" for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def ranges_wanted(text: str | None) -> Ranges:
    """All seeds; or those of "LOW-HIGH,LOW-HIGH", HIGH not included, for tests, which must not take minutes."""
    if not text:
        return WHOLE
    pairs = [part.split("-") for part in text.split(",")]
    return tuple((int(low), int(high)) for low, high in pairs)


def extent_wanted(hints: Sequence[int], again: bool, words: WordsAsked | None) -> SearchExtent:
    """The bounds of a search: all seeds, but where a test narrows them."""
    ranges = ranges_wanted(os.environ.get(RANGES_VARIABLE))
    common, latest = (COMMON_SEEDS, LATEST_WORD) if ranges == WHOLE else (FEW_SEEDS, FEW_WORDS)
    return SearchExtent(ranges, common, latest=latest, hints=tuple(dict.fromkeys(hints)), again=again, words=words)


class SeedSearch:
    """One search, seen from the daemon."""

    def __init__(
        self,
        data_sets: Sequence[DataSet],
        hints: Sequence[int] = (),
        again: bool = False,
        words: WordsAsked | None = None,
    ) -> None:
        self._question = pickle.dumps((list(data_sets), extent_wanted(hints, again, words)))
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._killed = False

    def run(self, on_event: Callable[[Event], None]) -> int:
        """In a worker thread: search, and pass on each event. Returns the process' exit code, 0 if it never began."""
        with self._lock:
            if self._killed:
                return 0
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=os.environ | _ONE_THREAD,
            )  # fmt: skip
        with process:
            try:
                if process.stdin is not None and process.stdout is not None:
                    process.stdin.write(self._question)
                    process.stdin.flush()
                    while True:
                        on_event(pickle.load(process.stdout))
            except EOFError:
                pass  # it has said all
            except (OSError, ValueError, pickle.UnpicklingError):
                process.kill()  # the process was killed, or has written nonsense: there is nothing to tell
        return process.returncode

    def kill(self) -> None:
        """From any thread: end the search at once, also one that has not begun."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()


# -- the process


def main() -> int:
    """Search, in a process of its own."""
    be_killed_sooner(OF_HELPER)
    question: tuple[list[DataSet], SearchExtent] = pickle.load(sys.stdin.buffer)
    data_sets, extent = question
    threading.Thread(target=_end_with_the_daemon, daemon=True).start()
    said_s, takes_long = 0.0, extent.words is None
    for event in find(data_sets, extent):
        if takes_long and time.process_time() > PROMPT_S:
            os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), LOW_PRIORITY))
        now = time.monotonic()
        if isinstance(event, StageProgress) and event.done < event.of and now - said_s < PROGRESS_EVERY_S:
            continue
        said_s = now
        pickle.dump(event, sys.stdout.buffer)
        sys.stdout.flush()
    return 0


def _end_with_the_daemon() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing more is written: it returns when the daemon has closed its end
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
