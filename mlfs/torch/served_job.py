"""The job of a mount whose order mlfs serves, as its control directory shows it.

In: a path in a mount. Out: the job's facts, and each epoch's dataset indices by rank. Called by `sampler`. Needs
nothing of mlfs but the files below MOUNT/.mlfs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError


class ServedJob(NamedTuple):
    """A registered job with a served order.

    Attributes:
        mountpoint: where it is mounted. name: the job's. samples: how long its data set is.
    """

    mountpoint: Path
    name: str
    samples: int
    epochs: int
    world_size: int
    batch_size: int

    def indices(self, epoch: int, rank: int) -> npt.NDArray[np.int64]:
        """What a rank reads in an epoch, in read order. Raises JobError when the mount does not have it."""
        path = self.mountpoint / ".mlfs" / "order" / self.name / str(epoch) / f"{rank}.indices"
        try:
            text = path.read_text()
        except OSError as error:
            message = f"the order of epoch {epoch}, rank {rank} cannot be read: {path}: {error.strerror}"
            raise JobError(message, f"mlfs status {self.mountpoint}", "epochs") from None
        return np.array(text.split(), dtype=np.int64)


def find_served_job(path: str | os.PathLike[str], name: str | None) -> ServedJob | str:
    """The job of the mount that a path lies in, or the reason why there is none, in words.

    Raises:
        JobError: there are several, and no name.
    """
    place = Path(path).resolve()
    mount = next((above for above in (place, *place.parents) if _is_mount(above)), None)
    if mount is None:
        return f"{path} is not in an mlfs mount"
    jobs = [job for job in _jobs(mount) if job.get("serve") and name in (None, job["name"])]
    if not jobs:
        which = "no job" if name is None else f"no job {name!r}"
        return f"{which} with a served order is registered at {mount} (mlfs register {mount} --serve locality ...)"
    if len(jobs) > 1:
        names = ", ".join(job["name"] for job in jobs)
        raise JobError(f"{mount} has several jobs with a served order: {names}", "give name=...", "name")
    [job] = jobs
    return ServedJob(mount, job["name"], job["samples"], job["epochs"], job["world_size"], job["batch_size"])


def _is_mount(place: Path) -> bool:
    try:
        return (place / ".mlfs" / "status").is_file()
    except PermissionError:  # another user's mount, or no mount at all
        return False


def _jobs(mountpoint: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted((mountpoint / ".mlfs" / "jobs").glob("*.json")):
        try:
            found.append(json.loads(path.read_bytes()))
        except (OSError, ValueError):  # it has just ended
            continue
    return found
