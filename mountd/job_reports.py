"""Writes a report of the mount when a job ends, for `mlfs mount --report DIR`.

In: jobs that finish, are unregistered, or end with the mount; the status at that moment. Out: DIR/JOB-TIME.html, with
mode 0600. The command `mlfs report` makes it in a process of its own, because a daemon shall not load what draws. That
a report cannot be written is only logged.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping

import trio

from mlfs.follow.job import JobRun
from mlfs.follow.job_statistics import JobState

log = logging.getLogger("mlfs.report")

# A job of a few seconds may be registered anew soon after its end; nobody reads the page sooner.
LOOK_EVERY_S = 1.0
# To load what draws takes seconds on a busy node, and a full disk or a hanging one longer.
PATIENCE_S = 60.0


class JobReports:
    """See the module.

    Args:
        directory: where they are written, None for nowhere. status: gives the status as JSON.
        jobs: those of the mount.
    """

    def __init__(
        self,
        directory: str | None,
        status: Callable[[], bytes],
        jobs: Callable[[], Mapping[str, JobRun]],
    ) -> None:
        self._directory = directory
        self._status = status
        self._jobs = jobs
        self._written: dict[str, JobRun] = {}  # jobs that have finished, and whose report was begun
        self._to_write: list[tuple[str, bytes]] = []

    async def run(self) -> None:
        """Write what is to be written, for as long as the mount lives."""
        while self._directory is not None:
            for name, job in self._jobs().items():
                if job.state is JobState.FINISHED:
                    self.ends(name)
                elif self._written.get(name) is job:
                    del self._written[name]  # the script was started again
            await self._write_all()
            await trio.sleep(LOOK_EVERY_S)

    def ends(self, name: str) -> None:
        """A job ends now: a report is written of this moment, once a job, if it has read anything."""
        job = self._jobs().get(name)
        if self._directory is None or job is None or not job.observed or self._written.get(name) is job:
            return
        self._written[name] = job
        self._to_write.append((name, self._status()))

    async def mount_ends(self) -> None:
        """All jobs end now, with the mount."""
        for name in self._jobs():
            self.ends(name)
        await self._write_all()

    async def _write_all(self) -> None:
        while self._to_write:
            name, status = self._to_write[0]  # it stays there while it is written: the mount may end meanwhile
            out = os.path.join(self._directory or "", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.html")
            command = [sys.executable, "-m", "mlfs", "report", "-", out]
            try:
                with trio.fail_after(PATIENCE_S):
                    done = await trio.run_process(
                        command, stdin=status, capture_stdout=True, capture_stderr=True, check=False
                    )
            except (OSError, trio.TooSlowError) as error:
                log.warning("job %s: no report was written: %r", name, error)
                del self._to_write[0]
                continue
            del self._to_write[0]
            if done.returncode:
                log.warning("job %s: no report was written: %s", name, done.stderr.decode(errors="replace").strip())
            else:
                log.info("job %s: its report is %s", name, out)
