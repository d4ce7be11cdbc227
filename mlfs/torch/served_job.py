"""The job of a mount whose order mlfs serves, as its control directory shows it.

In: a path in a mount. Out: the job's facts, and each epoch's dataset indices by rank. Called by `sampler`. Needs
nothing of mlfs but the files below MOUNT/.mlfs.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlfs.errors import JobError

# A job is told these besides what its order rests on: which ranks run on this node, how far it is read, where it
# begins.
_NOT_OF_THE_ORDER = {"ranks", "state", "epochs", "start_epoch", "start_step", "prefetch_factor"}
# The loader does these, of which DistributedSampler's order knows nothing. Other samplers draw from a generator from
# which the loader draws too.
_LOADERS = {"num_workers", "persistent_workers", "loader_drop_last"}
_KNOWS_NO_LOADER = {"torch-distributed"}

# How samples are dealt to ranks (`tree` is of the nodes, too). Without it the fields say the order of all ranks
# together, where the sampler's global batches are cut from one order, and locality leaves them as they are.
_DEALING = {"world_size", "batch_size", "nodes", "tree"}

# So long a node waits at most for a job that another one is told. A job begins with a plan that all nodes have: a node
# that says nothing is waited for ten seconds, the planner as well as others (`mlfs.plan.cluster_plan`).
PATIENCE_S = 25.0
LOOK_EVERY_S = 0.1
SAID_AFTER_S = 2.0


class ServedJob(NamedTuple):
    """A registered job with a served order.

    Attributes:
        mountpoint: where it is mounted. name: the job's. samples: how long its data set is.
        order: a hash of all that its order rests on: the same on all nodes that serve the same order.
        of_all: a hash of what the order of all ranks together rests on; "" where that is another one for other ranks.
    """

    mountpoint: Path
    name: str
    samples: int
    epochs: int
    world_size: int
    batch_size: int
    order: str
    of_all: str = ""

    @classmethod
    def of(cls, mountpoint: Path, job: Mapping[str, Any]) -> ServedJob:
        """Made from the text of MOUNT/.mlfs/jobs/NAME.json."""
        besides = _NOT_OF_THE_ORDER | (_LOADERS if job.get("sampler") in _KNOWS_NO_LOADER else set())
        is_cut = job.get("sampler") in _KNOWS_NO_LOADER and job.get("serve") == "locality"
        return cls(
            mountpoint, job["name"], job["samples"], job["epochs"], job["world_size"], job["batch_size"],
            _hash_of(job, besides), _hash_of(job, besides | _DEALING) if is_cut else "",
        )  # fmt: skip

    def indices(self, epoch: int, rank: int) -> npt.NDArray[np.int64]:
        """A rank's indices in an epoch, in read order.

        Raises:
            JobError: the mount does not have it, or has another job of that name by now.
        """
        path = self.mountpoint / ".mlfs" / "order" / self.name / str(epoch) / f"{rank}.indices"
        try:
            text, failed = path.read_text(), None
        except OSError as error:
            text, failed = "", error
        self.check(epoch)  # after it was read: what was read is of the job that is there now
        if failed is not None:
            message = f"the order of epoch {epoch}, rank {rank} cannot be read: {path}: {failed.strerror}"
            raise JobError(message, f"mlfs status {self.mountpoint}", "epochs")
        return np.fromstring(text, dtype=np.int64, sep="\n")

    def check(self, epoch: int) -> None:
        """Raises JobError where the job is not there any more, is another one, or has no such epoch."""
        where, now = f"the job {self.name} at {self.mountpoint}", None
        _is_mount(self.mountpoint)  # raises where its daemon is gone
        for job in _jobs(self.mountpoint):
            if job["name"] == self.name:
                now = ServedJob.of(self.mountpoint, job)
        if now is None:
            raise JobError(f"{where} is not registered any more", "register it again, with --start-epoch", "name")
        if now.order != self.order:
            message = f"{where} was registered anew with another order while this script ran"
            raise JobError(message, "start the script again; jobs beside each other need names of their own", "name")
        if not 0 <= epoch < now.epochs:
            message = f"{where} has the epochs 0 to {now.epochs - 1}, and the script reads epoch {epoch}"
            raise JobError(message, "register it with as many --epochs as the script makes", "epochs")


def _hash_of(job: Mapping[str, Any], besides: set[str]) -> str:
    """A hash of a job's fields. Args: besides: those that are left out."""
    fields = json.dumps({name: job[name] for name in sorted(job.keys() - besides)})
    return hashlib.sha256(fields.encode()).hexdigest()[:16]


