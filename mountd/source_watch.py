"""Looks now and then whether a source that is gone, or that hangs, is at its path again.

In: the source. Out: nothing but that it goes on. Run by mountd.daemon beside the requests: a reader who fails has the
source looked for as well, but a mount whose prefetching failed, or whose reads hang, has nobody who asks.
"""

from __future__ import annotations

import logging

import trio

from mlfs.engine.runner import Runner
from mlfs.places.posix import PosixSource

log = logging.getLogger("mlfs.source")

# As long as a person who has mounted the source again is willing to wait.
EVERY_S = 1.0


async def watch(source: PosixSource, runner: Runner) -> None:
    """For as long as the mount lives. A look that hangs holds up further ones, and nothing else."""
    told = source.statistics().root
    while True:
        await trio.sleep(EVERY_S)
        now = source.statistics()
        if now.root.error or now.hanging:
            await runner.run("source", source.look)
            now = source.statistics()
        if now.root.opened_again != told.opened_again:
            log.warning("the source's file system was opened again, after it had died or hung")
        elif (now.root.state, now.root.error) != (told.state, told.error) and now.root.error:
            log.warning("the source is gone: %s", now.root.error)
        told = now.root
