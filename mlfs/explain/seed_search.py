"""The process that searches for a seed, on one core, and the daemon's end of it.

In: one question on stdin. Out: events on stdout, one a line. Begun by `mlfs.explain.attempt`. The process ends when it
is done, when it is killed, and when its stdin is closed: so it never outlives its daemon.

It is a process of its own because it computes for minutes. So it takes nothing of the daemon's interpreter, its memory
is free when it ends, and the kernel can prefer everybody else: after its first seconds it runs at a low priority, but
where it looks through the words of one seed. It is not the lowest priority, at which the search would stand still
beside a busy loader on the same core; what it finds pays for the tenth of the core that it takes there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from mlfs.explain.confirm import Finding
from mlfs.explain.question import DataSet
from mlfs.explain.recipes import Recipe
from mlfs.explain.search import find
from mlfs.explain.search_stages import (
    COMMON_SEEDS,
    LATEST_WORD,
    WHOLE,
    Draw,
    Event,
    GeneratorsFound,
    PlaceFound,
    Ranges,
    SearchExtent,
    SeedFound,
    StageProgress,
    WordsAsked,
)

LOW_PRIORITY = 10  # a niceness
# What nearly all scripts do is found within so much time of a core.
PROMPT_S = 6.0
PROGRESS_EVERY_S = 0.5  # often enough for a person who watches `mlfs status`
RANGES_VARIABLE = "MLFS_INFER_SEEDS"
# Of a generator, and small numbers, where the ranges are narrowed: only tests do that.
FEW_WORDS, FEW_SEEDS = 1 << 12, 1 << 17
_ONE_THREAD = {name: "1" for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def ranges_wanted(text: str | None) -> Ranges:
    """All seeds; or those of "LOW-HIGH,LOW-HIGH", HIGH not included, for tests, which must not take minutes."""
    if not text:
        return WHOLE
    pairs = [part.split("-") for part in text.split(",")]
    return tuple((int(low), int(high)) for low, high in pairs)


class SeedSearch:
    """One search, seen from the daemon."""

    def __init__(
        self,
        data_sets: Sequence[DataSet],
        hints: Sequence[int] = (),
        again: bool = False,
        words: WordsAsked | None = None,
    ) -> None:
        ranges = ranges_wanted(os.environ.get(RANGES_VARIABLE))
        common, latest = (COMMON_SEEDS, LATEST_WORD) if ranges == WHOLE else (FEW_SEEDS, FEW_WORDS)
        first = tuple(dict.fromkeys(hints))
        extent = SearchExtent(ranges, common, latest=latest, hints=first, again=again, words=words)
        self._question = question(data_sets, extent)
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._killed = False

    def run(self, on_event: Callable[[Event], None]) -> int:
        """In a worker thread: search, and pass on each event. Returns the process' exit code, 0 if it never began."""
        with self._lock:
            if self._killed:
                return 0
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=os.environ | _ONE_THREAD,
            )  # fmt: skip
        with process:
            try:
                if process.stdin is not None and process.stdout is not None:
                    process.stdin.write(self._question + "\n")
                    process.stdin.flush()
                    for line in process.stdout:
                        on_event(parse_answer(line))
            except (OSError, ValueError):
                process.kill()  # the process was killed, or has written nonsense: there is nothing to tell
        return process.returncode

    def kill(self) -> None:
        """From any thread: end the search at once, also one that has not begun."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()


# -- questions and answers as JSON, between the daemon and the process


def question(data_sets: Sequence[DataSet], extent: SearchExtent) -> str:
    """The question as one line."""
    return json.dumps({"data_sets": [[d.n, d.heads] for d in data_sets], "extent": extent._asdict()})


def parse_question(line: str) -> tuple[list[DataSet], SearchExtent]:
    """The data sets and the extent that `question` wrote down."""
    asked: dict[str, Any] = json.loads(line)
    sets = [DataSet(n, tuple(tuple(head) for head in heads)) for n, heads in asked["data_sets"]]
    extent = asked["extent"]
    ranges = tuple((low, high) for low, high in extent["ranges"])
    extent |= {"ranges": ranges, "hints": tuple(extent["hints"]), "words": _words(extent["words"])}
    return sets, SearchExtent(**extent)


def _words(asked: list[Any] | None) -> WordsAsked | None:
    if asked is None:
        return None
    seed, seeded, ahead, spans, weights_file = asked
    return WordsAsked(seed, seeded, ahead, tuple((low, high) for low, high in spans), weights_file)


def answer(event: Event) -> str:
    """An event, as one line."""
    if isinstance(event, StageProgress):
        return json.dumps({"progress": list(event)})
    if isinstance(event, Recipe):
        return json.dumps({"recipe": list(event)})
    if isinstance(event, PlaceFound):
        return json.dumps({"place": event.words})
    if isinstance(event, SeedFound):
        return json.dumps({"found": list(event.finding), "draws": event.draws})
    return json.dumps({"draws": event.draws})


def parse_answer(line: str) -> Event:
    """The event that `answer` wrote down."""
    said: dict[str, Any] = json.loads(line)
    if "progress" in said:
        return StageProgress(*said["progress"])
    if "recipe" in said:
        return Recipe(*said["recipe"])
    if "place" in said:
        return PlaceFound(said["place"])
    if "found" in said:
        fields = dict(zip(Finding._fields, said["found"], strict=True))
        return SeedFound(Finding(**fields | {"ranks": tuple(fields["ranks"])}), _draws(said))
    return GeneratorsFound(_draws(said))


def _draws(said: dict[str, Any]) -> tuple[Draw, ...]:
    return tuple(Draw(*draw) for draw in said["draws"])


# -- the process


def main() -> int:
    """Search, in a process of its own."""
    data_sets, extent = parse_question(sys.stdin.readline())
    threading.Thread(target=_end_with_the_daemon, daemon=True).start()
    said_s, takes_long = 0.0, extent.words is None
    for event in find(data_sets, extent):
        if takes_long and time.process_time() > PROMPT_S:
            os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), LOW_PRIORITY))
        now = time.monotonic()
        if isinstance(event, StageProgress) and event.done < event.of and now - said_s < PROGRESS_EVERY_S:
            continue
        said_s = now
        print(answer(event), flush=True)
    return 0


def _end_with_the_daemon() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