def find_served_job(path: str | os.PathLike[str], name: str | None) -> ServedJob | str:
    """The job of the mount that reads what lies at a path, or the reason why there is none, in words.

    The job may have been registered on another node a moment ago where nodes have joined (`mlfs peers`). So it is
    waited for: a rank that reads its own order while others read the served one reads what these read, too.

    Raises:
        JobError: there are several, and no name; or the mount's daemon is gone.
    """
    place = Path(path).resolve()
    mount = next((above for above in (place, *place.parents) if _is_mount(above)), None)
    if mount is None:
        return f"{path} is not in an mlfs mount"
    found = _look_for(mount, place, name)
    if isinstance(found, ServedJob) or not _has_peers(mount):
        return found
    began_s, is_said = time.monotonic(), False
    while not isinstance(found, ServedJob) and (waited_s := time.monotonic() - began_s) < PATIENCE_S:
        if waited_s >= SAID_AFTER_S and not is_said:
            is_said = True
            words = f"mlfs: {found}: waiting up to {PATIENCE_S:g} s for one that another node is told"
            print(words, file=sys.stderr, flush=True)
        time.sleep(LOOK_EVERY_S)
        found = _look_for(mount, place, name)
    return found if isinstance(found, ServedJob) else f"{found}, nor was it within {PATIENCE_S:g} s on another node"


def _look_for(mount: Path, place: Path, name: str | None) -> ServedJob | str:
    """As `find_served_job`, at this moment."""
    within = place.relative_to(mount)
    jobs = [job for job in _jobs(mount) if job.get("serve") and name in (None, job["name"]) and _meet(job, within)]
    if not jobs:
        which = "no job" if name is None else f"no job {name!r}"
        of = "" if within == PurePath() else f" for {within}"
        return f"{which} with a served order is registered{of} at {mount} (mlfs register {mount} --serve locality ...)"
    if len(jobs) > 1:
        names = ", ".join(job["name"] for job in jobs)
        raise JobError(f"{mount} has several jobs with a served order: {names}", "give name=...", "name")
    [job] = jobs
    return ServedJob.of(mount, job)


def _has_peers(mountpoint: Path) -> bool:
    """Whether the mount has joined others, which may be told a job that it then follows."""
    try:
        peers = json.loads((mountpoint / ".mlfs" / "status").read_bytes()).get("peers")
    except (OSError, ValueError):
        return False
    return bool(peers) and peers["nodes"] > 1


def _meet(job: Mapping[str, Any], within: PurePath) -> bool:
    """Whether a path in the mount lies in the directory that a job reads, or the other way round."""
    root = PurePath(job.get("root") or "")
    return within.is_relative_to(root) or root.is_relative_to(within)


def _is_mount(place: Path) -> bool:
    try:
        return (place / ".mlfs" / "status").is_file()
    except PermissionError:  # another user's mount, or no mount at all
        return False
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise _gone(place) from None
        raise


def _gone(mountpoint: Path) -> JobError:
    hint = f"mlfs unmount {mountpoint}, mount and register again, and start the script again"
    return JobError(f"the daemon of the mount at {mountpoint} is gone", hint)


def _jobs(mountpoint: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted((mountpoint / ".mlfs" / "jobs").glob("*.json")):
        try:
            found.append(json.loads(path.read_bytes()))
        except (OSError, ValueError):  # it has just ended
            continue
    return found
