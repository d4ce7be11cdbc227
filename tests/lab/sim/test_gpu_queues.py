"""Nodes of several GPUs: dealing, lanes on small numbers, and that dividing threads never conjures bandwidth."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from gpu_cluster import TEXT
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.errors import ConfigError
from mlfs.lab.policies.policy import EpochReads, Overlap, Policy, Queues, Traits, Unfit
from mlfs.lab.policies.registry import POLICIES
from mlfs.lab.sim.clock import Loading, Sharing
from mlfs.lab.sim.gpu_queues import GpuNode
from mlfs.lab.sim.order import SimulatedOrder
from mlfs.lab.sim.run import PolicyResult, Simulation
from mlfs.lab.sim.scenario import Scenario, load, parse
from mlfs.lab.sim.tally import EpochBytes, tally
from mlfs.plan.model import Floats


def with_gpus(gpus: int, **other: object) -> Scenario:
    scenario = parse(TEXT, "x")
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"gpus": gpus, **other})})


def test_a_nodes_batch_is_dealt_as_a_sampler_deals_to_all_gpus_as_ranks() -> None:
    scenario = with_gpus(4)
    order = SimulatedOrder(160, scenario.model, 0)
    ids = order.epoch(1)
    stream = ids.transpose(0, 2, 1).reshape(order.steps, -1)  # as drawn, step by step
    sizes = np.append(scenario.sizes_bytes(), 0.0)
    nowhere = np.full(ids.shape, -1)
    reads = EpochReads(ids, nowhere.astype(np.int16), nowhere.astype(np.int8), np.zeros(2))
    counted = tally(reads, sizes, scenario.model, 4)
    for rank in range(8):
        own = sizes[stream[:, rank::8]].sum(axis=1)
        assert counted.gpu_bytes[:, rank % 2, rank // 2] == pytest.approx(own)
    whole = tally(reads, sizes, scenario.model)
    assert counted.loaded == pytest.approx(whole.loaded)
    assert counted.pfs_bytes == pytest.approx(whole.pfs_bytes)


def lanes(queues: Queues, sharing: Sharing, queued_mb: list[list[float]], overlap: Overlap) -> np.ndarray:
    """One node, one step; bytes of each GPU from PFS, a peer, and the own RAM. Returns (L, M)."""
    scenario = with_gpus(len(queued_mb), nodes=1)
    queued = np.array(queued_mb)[None, None] * 1e6
    own = queued[:, :, :, 2].sum(axis=2, keepdims=True)
    empty = np.zeros((1, 1))
    drawn, counts = queued[:, :, :, 0].sum(axis=(0, 2)), np.ones(3, dtype=np.int64)
    counted = EpochBytes(queued, own, empty, empty, np.zeros(1), drawn, counts)
    node = GpuNode(len(queued_mb))
    return np.asarray(Loading(scenario.model, Traits(overlap, queues=queues), sharing, node).lanes(counted)[0])


@pytest.mark.parametrize("overlap", Overlap)
def test_lanes_of_queues_on_small_numbers(overlap: Overlap) -> None:
    """8 threads; the PFS gives 50 MB/s, RAM 200 MB/s and 100 to a thread. 4 GPUs: one reads 10 MB from the PFS."""
    queued = [[10.0, 0, 0], [0, 0, 40.0], [0, 0, 0], [0, 0, 40.0]]
    even = lanes(Queues.EVEN, Sharing.CONSERVING, queued, overlap)
    # A quarter of the threads, so a quarter of 50 MB/s; 40 MB at 2 x 100 MB/s; no queue before the node as a whole.
    assert even[-2] == pytest.approx([0.8, 0.2, 0.0, 0.2])
    assert even[0] == pytest.approx([0.2 + 0.1] * 4)
    assert even[1] == pytest.approx([0.4] * 4)  # RAM gives the node 200 MB/s, however many ask
    assert even[-1] == pytest.approx([0.1, 0.4, 0, 0.4])  # preprocessing: a quarter of 400 MB/s for each
    pooled = lanes(Queues.POOLED, Sharing.CONSERVING, queued, overlap)
    assert pooled == pytest.approx(np.delete(even, -2, axis=0))
    paper = lanes(Queues.EVEN, Sharing.PAPER, queued, overlap)
    assert paper[-1] == pytest.approx([10 / 50 / 2, 0.2, 0, 0.2])  # each thread has all that the PFS gives a node


def test_lobster_gives_the_straggler_the_threads_of_the_others() -> None:
    queued = [[10.0, 0, 0], [0, 0, 1.0], [0, 0, 0], [0, 0, 1.0]]
    load_s = lanes(Queues.ASSIGNED, Sharing.CONSERVING, queued, Overlap.WINDOW)[-1]
    assert load_s == pytest.approx([0.2 * 8 / 5, 0.01, 0, 0.01])


@settings(deadline=None, max_examples=cases(30))
@given(
    gpus=st.sampled_from([2, 4, 8]),
    queues=st.sampled_from([Queues.EVEN, Queues.ASSIGNED]),
    sharing=st.sampled_from(Sharing),
    name=st.sampled_from([name for name in POLICIES if name != "perfect"]),
    seed=st.integers(0, 1000),
    ram=st.sampled_from([0.0, 4e6, 30e6]),
    staging=st.sampled_from([0.0, 2e6, 1e9]),
)
def test_dividing_threads_never_conjures_bandwidth(
    gpus: int, queues: Queues, sharing: Sharing, name: str, seed: int, ram: float, staging: float
) -> None:
    scenario = with_gpus(gpus, preprocess_MBps=1e6).model_copy(update={"seed": seed})
    tables = [table.model_copy(update={"capacity": ram}) for table in scenario.cluster.classes]
    buffer = scenario.cluster.staging.model_copy(update={"capacity": staging})
    cluster = scenario.cluster.model_copy(update={"classes": tables, "staging": buffer})
    simulation = Simulation(scenario.model_copy(update={"cluster": cluster}))
    policy = POLICIES[name]

    def seconds(kind: Queues) -> float:
        return simulation.run(replace(policy, traits=replace(policy.traits, queues=kind)), sharing).seconds

    try:
        assert seconds(queues) >= seconds(Queues.POOLED) * (1 - 1e-9)
    except Unfit:
        return


@cache
def lobster_node() -> Simulation:
    return Simulation(load("lobster-node").shrunk(16))


@cache
def played(name: str, queues: Queues | None = None) -> PolicyResult:
    policy = POLICIES[name]
    kind = queues or policy.traits.queues
    return lobster_node().run(Policy(name, "", replace(policy.traits, queues=kind), policy.begin), Sharing.CONSERVING)


def test_what_lobster_says_of_its_node() -> None:
    """Sections 5.2, 5.3 and 5.6: order of run times, less imbalance over GPUs, and what the thread management adds."""
    seconds = [played(name).seconds for name in ("lobster", "nopfs", "staging_pool", "naive")]
    assert seconds == sorted(seconds)
    assert played("lobster").seconds < played("lobster", Queues.EVEN).seconds
    for other in (played("lobster", Queues.EVEN), played("nopfs")):
        assert played("lobster").imbalance < other.imbalance
        assert played("lobster").imbalanced_steps < other.imbalanced_steps
    assert played("mlfs").seconds <= played("lobster").seconds


@pytest.mark.parametrize("name", ["mlfs", "nopfs", "staging_pool", "naive", "deepio_hybrid"])
@pytest.mark.parametrize("preprocess_MBps", [60.0, 150.0])
@pytest.mark.parametrize("staging", [0.0, 2e6])
def test_where_each_gpu_has_workers_of_its_own_they_bound_the_node_as_a_whole(
    name: str, preprocess_MBps: float, staging: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's preprocessing is the mean of its GPUs': as a lane of its own it would make no run longer."""
    scenario = with_gpus(4, preprocess_MBps=preprocess_MBps)
    buffer = scenario.cluster.staging.model_copy(update={"capacity": staging})
    cluster = scenario.cluster.model_copy(update={"staging": buffer})
    simulation = Simulation(scenario.model_copy(update={"cluster": cluster}))
    found, lanes_of = simulation.run(POLICIES[name], Sharing.CONSERVING), Loading.lanes

    def with_the_nodes_own(loading: Loading, counted: EpochBytes) -> Floats:
        node = np.repeat(counted.node_bytes / (preprocess_MBps * 1e6), 4, axis=1)
        return np.concatenate([lanes_of(loading, counted), node[:, None]], axis=1)

    monkeypatch.setattr(Loading, "lanes", with_the_nodes_own)
    held = simulation.run(POLICIES[name], Sharing.CONSERVING)
    assert found.seconds == pytest.approx(held.seconds, rel=1e-12)
    assert found.imbalance >= held.imbalance


