"""The order that a scenario's job has: its own permutations, or a real sampler's, as `mlfs register` knows them.

In: a `Scenario`, the number of its samples. Out: an `Order`. Called by `mlfs.sim.run`.
"""

from __future__ import annotations

import numpy as np

from mlfs.errors import ConfigError
from mlfs.sim.order import Order, RegisteredOrder
from mlfs.sim.scenario import Scenario


def order_of(scenario: Scenario, n_samples: int) -> Order:
    """The order of a scenario's job.

    Raises:
        ConfigError: the batch cannot be shared evenly by the GPUs, or is never full.
        JobError: a field of the job is wrong.
    """
    fields, model = scenario.job.order, scenario.model
    order = Order(n_samples, model, scenario.seed) if fields is None else _registered(scenario, n_samples)
    if order.steps == 0:
        raise ConfigError(
            f"{n_samples} samples make no step of {model.global_batch}", "a smaller job.batch, or drop_last = false"
        )
    return order


def _registered(scenario: Scenario, n_samples: int) -> Order:
    from mlfs.job import parse_job
    from mlfs.orders.registry import build_order, readers_of
    from mlfs.orders.streams import JobStreams

    job, gpus = scenario.job, scenario.cluster.gpus
    if job.batch % gpus:
        raise ConfigError(f"job.batch: {job.batch} is not the same for each of {gpus} GPUs", "give a multiple")
    follows = {
        "epochs": job.epochs,
        "batch_size": job.batch // gpus,
        "world_size": scenario.cluster.nodes * gpus,
        "loader_drop_last": job.drop_last,
    }
    fields = dict(job.order or {})
    if fields.get("sampler", "torch-distributed") in readers_of("seed") and "preset" not in fields:
        fields.setdefault("seed", scenario.seed)
    spec = parse_job(fields | follows)
    streams = JobStreams(spec, np.arange(n_samples, dtype=np.int64), build_order(spec, n_samples))
    return RegisteredOrder(n_samples, scenario.model, gpus, streams)
