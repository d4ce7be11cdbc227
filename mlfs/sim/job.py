"""The order that a scenario's job has: its own permutations, or a real sampler's, as `mlfs register` knows them.

In: a `Scenario`, the sizes of its samples. Out: an `Order`. Called by `mlfs.sim.run`. An order that mlfs serves is
dealt to the scenario's nodes by the function by which mounts deal it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlfs.errors import ConfigError
from mlfs.plan.model import Floats
from mlfs.sim.order import Order, RegisteredOrder
from mlfs.sim.scenario import Scenario


def order_of(scenario: Scenario, sizes_bytes: Floats) -> Order:
    """The order of a scenario's job.

    Raises:
        ConfigError: the batch cannot be shared evenly by the GPUs, or is never full.
        JobError: a field of the job is wrong.
    """
    fields, model, n_samples = scenario.job.order, scenario.model, len(sizes_bytes)
    order = Order(n_samples, model, scenario.seed) if fields is None else _registered(scenario, sizes_bytes)
    if order.steps == 0:
        raise ConfigError(
            f"{n_samples} samples make no step of {model.global_batch}", "a smaller job.batch, or drop_last = false"
        )
    return order


def _registered(scenario: Scenario, sizes_bytes: Floats) -> Order:
    from mlfs.job import parse_job
    from mlfs.orders.registry import build_order, readers_of
    from mlfs.orders.served import ServedOrder
    from mlfs.orders.streams import JobStreams

    job, gpus = scenario.job, scenario.cluster.gpus
    if job.batch % gpus:
        raise ConfigError(f"job.batch: {job.batch} is not the same for each of {gpus} GPUs", "give a multiple")
    follows: dict[str, Any] = {
        "epochs": job.epochs,
        "batch_size": job.batch // gpus,
        "world_size": scenario.cluster.nodes * gpus,
        "loader_drop_last": job.drop_last,
    }
    fields = dict(job.order or {})
    if fields.get("sampler", "torch-distributed") in readers_of("seed") and "preset" not in fields:
        fields.setdefault("seed", scenario.seed)
    if fields.get("serve") is not None:
        follows["nodes"] = _nodes(scenario)
    spec = parse_job(fields | follows)
    numbers = np.arange(len(sizes_bytes), dtype=np.int64)
    order = build_order(spec, len(numbers))
    if spec.serve is not None:
        order = ServedOrder(order, spec, sizes_bytes.astype(np.int64), numbers)
    return RegisteredOrder(len(numbers), scenario.model, gpus, JobStreams(spec, numbers, order))


def _nodes(scenario: Scenario) -> list[dict[str, Any]]:
    """The nodes as a mount would fill them in."""
    gpus, model = scenario.cluster.gpus, scenario.model
    return [
        {
            "node": node,
            "ranks": f"{node * gpus}-{(node + 1) * gpus - 1}",
            "keeps_bytes": [int(capacity) for capacity in capacities],
            "buffer_bytes": int(model.staging.capacity_bytes) // 2,
        }
        for node, capacities in enumerate(model.node_capacities_bytes())
    ]
