"""The planner with all kinds of jobs beside each other: served, drawing with replacement, even; alone, in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from fakes import InlineRunner, simulate

from mlfs.engine import planner
from mlfs.engine.planner import MOST_EPOCHS, Planner, draws_again
from mlfs.engine.shared_plan import ReadCounts
from mlfs.follow.job import JobRun
from mlfs.job import parse_job
from mlfs.job.ranks import ranks_in
from mlfs.orders.order import build_order
from mlfs.orders.served import ServedOrder
from mlfs.orders.streams import JobStreams
from mlfs.plan import next_use
from mlfs.plan.file_blocks import FileBlocks
from mlfs.plan.members import Members, OwnShare, Shares
from mlfs.plan.next_use import Missed
from mlfs.plan.owners import plan_alone
from mlfs.plan.placement import NOWHERE
from mlfs.plan.rows import Rows
from mlfs.plan.scheduler.keeping import Plan

N, PAGE = 120, 4096
SIZES = np.full(N, PAGE, dtype=np.int64)
ROOM = 40 * PAGE
ALONE = [{"node": 0, "ranks": "0-1", "keeps_bytes": [ROOM], "buffer_bytes": 8 * PAGE}]
NONE = np.zeros(N, dtype=np.bool_)
DRAWS = {"sampler": "torch-random", "replacement": True}
Reads = np.ndarray[Any, np.dtype[np.int64]]


def job(name: str, **fields: Any) -> JobRun:
    """A job of two ranks over all samples."""
    spec = parse_job({"name": name, "epochs": 4, "batch_size": 4, "world_size": 2} | fields)
    order, entries = build_order(spec, N), np.arange(N)
    return JobRun(
        spec, JobStreams(spec, entries, ServedOrder(order, spec, SIZES, entries) if spec.serve else order), SIZES
    )


def reads_of(one: JobRun, epochs: int = 4) -> Reads:
    """How often this node's ranks read each sample."""
    streams = [one.streams.epoch_ids(epoch, rank) for epoch in range(epochs) for rank in one.spec.ranks]
    return np.bincount(np.concatenate(streams), minlength=N)


def kept_by(one: JobRun) -> np.ndarray[Any, np.dtype[np.int16]]:
    """On whose keeping the job's order rests."""
    kept_at = one.streams.kept_at(N)
    assert kept_at is not None
    return kept_at


