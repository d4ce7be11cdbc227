"""Scenarios with the order of a real sampler instead of a permutation."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cluster import TEXT
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.errors import ConfigError, JobError
from mlfs.job import parse_job
from mlfs.lab.policies.policy import Unfit, first_of_each
from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import Scenario, parse
from mlfs.orders.order import build_order


def scenario(order: str, *changes: tuple[str, str]) -> Scenario:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(f"{text}[job.order]\n{order}\n", "x.toml")


@pytest.mark.parametrize("samples", [160, 150])
def test_each_gpu_reads_what_the_sampler_gives_its_rank(samples: int) -> None:
    simulation = Simulation(scenario("seed = 7", ("samples = 160", f"samples = {samples}")))
    fields = {"seed": 7, "epochs": 3, "batch_size": 4, "world_size": 8}
    order = build_order(parse_job(fields), samples)
    for epoch in range(3):
        ids = simulation.order.epoch(epoch)
        assert ids.shape == (5, 2, 16)
        for rank in range(8):
            mine = ids[:, rank // 4, rank % 4 :: 4].ravel()
            assert mine[mine >= 0].tolist() == order.rank_stream(epoch, rank).tolist()
    ones = np.ones(samples)
    padded = 8 * -(-samples // 8) - samples
    assert simulation.order.repeated_bytes(0, ones) == padded


def test_without_a_seed_of_its_own_the_scenarios_counts_for_samplers_that_have_one() -> None:
    by_scenario = Simulation(scenario("", ("[cluster]\n", "seed = 7\n[cluster]\n")))
    assert (by_scenario.order.epoch(1) == Simulation(scenario("seed = 7")).order.epoch(1)).all()
    plain = Simulation(scenario('sampler = "sequential"'))
    assert plain.order.epoch(0)[0, 0, :2].tolist() == plain.order.epoch(2)[0, 0, :2].tolist()


# Each of these reads every sample once an epoch, where 8 ranks share 160 samples.
ONCE = ("torch-distributed", "accelerate", "sequential", "dali", "grain", "numpy", "paddle", "tf-data", "hf-trainer")


@pytest.mark.parametrize("sampler", ONCE)
def test_the_claims_hold_for_real_samplers(sampler: str) -> None:
    for ram in ("1MB", "4MB", "30MB"):
        simulation = Simulation(scenario(f'sampler = "{sampler}"', ('capacity = "4MB"', f'capacity = "{ram}"')))
        ours = simulation.run(POLICIES["mlfs"], Sharing.CONSERVING)
        gap = float(simulation.sizes.max()) * 2 * 2
        assert ours.pfs_bytes <= ours.bound_bytes + gap
        for policy in POLICIES.values():
            if policy.traits.true_order and policy.name not in ("mlfs", "perfect"):
                try:
                    other = simulation.run(policy, Sharing.CONSERVING)
                except Unfit:
                    continue
                assert ours.seconds <= other.seconds * (1 + 1e-9), policy.name


def test_what_is_read_again_in_an_epoch_comes_from_the_pfs_once() -> None:
    """Repeated augmentation: three reads of a sample in each epoch; all fits, and 8 ranks read a third of it."""
    simulation = Simulation(scenario('sampler = "timm-repeat-aug"', ('capacity = "4MB"', 'capacity = "30MB"')))
    read = np.unique(np.concatenate([simulation.order.epoch(epoch).ravel() for epoch in range(3)]))
    once = float(simulation.sizes[read[read >= 0]].sum())
    assert simulation.order.repeated_bytes(0, simulation.sizes) > 0
    assert simulation.run(POLICIES["mlfs"], Sharing.CONSERVING).pfs_bytes == pytest.approx(once)
    assert simulation.run(POLICIES["mlfs"], Sharing.CONSERVING).epochs[1].bound_bytes == 0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-1, 6), max_size=12))
def test_first_of_each(values: list[int]) -> None:
    mask = first_of_each(np.array(values, dtype=np.int32))
    assert mask.tolist() == [value not in values[:place] for place, value in enumerate(values)]


@pytest.mark.parametrize(
    ("order", "changes", "error", "said"),
    [
        ("epochs = 2", (), ConfigError, r"x.toml: job: order.epochs: leave it out"),
        ('sampler = "torch-distribted"', (), JobError, '"sampler" is "torch-distribted"'),
        ('weights_file = "/w"', (), JobError, '"weights_file"'),
        ("", (("batch = 16", "batch = 18"),), ConfigError, "job.batch: 18 is not the same for each of 4 GPUs"),
        ("", (("batch = 16", "batch = 96\ndrop_last = true"),), ConfigError, "160 samples make no step of 192"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    order: str, changes: tuple[tuple[str, str], ...], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        Simulation(scenario(order, *changes))
    assert "\n" not in str(raised.value)