def test_one_gpu_is_the_node_as_a_whole_however_it_is_served() -> None:
    simulation = Simulation(with_gpus(1))
    nopfs = POLICIES["nopfs"]
    kinds = [replace(nopfs, traits=replace(nopfs.traits, queues=kind)) for kind in Queues]
    assert len({simulation.run(policy, Sharing.CONSERVING).seconds for policy in kinds}) == 1


POINTS = "preprocess_MBps = { 2 = 100, 4 = 200, 6 = 300, 8 = 300 }\npreprocess_threads = 8"


def test_preprocessing_by_threads_and_sizes() -> None:
    scenario = parse(TEXT.replace("preprocess_MBps = 400", POINTS), "x")
    assert scenario.model.preprocess_bytes_per_s == 300e6
    assert scenario.node.preprocess_threads == 8
    by_size = "preprocess_MBps = { 10kB = { 2 = 1, 3 = 2, 4 = 3, 5 = 4 }, 90kB = { 2 = 7, 3 = 8, 4 = 8, 5 = 9 } }"
    scenario = parse(TEXT.replace("preprocess_MBps = 400", f"{by_size}\npreprocess_threads = 5"), "x")
    assert scenario.model.preprocess_bytes_per_s == 9e6
    assert sorted(scenario.node.preprocessing) == [10e3, 90e3]
    assert parse(TEXT, "x").node == GpuNode(4)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gpus = 4", "gpus = 9", "cluster: 9 GPUs need as many staging threads at least, not 8"),
        ("gpus = 4", "gpus = 0", "cluster.gpus: "),
        ("preprocess_MBps = 400", "preprocess_MBps = 0", "cluster.preprocess_MBps: write a number of MB/s above 0"),
        (
            "preprocess_MBps = 400",
            "preprocess_MBps = { 1 = 2, 2 = 3 }",
            "cluster.preprocess_MBps: .* four at least",
        ),
        ("preprocess_MBps = 400", POINTS.split("\n", maxsplit=1)[0], "cluster: preprocess_threads and points"),
        ("gpus = 4", "preprocess_threads = 4", "cluster: preprocess_threads and points of preprocess_MBps"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        parse(TEXT.replace(old, new), "x.toml")
    assert "\n" not in str(raised.value)
