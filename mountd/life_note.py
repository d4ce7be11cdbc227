"""A note that a daemon keeps while it lives, and removes at its end: who finds one knows that the daemon died.

In: what is registered, whenever that changes. Out: what the daemon before this one had registered, if that one died
(`kill -9`, no memory left, a crash): its registrations are lost, and the next mount says so. Made by `mountd.daemon`.
The record of a mount (`mountd.runtime`) does not do for this: whoever cleans up after the dead daemon removes it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from mlfs.ours import open_ours
from mountd import runtime

log = logging.getLogger("mlfs.daemon")


@dataclass(frozen=True, slots=True)
class Died:
    """A daemon that died.

    Attributes:
        jobs: flags of `mlfs register` by the name of the job: what was registered.
    """

    pid: int
    jobs: Mapping[str, str]


class LifeNote:
    """The note of one daemon.

    Attributes:
        died: the daemon before this one, None where it ended as it should.
    """

    def __init__(self, mountpoint: str) -> None:
        self._path = os.path.join(runtime.runtime_dir(), runtime.mount_name(mountpoint) + ".life")
        pid, ticks, jobs = self._read()
        self.died = Died(pid, jobs) if pid and runtime.start_ticks(pid) != ticks else None
        self.write({})

    def _read(self) -> tuple[int, int, dict[str, str]]:
        """Whose note lies there, when that process began, and its jobs; zeros where there is none."""
        try:
            with open(open_ours(self._path), encoding="ascii") as file:
                said = json.load(file)
            return int(said["pid"]), int(said["ticks"]), {str(k): str(v) for k, v in said["jobs"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return 0, 0, {}

    def write(self, jobs: Mapping[str, str]) -> None:
        """Note the flags of the jobs that are registered now, by name. A later mount knows nothing where that fails."""
        said = {"pid": os.getpid(), "ticks": runtime.start_ticks(os.getpid()), "jobs": dict(jobs)}
        try:
            fd, temporary = tempfile.mkstemp(dir=os.path.dirname(self._path), prefix=".new-")
            try:
                with os.fdopen(fd, "w", encoding="ascii") as file:
                    json.dump(said, file)
                os.replace(temporary, self._path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            log.debug("what is registered could not be noted: %s", error)

    def remove(self) -> None:
        """Remove the note, as the daemon ends as it should. A note that another daemon has written meanwhile stays."""
        if self._read()[0] == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
