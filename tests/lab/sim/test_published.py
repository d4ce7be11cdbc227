"""The published figures of the NoPFS simulator (thesis, Tables 5.1-5.4 and Section 5.2.3), under the paper's sharing
rule.

S1 runs in full; S2 to S4 and the grid with 10 times fewer samples and less storage (docs/simulator.md says what that
changes). What the texts leave open, and what was taken:

- Preprocessing (write_i(k)): what is loaded before the start, and what LBANN's dynamic store reads in epoch 0, takes
  fetch + write on each thread. Where batches stream through the staging buffer the write is hidden. naive has the two
  staging threads write together.
- staging_pool: a step is as long as the slowest node's loading. deepio_ordered reads what is not in memory with one
  thread when it is asked for; deepio_opportunistic never reads that. parallel_staging reads a data set that fits in one
  node once and broadcasts it.
- nopfs: ours is up to 10.5 % faster where nodes read from peers' RAM: the published times follow if hits in peers'
  caches are left out, though the text says that they are used.
- Epochs are not stated: 10, 10, 5, 5 fit the lower bounds. Sizes are normal(mu, sigma) cut at 0, which makes
  ImageNet-22k 2.06 TB and not the text's 1.5 TB.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from mlfs.lab.policies.naive import Naive
from mlfs.lab.policies.policy import Overlap, Policy, Traits, Unfit, Writing
from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import Scenario, load

PUBLISHED = json.loads((Path(__file__).parent / "published" / "nopfs_thesis.json").read_text())
SECONDS = PUBLISHED["seconds"]
SCENARIOS = {"S1": 1, "S2": 10, "S3": 10, "S4": 10}  # and by what each is shrunk
NAMES = ["perfect", *(name for name in SECONDS if name != "lower_bound")]


def published(policy: str, key: str) -> float | None:
    value: float | None = SECONDS["lower_bound" if policy == "perfect" else policy][key]
    return value


@cache
def simulation(key: str) -> Simulation:
    return Simulation(load(f"thesis-{key.lower()}").shrunk(SCENARIOS[key]))


@cache
def seconds(policy: str, key: str) -> float | None:
    """Simulated seconds of the scenario in full, None where the policy cannot run."""
    try:
        return simulation(key).run(POLICIES[policy], Sharing.PAPER).seconds * SCENARIOS[key]
    except Unfit:
        return None


# Policy -> largest difference that is allowed. The staging pool loads in step with the batches here, DeepIO's ordered
# mode reads the PFS with one thread: the text leaves both open.
WITHIN = {"perfect": 0.01, "nopfs": 0.06, "staging_pool": 0.10}


@pytest.mark.parametrize("key", SCENARIOS)
@pytest.mark.parametrize("policy", [name for name in NAMES if name != "naive"])
def test_run_times_as_published(policy: str, key: str) -> None:
    wanted, ours = published(policy, key), seconds(policy, key)
    if wanted is None:
        assert ours is None
    else:
        assert ours == pytest.approx(wanted, rel=WITHIN.get(policy, 0.05))


@pytest.mark.parametrize("key", SCENARIOS)
def test_naive_is_between_its_two_write_models(key: str) -> None:
    bounds = []
    for writing in (Writing.ASIDE, Writing.THREAD):
        policy = Policy("naive", "", Traits(Overlap.NONE, writing, one_thread=True), Naive)
        bounds.append(simulation(key).run(policy, Sharing.PAPER).seconds * SCENARIOS[key])
    wanted = published("naive", key)
    assert wanted is not None
    assert bounds[0] < wanted < bounds[1]
    assert bounds[0] < (seconds("naive", key) or 0) < bounds[1]


@pytest.mark.parametrize("key", SCENARIOS)
def test_the_order_of_policies_is_the_published_one(key: str) -> None:
    """Pairs that are published within 1.5 % of each other count as tied."""
    runnable = [name for name in NAMES if published(name, key) is not None]
    for first in runnable:
        for second in runnable:
            if (published(first, key) or 0) * 1.015 < (published(second, key) or 0):
                assert (seconds(first, key) or 0) < (seconds(second, key) or 0), f"{first} before {second}"


GRID = PUBLISHED["environment_study"]


def resized(scenario: Scenario, ram_gb: float, ssd_gb: float) -> Scenario:
    return scenario.resized([f"{ram_gb * 1024:.0f}MB", f"{ssd_gb * 1024:.0f}MB"])


@pytest.mark.parametrize("ssd", GRID["rows_ssd_GB"])
def test_environment_grid(ssd: str) -> None:
    for ram, wanted in zip(GRID["columns_ram_GB"], GRID["rows_ssd_GB"][ssd], strict=True):
        scenario = resized(load("environment-grid"), ram, float(ssd)).shrunk(20)
        ours = Simulation(scenario).run(POLICIES["nopfs"], Sharing.PAPER).seconds * 20
        assert ours == pytest.approx(wanted, rel=0.12)
