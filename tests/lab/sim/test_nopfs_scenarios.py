"""What the text of NoPFS, Section 6.1, says of its six scenarios; the figures themselves are only drawn there.

Shrunk, under the paper's sharing rule.
"""

from __future__ import annotations

from functools import cache

import pytest

from mlfs.lab.policies.policy import Unfit
from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import load

SHRUNK = {"mnist": 1, "imagenet1k": 32, "openimages": 32, "imagenet22k": 256, "cosmoflow": 8, "cosmoflow512": 1}


@cache
def simulation(name: str) -> Simulation:
    return Simulation(load(f"nopfs-{name}").shrunk(SHRUNK[name]))


@cache
def seconds(name: str, policy: str) -> float:
    return simulation(name).run(POLICIES[policy], Sharing.PAPER).seconds


@pytest.mark.parametrize("name", SHRUNK)
def test_nopfs_is_very_close_to_the_lower_bound_and_naive_is_last(name: str) -> None:
    assert seconds(name, "nopfs") <= 1.02 * seconds(name, "perfect")
    assert seconds(name, "mlfs") <= 1.02 * seconds(name, "perfect")
    others = [policy for policy in POLICIES if policy not in ("naive", "lbann_dynamic", "lbann_preload")]
    assert all(seconds(name, "naive") >= seconds(name, policy) * 0.99 for policy in others)


@pytest.mark.parametrize("name", ["imagenet22k", "cosmoflow", "cosmoflow512"])
def test_lbann_no_longer_supports_what_exceeds_memory_and_deepio_ordered_does_poorly(name: str) -> None:
    with pytest.raises(Unfit):
        seconds(name, "lbann_dynamic")
    assert seconds(name, "deepio_ordered") > 1.1 * seconds(name, "nopfs")
    for never_reads_the_pfs in ("deepio_opportunistic", "parallel_staging"):
        assert seconds(name, never_reads_the_pfs) < seconds(name, "deepio_ordered")


def test_small_data_sets_make_little_difference() -> None:
    for policy in POLICIES:
        if policy not in ("naive", "deepio_ordered"):
            assert seconds("mnist", policy) <= 1.25 * seconds("mnist", "perfect"), policy
