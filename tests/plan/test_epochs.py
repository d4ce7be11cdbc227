"""What a run takes: the bound of the caches in bytes, the larger of computing and loading in seconds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.plan.epochs import Workload, held_bytes, run_cost
from mlfs.plan.model import Curve, PerformanceModel, StorageClass


def storage(name: str, capacity: float, rate: float) -> StorageClass:
    return StorageClass(name, capacity, Curve.flat(rate), Curve.flat(rate), 4)


def cluster(nodes: int, ram: float, ssd: float, pfs: float = 100.0, network: float = 50.0) -> PerformanceModel:
    return PerformanceModel(
        nodes=nodes, epochs=1, global_batch=1, drop_last=False, compute_bytes_per_s=1, preprocess_bytes_per_s=1,
        network_bytes_per_s=network, pfs=Curve.flat(pfs), staging=storage("staging", 0, 1),
        classes=(storage("ram", ram, 1000), storage("ssd", ssd, 20)),
    )  # fmt: skip


def test_by_hand() -> None:
    work = Workload(data_bytes=1000, read_bytes=1000, compute_s=4, epochs=10, shared=True)
    cost = run_cost(cluster(2, 100, 200), work)
    assert (cost.first.seconds, cost.first.rules, cost.first.pfs_bytes) == (10, "pfs", 1000)
    later = cost.later
    # 2 x 300 bytes are kept: 400 come from the PFS, 300 from the own node, 300 from the other one.
    assert (later.pfs_bytes, later.peer_bytes, later.class_bytes) == (400, 300, {"ram": 100, "ssd": 200})
    assert later.busy_s == pytest.approx(
        {"compute": 4, "pfs": 4, "network": 300 / 2 / 50, "ram": (100 + 100) / 2 / 1000, "ssd": (200 + 200) / 2 / 20}
    )
    assert (later.seconds, later.stall_s, later.rules) == (10, 6, "ssd")
    assert cost.seconds == 100
    assert cost.pfs_bytes == 1000 + 9 * 400
    assert held_bytes(cluster(2, 100, 200), work) == {"ram": 200, "ssd": 400}


def test_without_sharing_each_node_has_its_own_caches_alone() -> None:
    work = Workload(1000, 1000, 0, 2, shared=False)
    # In two epochs each of two nodes reads a quarter of the samples twice: the second time they are there.
    later = run_cost(cluster(2, 100, 200), work).later
    assert (later.pfs_bytes, later.peer_bytes) == (pytest.approx(500), 0)
    assert later.class_bytes == pytest.approx({"ram": 200, "ssd": 300})
    # With room for all of it as well: what a node reads for the first time it has to fetch itself.
    assert run_cost(cluster(4, 1000, 0), work).later.pfs_bytes == pytest.approx(750)
    assert run_cost(cluster(1, 100, 200), work).later.pfs_bytes == 700


def test_what_is_read_twice_in_an_epoch_and_kept_nowhere_comes_from_the_source_twice() -> None:
    padded = Workload(1000, 1100, 0, 2, shared=False)
    cost = run_cost(cluster(2, 0, 0), padded)
    for epoch in cost[:2]:
        assert (epoch.pfs_bytes, epoch.peer_bytes) == (pytest.approx(1100), 0)
    kept = run_cost(cluster(1, 1000, 0), padded)
    assert (kept.first.pfs_bytes, kept.later.pfs_bytes) == (1000, 0)
    half = run_cost(cluster(1, 500, 0), padded)
    assert (half.first.pfs_bytes, half.later.pfs_bytes) == (pytest.approx(1050), pytest.approx(550))
    assert half.later.peer_bytes == pytest.approx(0)


@settings(deadline=None, max_examples=cases(60))
@given(
    st.integers(1, 64), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**7), st.integers(1, 9),
    st.floats(0, 1e4), st.booleans(),
)  # fmt: skip
def test_bytes_add_up_and_the_bound_is_met(
    nodes: int, ram: int, ssd: int, data: int, epochs: int, compute_s: float, shared: bool
) -> None:
    model, work = cluster(nodes, ram, ssd), Workload(data, data, compute_s, epochs, shared)
    cost = run_cost(model, work)
    assert cost.first.pfs_bytes == data
    if shared or nodes == 1:
        assert cost.later.pfs_bytes == max(0, data - nodes * (ram + ssd))
        assert data - sum(held_bytes(model, work).values()) == cost.later.pfs_bytes
    else:
        assert max(0, data - nodes * (ram + ssd)) - 1e-6 * data <= cost.later.pfs_bytes <= data
    for epoch in (cost.first, cost.later):
        assert epoch.pfs_bytes + epoch.peer_bytes + sum(epoch.class_bytes.values()) == pytest.approx(data)
        assert epoch.seconds == max(epoch.busy_s.values()) == epoch.busy_s[epoch.rules]
        assert epoch.stall_s >= 0


def test_more_of_a_resource_that_does_not_rule_gains_nothing() -> None:
    work = Workload(1000, 1000, 0, 3, shared=True)
    now = run_cost(cluster(2, 100, 0), work)
    faster_pfs, faster_network = cluster(2, 100, 0, pfs=200), cluster(2, 100, 0, network=99)
    assert now.seconds - run_cost(faster_pfs, work).seconds == pytest.approx((1000 + 2 * 800) / 200)
    assert run_cost(faster_network, work).seconds == now.seconds
    assert now.pfs_bytes - run_cost(cluster(2, 150, 0), work).pfs_bytes == 2 * 100


def test_nothing_to_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to plan"):
        run_cost(cluster(1, 0, 0), Workload(0, 0, 1, 1, True))
