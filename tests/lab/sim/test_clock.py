"""The clock against plain loops, and the sharing of the PFS on small numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfs.lab.policies.policy import EpochReads, Overlap
from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim import tally
from mlfs.lab.sim.clock import Clock, Loading, Sharing, shared_finish_s
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import load
from mlfs.plan.node_reads import PFS


def by_hand(overlap: Overlap, window: int, lanes: np.ndarray, compute: np.ndarray) -> float:
    """The same, step by step."""
    steps, n_lanes, nodes = lanes.shape
    ends: list[float] = []
    loaded = np.zeros((n_lanes, nodes))
    if overlap is Overlap.NONE:
        return float(sum((lanes[h].max(axis=0) + compute[h]).max() for h in range(steps)))
    if overlap is Overlap.BATCH:
        now = lanes[0].max()
        for h in range(steps):
            now += max(lanes[h + 1].max() if h + 1 < steps else 0.0, compute[h].max())
        return float(now)
    for h in range(steps):
        allowed = ends[h - window] if h >= window else 0.0
        loaded = np.maximum(loaded, allowed) + lanes[h]
        started = np.maximum(loaded.max(axis=0), ends[-1] if ends else 0.0)
        ends.append(float((started + compute[h]).max()))
    return ends[-1]


@settings(deadline=None, max_examples=120)
@given(
    overlap=st.sampled_from(Overlap),
    epochs=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    window=st.integers(1, 9),
    n_lanes=st.integers(1, 3),
    nodes=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_clock_is_the_plain_loop(
    overlap: Overlap, epochs: list[int], window: int, n_lanes: int, nodes: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    lanes = generator.exponential(1.0, (sum(epochs), n_lanes, nodes)) * generator.integers(0, 3, (1, n_lanes, 1))
    compute = generator.exponential(1.0, (sum(epochs), nodes))
    clock, start = Clock(overlap, window), 0
    for steps in epochs:
        clock.advance(lanes[start : start + steps], compute[start : start + steps])
        start += steps
    assert clock.now == pytest.approx(by_hand(overlap, window, lanes, compute))


def test_readers_share_the_pfs_until_each_has_its_own() -> None:
    model = load("thesis-s1").model  # t = 66, 86, 129, 146 MB/s for 1 to 4 nodes
    mb = np.array([[10.0, 20.0, 30.0, 40.0], [0.0, 0.0, 0.0, 66.0]]) * 1e6
    ends = shared_finish_s(mb, model)
    first = 10 / (146 / 4)
    second = first + 10 / (129 / 3)
    third = second + 10 / (86 / 2)
    assert ends[0] == pytest.approx([first, second, third, third + 10 / 66])
    assert ends[1] == pytest.approx([0, 0, 0, 1])


@pytest.mark.parametrize(
    ("owners", "pfs_MBps"),
    [
        ([0, 1, 2, 3], 146.0),  # all draw the same
        ([2, 2, 2, 2], 66.0),  # one draws for all: t(1), whoever reads
        ([1, 1, 2, 2], 86.0),
    ],
)
def test_the_pfs_gives_what_it_gives_to_the_nodes_that_draw(owners: list[int], pfs_MBps: float) -> None:
    """Four nodes read 40 samples of 1 MB in one step, and their owners fetch them from the PFS."""
    model = load("thesis-s1").model.changed(
        capacities_by_node=tuple((float(node), 0.0) for node in range(4)), node_pfs_bytes_per_s=float("inf")
    )
    ids = np.arange(40, dtype=np.int32).reshape(1, 4, 10)
    node = np.tile(np.array(owners, dtype=np.int16), 10).reshape(1, 4, 10)
    reads = EpochReads(ids, node, np.full(ids.shape, PFS, dtype=np.int8), np.zeros(4))
    counted = tally.tally(reads, np.append(np.full(40, 1e6), 0.0), model)
    assert counted.drawn.tolist() == (10e6 * np.bincount(owners, minlength=4)).tolist()
    lanes = Loading(model, POLICIES["mlfs"].traits, Sharing.CONSERVING).lanes(counted)
    assert lanes[0, 0] == pytest.approx(np.full(4, 40 / pfs_MBps))


@pytest.mark.parametrize("all_of_one", [True, False])
def test_a_link_carries_what_a_node_sends_and_what_it_receives(all_of_one: bool) -> None:
    """One node sends 10 MB to each of the three others, or gets 10 MB of each of them."""
    model = load("thesis-s1").model
    ids, node = np.full((1, 4, 30), -1, dtype=np.int32), np.full((1, 4, 30), PFS, dtype=np.int16)
    if all_of_one:
        ids[0, 1:, :10], node[0, 1:, :10] = np.arange(30).reshape(3, 10), 0
    else:
        ids[0, 0], node[0, 0] = np.arange(30), np.repeat([1, 2, 3], 10)
    storage = np.where(node == PFS, PFS, 0).astype(np.int8)
    counted = tally.tally(EpochReads(ids, node, storage, np.zeros(4)), np.append(np.full(30, 1e6), 0.0), model)
    lanes = Loading(model, POLICIES["mlfs"].traits, Sharing.CONSERVING).lanes(counted)
    all_s = 30e6 / model.network_bytes_per_s
    assert np.isclose(lanes[0], all_s).any(axis=0).tolist() == [True, False, False, False]


def test_counting_in_parts_is_counting_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(load("thesis-s4").shrunk(1000))
    policy = POLICIES["mlfs"]
    whole = simulation.run(policy, Sharing.CONSERVING)
    monkeypatch.setattr(tally, "CHUNK_SAMPLES", 7)
    assert simulation.run(policy, Sharing.CONSERVING) == whole
