"""The order that a scenario's job has: its own permutations, or a real sampler's, as `mlfs register` knows them.

In: a `Scenario`, the sizes of its samples. Out: a `SimulatedOrder`. Called by `mlfs.lab.sim.run`. An order that mlfs
serves is dealt to the scenario's nodes by the function by which mounts deal it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlfs.errors import ConfigError
from mlfs.lab.sim.order import RegisteredOrder, SimulatedOrder
from mlfs.lab.sim.scenario import Scenario
from mlfs.plan.model import Floats


def order_of(scenario: Scenario, sizes_bytes: Floats) -> SimulatedOrder:
    """The order of a scenario's job.

    Args:
        sizes_bytes: of the samples, shape (F,).

    Raises:
        ConfigError: the batch cannot be shared evenly by the GPUs, or is never full.
        JobError: a field of the job is wrong.
    """
    fields, model = scenario.job.order, scenario.model
    n_samples = len(sizes_bytes)
    if fields is None:
        order = SimulatedOrder(n_samples, model, scenario.seed, scenario.job.of_nodes)
    else:
        order = _registered(scenario, sizes_bytes)
    if order.steps == 0:
        raise ConfigError(
            f"{n_samples} samples make no step of {model.global_batch}", "a smaller job.batch, or drop_last = false"
        )
    return order


def _registered(scenario: Scenario, sizes_bytes: Floats) -> SimulatedOrder:
    from mlfs.job import parse_job
    from mlfs.orders.registry import build_order, readers_of
    from mlfs.orders.served import ServedOrder
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
    if fields.get("serve") is not None:
        fields.setdefault("nodes", _nodes(scenario))
    spec = parse_job(fields | follows)
    entries = np.arange(len(sizes_bytes), dtype=np.int64)
    order, kept = build_order(spec, len(entries)), None
    if spec.serve is not None:
        order = served = ServedOrder(order, spec, sizes_bytes.astype(np.int64), entries)
        kept = served.kept
    return RegisteredOrder(len(entries), scenario.model, gpus, JobStreams(spec, entries, order), kept)


def _nodes(scenario: Scenario) -> list[dict[str, Any]]:
    """The nodes to which a served order deals its reads, as a mount fills them in."""
    gpus, model = scenario.cluster.gpus, scenario.model
    buffer_bytes = int(model.staging.capacity_bytes) // 2
    return [
        {
            "node": node, "ranks": f"{node * gpus}-{(node + 1) * gpus - 1}",
            "keeps_bytes": [int(capacity) for capacity in capacities], "buffer_bytes": buffer_bytes,
        }
        for node, capacities in enumerate(model.node_capacities_bytes().tolist())
    ]  # fmt: skip