class Some:
    """A planner at work, and the plans that it makes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.plans: list[Plan | None] = []
        runner = InlineRunner({"plan": seconds})
        self.planner = Planner(memoryview(SIZES), lambda: [ROOM, 0], runner, self.plans.append)

    @property
    def plan(self) -> Plan:
        """The last plan."""
        plan = self.plans[-1]
        assert plan is not None
        return plan


def run(body: Callable[[Some], Coroutine[Any, Any, None]], seconds: float = 0.0) -> None:
    """Run a body beside a planner."""

    async def beside() -> None:
        some = Some(seconds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(some.planner.run)
            await body(some)
            nursery.cancel_scope.cancel()

    simulate(beside)


def test_alone_what_the_opportunistic_order_keeps_counts_beside_what_is_drawn_and_what_all_read() -> None:
    async def body(some: Some) -> None:
        served = job("served", serve="opportunistic", nodes=ALONE)
        drawn, even = job("drawn", **DRAWS), job("even")
        kept = kept_by(served) >= 0
        assert 0 < kept.sum() <= 40
        for one in (served, drawn, even):
            some.planner.count(one)
            await trio.sleep(1)
        expected = np.where(kept, 4, 0) + reads_of(drawn) + reads_of(even)
        assert some.plan.evicts_by is None  # that would cost the jobs that do not draw
        assert (some.plan.classes == plan_alone(SIZES, expected, [ROOM, 0]).classes).all()
        assert some.plan.about["reads"] == expected.sum()
        some.planner.forget("drawn")
        await trio.sleep(1)
        assert ((some.plan.classes != NOWHERE) == kept).all()
        some.planner.forget("even")
        some.planner.forget("served")
        assert some.plans[-1] is None

    run(body)


@pytest.mark.parametrize(
    "fields",
    [
        {"sampler": "torch-random", "num_samples": N // 2},
        {"sampler": "torch-random", "num_samples": 3 * N // 2},
        {"sampler": "timm-repeat-aug", "set_epoch": True},
    ],
)
def test_alone_a_sampler_that_reads_some_samples_more_often_is_counted(fields: dict[str, Any]) -> None:
    async def body(some: Some) -> None:
        one = job("train", **fields)
        some.planner.count(one)
        await trio.sleep(1)
        if some.plan.evicts_by is not None:
            assert (some.plan.evicts_by == reads_of(one)).all()
        else:
            assert (some.plan.classes == plan_alone(SIZES, reads_of(one), [ROOM, 0]).classes).all()

    run(body)


@pytest.mark.parametrize("written", [4, 2])
def test_alone_an_order_file_is_counted_as_far_as_it_is_there_and_stands_for_the_rest(
    tmp_path: Path, written: int
) -> None:
    def files(name: str, orders: list[list[int]]) -> JobRun:
        for epoch, order in enumerate(orders):
            (tmp_path / f"{name}{epoch}").write_text("".join(f"{index}\n" for index in order))
        return job(name, sampler="explicit", order_file=f"{tmp_path}/{name}{{epoch}}", epochs=4)

    async def body(some: Some) -> None:
        often = [index for index in range(N) for _ in range(1 + 2 * (index % 4 == 0))]
        one = files("uneven", [often] * written)
        some.planner.count(one)
        await trio.sleep(1)
        assert some.plan.about["reads"] == 4 * len(often)
        some.planner.forget("uneven")
        some.planner.count(files("even", [list(range(N))] * written))
        await trio.sleep(1)
        assert some.plans[-1] is None

    run(body)


@pytest.mark.parametrize(
    ("fields", "again"),
    [
        ({"sampler": "torch-random", "num_samples": 2 * N}, False),
        ({"sampler": "torch-random", "num_samples": N + 1}, True),
        ({"sampler": "torch-random", "replacement": True}, True),
        ({"sampler": "torch-weighted", "weights_file": "/weights"}, True),
        ({"sampler": "explicit", "order_file": "/order"}, True),
        ({"sampler": "ra-sampler"}, True),
        ({}, False),
    ],
)
def test_samplers_that_may_give_some_samples_more_often(fields: dict[str, Any], again: bool) -> None:
    assert draws_again(parse_job({"epochs": 4, "world_size": 2} | fields), N) == again


def test_alone_a_long_job_counts_for_as_many_epochs_whatever_its_order() -> None:
    async def body(some: Some) -> None:
        epochs = 2 * MOST_EPOCHS
        served = job("served", serve="opportunistic", nodes=ALONE, epochs=epochs)
        for one in (served, job("even", epochs=epochs)):
            some.planner.count(one)
            await trio.sleep(1)
        assert some.plan.about["reads"] == MOST_EPOCHS * (N + (kept_by(served) >= 0).sum())

    run(body)


def test_alone_copies_make_room_for_a_drawn_order_that_is_dealt_and_for_none_that_rests_on_what_is_kept() -> None:
    async def body(some: Some) -> None:
        dealt = job("train", serve="locality", nodes=ALONE, **DRAWS)  # to one node: it is the sampler's own order
        some.planner.count(dealt)
        await trio.sleep(1)
        assert some.plan.evicts_by is not None
        assert (some.plan.evicts_by == reads_of(dealt)).all()
        some.planner.forget("train")
        rooms = [ALONE[0] | {"keeps_bytes": [2 * ROOM]}]  # what it had when it was registered first
        for spot in (ALONE, rooms):
            rests = job("train", serve="opportunistic", nodes=spot, **DRAWS)
            some.planner.count(rests)
            await trio.sleep(1)
            assert some.plan.evicts_by is None
            assert (kept_by(rests)[some.plan.classes != NOWHERE] >= 0).all()
            some.planner.forget("train")

    run(body)


def test_alone_a_node_whose_peers_are_gone_keeps_what_its_own_ranks_read_of_what_is_kept() -> None:
    async def body(some: Some) -> None:
        nodes = [{"node": rank, "ranks": str(rank), "keeps_bytes": [ROOM], "buffer_bytes": 8 * PAGE} for rank in (0, 1)]
        one = job("train", serve="opportunistic", nodes=nodes, ranks=[1], level=0.0)
        some.planner.count(one)
        await trio.sleep(1)
        worth = np.where(kept_by(one) >= 0, reads_of(one), 0)
        assert (some.plan.classes == plan_alone(SIZES, worth, [ROOM, 0]).classes).all()
        mine = kept_by(one)[some.plan.classes != NOWHERE] == 1
        assert mine.mean() > 0.9  # the order deals to this node what lies here, and it lies here

    run(body)


def test_a_job_that_ends_while_it_is_asked_what_it_rests_on_is_planned_no_more() -> None:
    async def body(some: Some) -> None:
        some.planner.count(job("train", serve="opportunistic", nodes=ALONE))
        await trio.sleep(0.5)
        some.planner.forget("train")
        await trio.sleep(10)
        assert not some.plans

    run(body, seconds=1.0)


def test_a_job_that_ends_or_whose_order_is_gone_while_evicting_is_tried_costs_the_trial_only() -> None:
    async def body(some: Some) -> None:
        even = job("even")
        told, asked = even.streams.epoch_ids, list[int]()

        def gone(epoch: int, rank: int) -> Reads:
            asked.append(epoch)
            if epoch == 2:
                raise OSError(2, "no such order")
            return told(epoch, rank)

        even.streams.epoch_ids = gone  # type: ignore[method-assign]
        drawn = job("drawn", **DRAWS)
        some.planner.count(drawn)
        await trio.sleep(1)
        some.planner.count(even)
        await trio.sleep(1)  # the planner goes on: `run` would raise here
        assert asked
        assert some.plan.about["reads"] == reads_of(drawn).sum() + 4 * N
        assert some.plan.evicts_by is None

    run(body)


def test_what_a_job_reads_is_gathered_once_though_each_epoch_begins_with_a_plan() -> None:
    async def body(some: Some) -> None:
        even = job("even")
        told, asked = even.streams.epoch_ids, list[int]()

        def counted(epoch: int, rank: int) -> Reads:
            asked.append(epoch)
            return told(epoch, rank)

        even.streams.epoch_ids = counted  # type: ignore[method-assign]
        some.planner.count(job("drawn", **DRAWS))
        some.planner.count(even)
        await trio.sleep(1)
        plans, times = len(some.plans), len(asked)
        assert times
        some.planner.plan_again()
        await trio.sleep(1)
        assert len(some.plans) == plans + 1
        assert len(asked) == times

    run(body)


def test_both_rules_are_tried_once_for_the_same_jobs_and_the_same_room(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[int]()

    def counted(*args: Any) -> Missed:
        tried.append(len(args[0]))
        return next_use.missed(*args)

    monkeypatch.setattr(planner, "missed", counted)

    async def body(some: Some) -> None:
        some.planner.count(job("drawn", **DRAWS))
        await trio.sleep(1)
        first = some.plan
        for _ in range(3):
            some.planner.plan_again()
            await trio.sleep(1)
        assert tried == [1]
        assert some.plan.about == first.about
        some.planner.count(job("other", seed=1, **DRAWS))
        await trio.sleep(1)
        assert tried == [1, 2]

    run(body)


def test_a_job_whose_reads_are_counted_for_copies_while_the_peers_go_is_counted_again_for_this_node() -> None:
    async def body(some: Some) -> None:
        one = job("train", ranks=[0])
        nobody = Plan(np.full(N, NOWHERE, dtype=np.int8), np.full(N, 1, dtype=np.int16))
        some.planner.share(OwnShare(nobody, (ROOM, 0), NONE), [one])
        await trio.sleep(1.5)
        some.planner.share(None, [one])
        await trio.sleep(60)
        assert some.plan.owner is None
        assert some.plan.evicts_by is not None
        assert (some.plan.evicts_by == reads_of(one)).all()

    run(body, seconds=1.0)


def test_in_a_cluster_what_this_node_reads_most_of_the_others_samples_is_copied_as_far_as_there_is_room() -> None:
    async def body(some: Some) -> None:
        one, other = job("train", ranks=[0]), job("other", ranks=[0], seed=1)
        owner = np.where(np.arange(N) < 20, -1, 1).astype(np.int16)
        own = Plan(np.where(owner < 0, 0, NOWHERE).astype(np.int8), owner)
        some.planner.share(OwnShare(own, (30 * PAGE, 0), NONE), [one])
        await trio.sleep(1)
        some.planner.count(other)
        await trio.sleep(1)
        reads = reads_of(one) + reads_of(other)
        copied = (some.plan.classes != NOWHERE) & (owner >= 0)
        assert (some.plan.classes[owner < 0] == 0).all()
        assert copied.sum() == 30
        assert reads[copied].min() >= np.sort(reads[owner >= 0])[-30]
        some.planner.share(OwnShare(own, (), NONE), [one, other])  # no room is left, so nothing is counted either
        some.planner.plan_again()
        await trio.sleep(1)
        assert (some.plan.classes == own.classes).all()
        assert not some.planner.statistics().under_way

    run(body)


def shared(members: Members, jobs: list[JobRun], blocks: FileBlocks | None = None) -> Shares:
    """The shares of a cluster whose nodes follow these jobs."""
    blocks = FileBlocks.none(memoryview(SIZES)) if blocks is None else blocks
    found: list[Shares] = []

    async def body() -> None:
        sharing = ReadCounts(blocks, InlineRunner(), JobStreams.epoch_ids)  # type: ignore[arg-type]
        await sharing.count(members, {one.name: one for one in jobs})
        shares, by_what = await sharing.share(members, None)
        assert by_what == "by who reads"
        found.append(shares)

    simulate(body)
    return found[0]


def test_in_a_cluster_owners_are_those_on_whom_the_served_order_rests_and_readers_of_the_rest() -> None:
    """Two nodes with three ranks and one, as only the job's own `nodes` say; beside it two jobs of two ranks."""
    nodes = [
        {"node": 3, "ranks": "0,2,4", "keeps_bytes": [20 * PAGE], "buffer_bytes": 8 * PAGE},
        {"node": 7, "ranks": "1,3", "keeps_bytes": [20 * PAGE], "buffer_bytes": 8 * PAGE},
    ]  # fmt: skip
    served = job("served", serve="locality", world_size=5, nodes=nodes)
    owner = shared(Members((3, 7), 3, ((ROOM, 0), (ROOM, 0))), [served, job("drawn", **DRAWS), job("even")]).owner
    rests = kept_by(served)
    assert (owner[rests >= 0] == rests[rests >= 0]).all()
    assert [np.count_nonzero(owner == node) for node in (3, 7)] == [40, 40]


