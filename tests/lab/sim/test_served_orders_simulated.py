"""Served orders in the simulator: the order is the daemon's own, and samples are kept where it takes them to be."""

from __future__ import annotations

import numpy as np
import pytest

from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.detailed.run import Detailed
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import parse

SCENARIO = """
title = "served orders"
seed = 0
[cluster]
nodes = 4
compute_MBps = 100000
preprocess_MBps = 100000
network_MBps = 119
pfs_MBps = 119
[cluster.staging]
name = "staging"
capacity = "16MB"
read_MBps = 100000
threads = 16
[[cluster.classes]]
name = "ram"
capacity = "{room}MB"
read_MBps = 3000
threads = 4
[data]
samples = 800
mean = "100kB"
deviation = "20kB"
[job]
epochs = 3
batch = 8
[job.order]
sampler = "torch-distributed"
seed = 0
{serve}
"""


def simulation(room: int, serve: str = "") -> Simulation:
    served = f'serve = "{serve}"' if serve else ""
    return Simulation(parse(SCENARIO.format(room=room, serve=served), "test"))


@pytest.mark.parametrize("room", [10, 30])
@pytest.mark.parametrize("serve", ["locality", "opportunistic"])
def test_what_lies_elsewhere_is_read_there_and_no_byte_more_of_the_source(room: int, serve: str) -> None:
    """Half of the data set in all caches, or all of it."""
    true, served = simulation(room), simulation(room, serve)
    plain = true.run(POLICIES["mlfs"], Sharing.CONSERVING)
    result, detailed = served.run(POLICIES["mlfs"], Sharing.CONSERVING), Detailed(served).run()
    peers, before = (sum(v for k, v in one.bytes_share.items() if k.startswith("peer")) for one in (result, plain))
    assert peers < 0.6 * before
    assert result.pfs_bytes == pytest.approx(plain.pfs_bytes, rel=0.02)
    assert detailed.pfs_bytes + detailed.carried_bytes == result.pfs_bytes
    assert detailed.seconds == pytest.approx(result.seconds, rel=0.05)


@pytest.mark.parametrize("serve", ["", "locality", "opportunistic"])
def test_each_epoch_has_the_samples_of_the_true_order(serve: str) -> None:
    true, served = simulation(10).order.epoch(1), simulation(10, serve).order.epoch(1)
    assert np.array_equal(np.sort(true, axis=None), np.sort(served, axis=None))
    if serve == "locality":
        assert np.array_equal(np.sort(true.reshape(len(true), -1)), np.sort(served.reshape(len(served), -1)))
