"""What a daemon needs to serve, taken at its start: threads for readers, descriptors, memory.

In: the limits of this process. Out: threads that are there before the first read comes, how the descriptors are shared
out; or the MlfsError that names the limit which is too low. Called by `mountd.daemon`. What is not needed to serve
(lanes, tiers, plans) is taken when it is wanted, and goes without what it cannot have (mlfs.engine.shortages).
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Mapping
from typing import NamedTuple

import trio

from mlfs.engine.runner import DESCRIPTORS_A_THREAD, SPARE, ThreadRunner
from mlfs.errors import ExitCode, MlfsError
from mlfs.limits import Resource, limit_of, raise_open_files

# Two for readers who wait for a file, so that one which hangs can be asked for again; one for readers whose page is
# gone, which must not wait for the former (docs/concurrency.md, rule 4); one for everything else.
SERVING = {SPARE: 1, "demand": 2, "read": 1}
THREADS = sum(SERVING.values())
# Descriptors for a moment: the control files, a directory that is listed, what /proc is asked, a recording.
KEPT_FREE = 8
FEWEST_DESCRIPTORS = KEPT_FREE + DESCRIPTORS_A_THREAD * THREADS
# What is opened between the start and the first read: the source, the loop, the log, files in memory, /dev/fuse.
OPENED_AT_START = 15
# The address space of the threads' stacks and of what is read at a time, beside what the program itself takes.
FEWEST_BYTES = 64 << 20
# A thread of the scan may take a moment to end, and is one too many until then.
PATIENCE_S = 0.5


class Descriptors(NamedTuple):
    """How the descriptors that may still be opened are shared out.

    Attributes:
        threads: most threads, so that each has the descriptors it needs. open_files: large files held open for readers.
    """

    threads: int
    open_files: int


def check_start() -> None:
    """Before anything else: take what serving needs, and give it back. Raises MlfsError with the limit's name."""
    free = raise_open_files()
    if free < OPENED_AT_START + FEWEST_DESCRIPTORS:
        raise too_low(Resource.FILES, f"{OPENED_AT_START + FEWEST_DESCRIPTORS - free} more")
    over = threading.Event()
    try:
        for _ in range(THREADS):
            threading.Thread(target=over.wait, daemon=True).start()
        mmap.mmap(-1, FEWEST_BYTES).close()
    except RuntimeError:
        raise too_low(Resource.THREADS, f"{THREADS + 1} threads") from None
    except (OSError, MemoryError):
        raise too_low(Resource.MEMORY, f"{FEWEST_BYTES >> 20} MiB beside what the program takes") from None
    finally:
        over.set()


def share_descriptors() -> Descriptors:
    """Share out what may still be opened; raises MlfsError where it is too little to serve."""
    free = raise_open_files()
    if free < FEWEST_DESCRIPTORS:
        raise too_low(Resource.FILES, f"{FEWEST_DESCRIPTORS - free} more")
    threads = max(THREADS, (free - KEPT_FREE) * 3 // 4 // DESCRIPTORS_A_THREAD)
    return Descriptors(threads, free - KEPT_FREE - DESCRIPTORS_A_THREAD * threads)


async def take_threads(runner: ThreadRunner, more: Mapping[str, int]) -> None:
    """Start the threads without which nothing can be served; raises MlfsError where they are not to be had.

    Args:
        more: what this mount needs besides, by pool.
    """
    with trio.move_on_after(PATIENCE_S):
        while not runner.take({**SERVING, **more}):
            await trio.sleep(PATIENCE_S / 10)
        return
    raise too_low(Resource.THREADS, f"{THREADS + 1} threads")


def too_low(what: Resource, needs: str) -> MlfsError:
    """The refusal of a mount: which limit is too low, and what to set."""
    limit = limit_of(what)
    return MlfsError(
        f"a limit of this process is too low: {limit.what}, a mount needs {needs}", limit.way_out, ExitCode.FAILURE
    )