def test_in_a_cluster_what_is_left_goes_to_the_nodes_whose_ranks_read_it_as_the_job_says() -> None:
    """Nothing rests on any keeping: owners are the readers, and node 7 reads with ranks 0 and 1."""
    nodes = [{"node": 3, "ranks": "2-3", "keeps_bytes": [0]}, {"node": 7, "ranks": "0-1", "keeps_bytes": [0]}]
    one = job("served", serve="locality", nodes=nodes, world_size=4, epochs=2, sampler="sequential", contiguous=True)
    shares = shared(Members((3, 7), 3, ((N * PAGE, 0), (N * PAGE, 0))), [one])
    mine = np.concatenate([one.streams.epoch_ids(1, rank) for rank in ranks_in("2-3")])
    assert (shares.owner[mine] == 3).all()


def test_in_a_cluster_a_file_that_no_node_has_room_for_is_dealt_out_by_blocks() -> None:
    large, count = 5, 100
    sizes = np.concatenate([SIZES, np.full(count, PAGE)])
    sizes[large] = count * PAGE
    blocks = FileBlocks(memoryview(sizes), np.array([large]), np.array([count]), N, PAGE, PAGE, Rows(N + count, sizes))
    room = (N + count) // 4 * PAGE
    assert room < sizes[large]
    by_four = Members((0, 1, 2, 3), 0, ((room, 0),) * 4)
    owner = shared(by_four, [job("even", world_size=4)], blocks).owner
    assert owner[large] == -1
    of_blocks = owner[N:]
    assert (of_blocks >= 0).all()
    owned_bytes = [int(sizes[owner == node].sum()) for node in range(4)]
    assert sum(owned_bytes) == (N - 1 + count) * PAGE
    assert max(owned_bytes) <= room


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said as a warning."""
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_two_served_orders_that_rest_on_more_than_there_is_room_for_are_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs = []
    for name, pages in (("train", 40), ("other", 60)):
        nodes = [{"node": node, "ranks": str(rank), "keeps_bytes": [pages * PAGE]} for rank, node in enumerate((3, 7))]
        jobs.append(job(name, serve="locality", nodes=nodes))
        assert not warnings(caplog)
        shared(Members((3, 7), 3, ((ROOM, 0), (ROOM, 0))), jobs)
    [said] = warnings(caplog)
    assert said.startswith("jobs other, train: there is no room for")
