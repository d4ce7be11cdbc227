"""A torch Sampler, and a BatchSampler, that read the order which a mount serves.

In: a path in a mount, the data set's length. Out: dataset indices for a DataLoader. Used by training scripts.

    sampler = mlfs.torch.ServedSampler("/data/imagenet", dataset)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler)
    for epoch in range(90):
        sampler.set_epoch(epoch)

The order is that of torch's DistributedSampler, bit for bit, where there is no mount, or no job there whose order is
served, and one warning says so: the script runs anywhere. All ranks must find the same, or some samples would be read
twice and others not at all: in a process group that is checked in each epoch (`mlfs.torch.sampler`).
"""

from __future__ import annotations

import operator
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sized
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, Sampler

from mlfs.errors import JobError
from mlfs.launchers import told_rank
from mlfs.torch.served_job import ServedJob, find_served_job

warned_of: set[str] = set()

# Indices that are made Python's numbers at once.
_BLOCK = 1 << 16


class ServedSampler(Sampler[int]):
    """Gives the dataset indices of this rank in the served order.

    Args:
        path: a path in the mount. dataset: of which only the length is looked at. length: the same as a number.
        name: the job's; it need not be given where the mount has one job with a served order.
        rank, num_replicas: of torch.distributed or the launcher's environment, where they are not given.
        shuffle, seed, drop_last: of the order that is read where none is served, as DistributedSampler has them.
        fall_back: whether that may be; False: an error instead.

    Attributes:
        job: the job that is followed; None where the order is DistributedSampler's.
        epoch, rank, num_replicas: as in DistributedSampler.

    Raises:
        JobError: the data set, the ranks and the job do not go together. When an epoch begins: the job is not there any
            more or is another one, has no such epoch, or other ranks read another order; or a state was loaded of the
            middle of an epoch in another order.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dataset: Sized | None = None,
        *,
        length: int | None = None,
        name: str | None = None,
        rank: int | None = None,
        num_replicas: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        fall_back: bool = True,
    ) -> None:
        own_rank, world_size = rank_and_world_size()
        self.rank = own_rank if rank is None else rank
        self.num_replicas = world_size if num_replicas is None else num_replicas
        self.epoch = 0
        self._is_told_epochs = self._has_read = False
        # The place where the epoch begins, how many indices it has given since, and whether these were the last ones.
        self._start = self._given = 0
        self._is_over = False
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None  # an epoch and what is read in it
        self._saved_order: str | None = None  # of the state in whose middle of an epoch it goes on
        length = len(dataset) if length is None and dataset is not None else length
        self._name = named(f"{name}/{self.num_replicas}")
        found = find_served_job(path, name)
        self.job = found if isinstance(found, ServedJob) else None
        if isinstance(found, ServedJob):
            _check(found, length, self.rank, self.num_replicas)
            self._rests_on = f"the order of the job {found.name} ({found.order})"
            self._of_all, self._step_samples = found.of_all, found.batch_size * found.world_size
            self._samples = found.samples
            return
        if not fall_back:
            raise JobError(found, "with fall_back=True the order is DistributedSampler's then")
        if length is None:
            raise JobError(found, "the order of DistributedSampler needs the data set: give dataset or length")
        warn(f"mlfs: {found}: the order is that of torch's DistributedSampler")
        self._own: DistributedSampler[Any] = DistributedSampler(
            cast(Dataset[Any], range(length)),
            self.num_replicas, self.rank, shuffle=shuffle, seed=seed, drop_last=drop_last,
        )  # fmt: skip
        self._rests_on = (
            f"DistributedSampler's own order ({length} samples, num_replicas={self.num_replicas}, shuffle={shuffle},"
            f" seed={seed}, drop_last={drop_last})"
        )
        self._of_all, self._step_samples = f"{length} samples, shuffle={shuffle}, seed={seed}", self.num_replicas
        self._samples = length

    def set_epoch(self, epoch: int, start_index: int | None = None) -> None:
        """Which epoch is read next, and from which of its indices on.

        Args:
            start_index: of this rank; by default the first, or where `load_state_dict` has left this epoch.

        Raises:
            JobError: start_index is below 0.
        """
        epoch = operator.index(epoch)
        if start_index is not None and start_index < 0:
            raise JobError(f"start_index is {start_index}, must be 0 or more", "it counts the samples of this rank")
        self._is_told_epochs = True
        if start_index is not None or epoch != self.epoch:
            self._start, self._given, self._is_over = start_index or 0, 0, False
            self._saved_order = None
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of indices to come, without those that a resumed epoch has behind it."""
        return max(0, len(self._indices()) - (0 if self._is_over else self._start))

    def __iter__(self) -> Iterator[int]:
        if self._has_read and not self._is_told_epochs and self.job is not None:
            warn("mlfs: set_epoch is never called: the order of the first epoch is read again")
        if self._is_over:  # whoever reads the epoch again reads all of it
            self._start, self._saved_order = 0, None
        if self.job is not None:
            self.job.check(self.epoch)  # the order may have been read long ago, for the length
        indices = self._indices()[self._start :]
        self._given, self._is_over, self._has_read = 0, False, True
        for first in range(0, len(indices), _BLOCK):
            for index in indices[first : first + _BLOCK].tolist():
                self._given += 1
                yield index
        self._is_over = True

    def state_dict(self) -> dict[str, Any]:
        """This rank's place, and the order that it is a place in: the indices that the loader has taken, which is ahead
        of the model by what the loader prefetches.

        An epoch that was read to its end has all its indices behind it: whoever goes on from there reads none of it.
        Change "index" to steps * batch_size where what is prefetched counts.
        """
        return {
            "epoch": self.epoch,
            "index": self._start + self._given,
            "order": self._rests_on,
            "order_of_all": self._of_all,
            "num_replicas": self.num_replicas,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Another number of ranks goes on with the order of all ranks where they have left it, if the samples that they
        have read are whole steps of these ranks. In another order nobody can go on in the middle of an epoch, as some
        samples would be read twice and others not at all: that is a JobError when the epoch begins. A state without
        "order" is not compared.

        Raises:
            JobError: the state has no epoch and index.
        """
        try:
            epoch, index = operator.index(state["epoch"]), operator.index(state["index"])
        except (KeyError, TypeError):
            epoch = index = -1
        if epoch < 0 or index < 0:
            message = f"the state {dict(state)} does not say where to go on"
            raise JobError(message, 'a state_dict() of this sampler, or {"epoch": 0, "index": 0}')
        self.epoch, self._start, self._given, self._is_over = epoch, index, 0, False
        self._saved_order = state.get("order") if index else None
        read_by_all = index * int(state.get("num_replicas", 0))
        is_other_world = self._saved_order not in (None, self._rests_on) and self._of_all == state.get("order_of_all")
        if is_other_world and self._of_all and not read_by_all % self._step_samples and read_by_all < self._samples:
            self._start, self._saved_order = read_by_all // self.num_replicas, None

    def _indices(self) -> npt.NDArray[np.int64]:
        """This rank's indices in the epoch, as it is served or as DistributedSampler has it."""
        if self._saved_order not in (None, self._rests_on):
            message = f"the epoch is to go on behind index {self._start} of {self._saved_order}, and this rank reads"
            hint = "as many ranks, or a batch size with which whole steps were read (docs/served-orders.md, Resuming)"
            raise JobError(f"{message} {self._rests_on}", hint, "serve")
        if self._order is None or self._order[0] != self.epoch:
            if self.job is not None:
                order = self.job.indices(self.epoch, self.rank)
            else:
                self._own.set_epoch(self.epoch)
                order = np.fromiter(self._own, dtype=np.int64)
            check_alike(self._name, self.epoch, self._rests_on)
            self._order = self.epoch, order
        if self._start > len(self._order[1]):
            message = f"the epoch is to go on behind index {self._start}, and this rank has {len(self._order[1])}"
            raise JobError(message, "go on with the number of ranks with which the run was saved", "world_size")
        return self._order[1]


class ServedBatchSampler(BatchSampler):
    """Batches of a `ServedSampler`, for DataLoader(batch_sampler=...).

    Args:
        batch_size: the job's by default.
        drop_last: whether a last batch that is not full is left out; the job has it as `loader_drop_last`.
        options: as `ServedSampler` has them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dataset: Sized | None = None,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        served = ServedSampler(path, dataset, **options)
        job = served.job
        if batch_size is None and job is None:
            raise JobError("batch_size is missing: there is no job that says it", "give batch_size=...", "batch_size")
        if job is not None and batch_size not in (None, job.batch_size):
            message = f"batch_size is {batch_size}, and the job {job.name} has {job.batch_size}"
            raise JobError(message, "register the job with the batch size of the script", "batch_size")
        size = batch_size if job is None else job.batch_size
        assert size is not None
        super().__init__(served, size, drop_last)
        self.served = served

    def set_epoch(self, epoch: int, start_index: int | None = None) -> None:
        """See `ServedSampler.set_epoch`."""
        self.served.set_epoch(epoch, start_index)

    def state_dict(self) -> dict[str, Any]:
        """See `ServedSampler.state_dict`."""
        return self.served.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `ServedSampler.load_state_dict`."""
        self.served.load_state_dict(state)


def _check(job: ServedJob, length: int | None, rank: int, num_replicas: int) -> None:
    where = f"the job {job.name} at {job.mountpoint}"
    if length is not None and length != job.samples:
        message = f"the data set has {length} samples, and {where} has {job.samples}"
        raise JobError(message, "check root, layout and split of the registration", "layout")
    if num_replicas != job.world_size:
        message = f"the world has {num_replicas} rank{'s' * (num_replicas != 1)}, and {where} has {job.world_size}"
        raise JobError(
            message, "make the sampler after init_process_group, or give num_replicas and rank", "world_size"
        )
    if not 0 <= rank < job.world_size:
        raise JobError(f"the rank is {rank}, and {where} has ranks 0 to {job.world_size - 1}", "", "ranks")


def warn(message: str) -> None:
    """Say it once in this process."""
    if message not in warned_of:
        warned_of.add(message)
        warnings.warn(message, stacklevel=3)


# -- which rank of how many this process is
#
# In: torch.distributed, else the variables that launchers set. Out: rank and world size.


def rank_and_world_size(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The initialized process group's, else the launcher's, else those of a process alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return told_rank(environment) or (0, 1)


# -- whether all ranks of a run read one order: a rank with another one reads what others read, and leaves some out
#
# In: what a rank's order rests on, in words. Out: an error where another rank of the process group has said something
# else of the same epoch. Ranks leave their words in the store by which torch.distributed has made the group, so nobody
# waits for anybody.

# How many samplers the script has made of which it says the same, such as two for sets of one length.
_made: Counter[str] = Counter()


def named(said: str) -> str:
    """A name for a new sampler: the same on all ranks, as they run one script, and no other sampler's.

    Args:
        said: what all ranks say of it: not the path, which may differ from node to node.
    """
    _made[said] += 1
    return f"{said}/{_made[said]}"


def check_alike(sampler: str, epoch: int, order: str) -> None:
    """Raises where ranks of the process group read different orders.

    Without a process group nothing is known of other ranks.

    Args:
        sampler: its name, as of `named`. order: what the order rests on.

    Raises:
        JobError: another rank reads another order.
    """
    store = _store()
    if store is None:
        return
    try:
        said = store.compare_set(f"mlfs/{sampler}/{epoch}", "", order).decode()
    except (RuntimeError, NotImplementedError):  # a kind of store that cannot do this, or that is closed
        return
    if said != order:
        raise JobError(
            f"the ranks do not read one order in epoch {epoch}: this rank reads {order}, and another one {said}",
            "let all nodes join (mlfs peers), register the job once, and start the script again",
            "serve",
        )


def _store() -> distributed_c10d.Store | None:
    """The store of the default process group. torch has no public name for it: where it is not found, nothing is
    checked."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    get = getattr(distributed_c10d, "_get_default_store", None)
    store: distributed_c10d.Store | None = get() if get is not None else None
    return store
