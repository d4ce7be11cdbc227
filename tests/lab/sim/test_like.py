"""The status of a mount gives the scenario of its job: all that it tells is in it, and what is no status is refused."""

from __future__ import annotations

import copy
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from mlfs.errors import ConfigError
from mlfs.lab.policies.clairvoyant import POLICY
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.expected import Loaders, expected_of_run
from mlfs.lab.sim.like import MOST_EPOCHS, like
from mlfs.lab.sim.run import Simulation

LOAD = {
    "limit": "training", "workers": 2, "batches": 20, "batch_bytes": 400_000, "waiting_s": 0.01, "preprocess_s": 0.2,
    "handing_s": 0.0, "idle_s": 0.1, "step_s": 0.2, "next_s": 0.2,
}  # fmt: skip
STATUS: dict[str, Any] = {
    "mountpoint": "/data/set",
    "jobs": [
        {
            "name": "train", "epochs": 90, "sample_bytes": {"mean": 100_000, "deviation": 20_000},
            "ranks": [{"epoch": 2, "samples_per_epoch": 64}, {"epoch": 3, "samples_per_epoch": 64}],
            "load": {"imbalance": 0.3, "imbalanced_steps": 0.2, "steps": 16, "ranks": {"0": LOAD, "1": LOAD}},
            "spec": {"world_size": 8}, "pfs_bytes_by_epoch": {"0": 9_000_000},
            "time_by_epoch": {"0": {"reading_s": 9.0}, "1": {"reading_s": 5.0}, "2": {"reading_s": 1.0}},
        }
    ],
    "tiers": [
        {"name": "ram", "class": "ram", "capacity_bytes": 4_000_000, "passed_over": False},
        {"name": "ssd:/slow", "class": "ssd", "capacity_bytes": 1e12, "passed_over": True},
    ],
    "rates": {"pfs": {"refined": [[1, 1e7], [4, 5e7]]}, "ram": {"refined": []}, "peers": {"refined": [[2, 2e8]]}},
    "peers": None,
    "staging": {"capacity_bytes": 2_000_000},
}  # fmt: skip


def told(**changed: Any) -> dict[str, Any]:
    return copy.deepcopy(STATUS) | changed


def test_all_that_the_status_tells_is_in_the_scenario() -> None:
    job = like(told())
    cluster, data, shape = job.scenario.cluster, job.scenario.data, job.scenario.job
    assert (job.job, job.epochs, shape.epochs) == ("train", 90, MOST_EPOCHS)
    assert (data.samples, data.mean, data.deviation) == (64 * 8, 100_000, 20_000)
    assert (cluster.nodes, cluster.gpus, shape.batch, shape.of_nodes) == (1, 2, 2 * 4, 4)
    assert cluster.preprocess_MBps == pytest.approx(2 * 0.4 / (0.2 / 2))
    assert cluster.compute_MBps == pytest.approx(2 * 0.4 / 0.2, rel=0.1)
    assert [(one.name, one.capacity) for one in cluster.classes] == [("ram", 4_000_000)]
    assert (cluster.pfs_MBps, cluster.node_pfs_MBps) == ({1.0: 50.0}, 50.0)
    assert {epoch: measured.seconds for epoch, measured in job.measured.items()} == {0: 9.0, 1: 5.0}
    assert job.uneven == (0.3, 0.2)


def test_nodes_that_are_peers_are_simulated_and_others_read_their_part() -> None:
    alone, together = like(told()), like(told(peers={"nodes": 4}))
    assert (together.scenario.cluster.nodes, together.scenario.job.of_nodes) == (4, 1)
    assert together.peers_bytes_per_s == 2e8
    epoch = Simulation(alone.scenario).order.epoch(0)
    read = epoch[epoch >= 0]
    assert len(read) == len(set(read.tolist())) == 64 * 2
    assert read.max() > 64 * 4, "another part every epoch, of the whole data set"
    # Four nodes that are peers have kept all of it; one that is alone has kept a quarter, and reads another one.
    room = [STATUS["tiers"][0] | {"capacity_bytes": 14_000_000}]
    found = [like(told(tiers=room, peers=peers)).scenario for peers in (None, {"nodes": 4})]
    alone_bytes, together_bytes = (
        Simulation(one).run(POLICY, Sharing.CONSERVING).epochs[-1].pfs_bytes for one in found
    )
    assert together_bytes == 0
    assert alone_bytes > 5_000_000


def test_how_uneven_a_run_is_expected_to_be_is_what_its_sizes_and_places_make_of_it() -> None:
    """By hand: every GPU's bytes over beta, as preprocessing is the limit here."""
    job = like(told(tiers=[STATUS["tiers"][0] | {"capacity_bytes": 1e9}], peers={"nodes": 4}))
    simulation = Simulation(job.scenario)
    order, sizes = simulation.order, np.append(simulation.sizes, 0.0)
    last = order.epoch(order.model.epochs - 1)[:, 0, :]
    by_gpu = np.stack([sizes[last[:, gpu::2]].sum(axis=1) for gpu in range(2)], axis=1)
    apart = ((by_gpu.max(axis=1) - by_gpu.min(axis=1)) / by_gpu.max(axis=1)).mean()
    loaders = Loaders(400_000.0, 0.5, 10.0)
    assert expected_of_run(simulation, loaders, 1e12) == (pytest.approx(apart), 0.0)
    # Behind slow peers all GPUs wait alike, as what is needed first is served first.
    assert expected_of_run(simulation, loaders, 1e4).apart < apart / 2


@pytest.mark.parametrize(
    ("status", "name", "said"),
    [
        ([], None, "this is no status of a mount"),
        ({}, None, "no status of a mount: mountpoint"),
        (told(jobs=[]), None, "no job is followed there"),
        (told(), "eval", "no such job is followed there"),
        (told(rates={}), None, "bandwidth of the source is not known"),
        (told(jobs=[STATUS["jobs"][0] | {"load": {}}]), None, "job train: too few batches were seen"),
    ],
)
def test_what_tells_too_little_is_refused_in_one_line(status: Any, name: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        like(status, name)


@pytest.mark.parametrize("seed", range(200))
def test_a_status_of_which_anything_is_changed_gives_a_scenario_or_is_refused(seed: int) -> None:
    draw, status = random.Random(seed), told()
    for _ in range(draw.randint(1, 3)):
        at: Any = status
        while True:
            key = draw.choice(list(at) if isinstance(at, dict) else range(len(at))) if at else None
            if key is None:
                break
            if not isinstance(at[key], dict | list) or draw.random() < 0.2:
                at[key] = draw.choice([None, "", "x", -1, 0, 1e300, float("nan"), 10**30, [], {}, True, [[]], 0.5])
                break
            at = at[key]
    with suppress(ConfigError):
        job = like(status)
        if job.scenario.data.samples * job.scenario.cluster.nodes < 10_000 and job.scenario.job.batch < 10_000:
            Simulation(job.scenario).run(POLICY, Sharing.CONSERVING)
