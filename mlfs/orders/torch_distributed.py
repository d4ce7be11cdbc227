"""The sampler "torch-distributed": torch.utils.data.DistributedSampler, bit for bit, as a composition.

In: a job's seed, shuffle, drop_last, set_epoch and world_size. Out: each rank's dataset indices. Made by
`mlfs.orders.registry`. Source: torch/utils/data/distributed.py (torch 2.13): randperm(n) seeded with seed + epoch (or
0 .. n-1 without shuffle), padded or cut, dealt round-robin. The script is taken to call set_epoch(epoch), counting from
0; with "set_epoch": false every epoch has the order of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfs.orders.composed import Composition, Parts
from mlfs.orders.draws import Kind
from mlfs.orders.order import Resolve
from mlfs.orders.seeding import Seeding
from mlfs.orders.torch_generator import check_length

if TYPE_CHECKING:
    from mlfs.job import JobSpec


def distributed_order(spec: JobSpec, n_samples: int, resolve: Resolve | None = None) -> Composition:
    """Make the order.

    Raises:
        JobError: more samples than torch's 32-bit rule shuffles (214,748,363).
    """
    if spec.shuffle:
        check_length(n_samples, "shuffle")
    seeding = Seeding("linear", seed=1, epoch=1) if spec.set_epoch else Seeding("same")
    draw: Kind = "permutation" if spec.shuffle else "none"
    return Composition(Parts("torch", seeding, draw, "padded", drop_last=spec.drop_last), spec, n_samples)
