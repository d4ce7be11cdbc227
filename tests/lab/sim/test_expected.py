"""What the simulator expects of a job that runs is what it tells of the same job in a simulated cluster."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cluster import TEXT

from mlfs.lab.policies.clairvoyant import POLICY
from mlfs.lab.sim.clock import Sharing
from mlfs.lab.sim.expected import Loaders, expected_imbalance
from mlfs.lab.sim.run import Simulation
from mlfs.lab.sim.scenario import parse
from mlfs.plan.model import Curve, PerformanceModel, StorageClass
from mlfs.plan.node_reads import PFS
from mlfs.plan.rank_load import Imbalance, RankLoad


def node(source: float, disk: float) -> PerformanceModel:
    """A node whose places give so many bytes a second."""
    nothing = Curve.flat(1e12)
    return PerformanceModel(
        nodes=1, epochs=2, global_batch=1, drop_last=False, compute_bytes_per_s=np.inf, preprocess_bytes_per_s=np.inf,
        network_bytes_per_s=np.inf, pfs=Curve.flat(source), staging=StorageClass("staging", 0, nothing, nothing, 1),
        classes=(StorageClass("ssd", 1e12, Curve.flat(disk), Curve.flat(disk), 1),),
    )  # fmt: skip


def alike(preprocess_s: float, step_s: float, workers: int = 1, ranks: int = 2) -> list[RankLoad]:
    """Ranks that are all measured to do the same with batches of 100 bytes."""
    return [
        RankLoad(rank, workers, 64, 100.0, 0.0, preprocess_s * workers, 0.0, 0.0, step_s, 0.0) for rank in range(ranks)
    ]


def expected(sizes: object, storage: int = 0, source: float = 1e9, disk: float = 1e9, **measured: float) -> Imbalance:
    """Of steps whose samples have these sizes, all of one place."""
    of = np.array(sizes, dtype=np.float64)
    loaders = Loaders.of(alike(**measured))  # type: ignore[arg-type]
    assert loaders is not None
    return expected_imbalance(node(source, disk), of, np.full(of.shape, storage, dtype=np.int8), loaders)


def test_ranks_load_as_long_as_their_bytes_take_to_preprocess() -> None:
    """100 bytes take 0.1 s. In one step of two a rank has three times what the other has, and is late."""
    sizes = [[[50, 50], [60, 40]], [[30, 20], [100, 50]]]
    uneven = expected(sizes, preprocess_s=0.1, step_s=0.12)
    assert uneven == (pytest.approx((0 + (150 - 50) / 150) / 2), 0.5)
    assert uneven == expected(sizes, preprocess_s=0.1, step_s=0.12, workers=4)
    assert expected(sizes, preprocess_s=0.1, step_s=1.0).steps == 0.0


@pytest.mark.parametrize("place", [PFS, 0])
def test_a_place_that_is_the_limit_holds_all_ranks_up_alike(place: int) -> None:
    """It serves what is needed first, whoever needs it."""
    sizes = [[[50, 50], [20, 20]]]
    assert expected(sizes, place, source=1.0, disk=1.0, preprocess_s=0.1, step_s=0.1) == (0.0, 0.0)
    assert expected(sizes, place, preprocess_s=0.1, step_s=0.1).steps == 1.0


def test_one_rank_alone_is_not_compared() -> None:
    assert Loaders.of(alike(0.1, 0.1, ranks=1)) is None
    assert Loaders.of([]) is None


def test_it_is_the_figure_of_the_same_job_simulated() -> None:
    """One mind: the reads of a simulated run, given as those of a mount, come out with the run's own figure."""
    scenario = parse(TEXT, "x")
    cluster = scenario.cluster.model_copy(update={"nodes": 1, "preprocess_MBps": 60.0, "compute_MBps": 50.0})
    simulation = Simulation(scenario.model_copy(update={"cluster": cluster}))
    model, gpus, order = simulation.model, 4, simulation.order
    found = simulation.run(POLICY, Sharing.CONSERVING)
    padded, run = np.append(simulation.sizes, 0.0), POLICY.begin(simulation.view(Sharing.CONSERVING))
    epochs = []
    for epoch in range(model.epochs):
        reads = run.epoch(epoch, order.epoch(epoch))
        ids, storage = (of.reshape(order.steps, -1, gpus).transpose(0, 2, 1) for of in (reads.ids, reads.storage))
        sizes = padded[ids]
        # A simulated GPU computes in proportion to bytes, so how many steps are uneven is not compared.
        loaders = Loaders(1e6, 1e6 * gpus / model.preprocess_bytes_per_s, 1.0)
        epochs.append(expected_imbalance(model, sizes, storage, loaders).apart)
    assert found.imbalance == pytest.approx(np.mean(epochs))
    assert 0.01 < found.imbalance < 1
