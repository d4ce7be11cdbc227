"""What a node keeps that reads some samples more often than others: the most read, within budgets, nothing wasted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from fakes import InlineRunner, Mount, given_job, running, shuffled, simulate
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import cases

from mlfs.engine import planner
from mlfs.engine.planner import MOST_EPOCHS
from mlfs.measure.rates import FEWEST_BATCHES, Rates
from mlfs.measure.refine import Measured
from mlfs.places.lmdb_store import LmdbTier
from mlfs.places.ram import RamTier
from mlfs.plan.owners import plan_alone
from mlfs.plan.place_kind import PlaceKind
from mlfs.plan.placement import DISK, MEMORY, NOWHERE, ClassRoom, keep_most_read, preferred, spare
from mlfs.plan.scheduler.config import PlaceInfo
from mlfs.plan.scheduler.events import JobBroken
from mlfs.plan.scheduler.keeping import Keeping, Plan
from mlfs.plan.scheduler.pool_queue import LaneGovernor
from mlfs.plan.scheduler.states import SampleTable, footprint_bytes

PAGE = 4096


def plan_of(mount: Mount) -> Plan | None:
    """The plan at work."""
    plan: Plan | None = mount.engine.scheduler.keeping.plan
    return plan


def about(mount: Mount) -> Mapping[str, Any]:
    """What the plan is about."""
    plan = plan_of(mount)
    assert plan is not None
    return plan.about


def planned(mount: Mount) -> list[int]:
    """The samples that the plan keeps."""
    plan = plan_of(mount)
    assert plan is not None
    return [entry for entry in mount.files if plan.classes[entry] != NOWHERE]


def hits(stream: list[int], kept: set[int]) -> int:
    """Reads that find their sample kept: all but the first of each."""
    counts = Counter(stream)
    return sum(counts[entry] - 1 for entry in kept if entry in counts)


@pytest.fixture
def too_large_to_evict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any data set counts as one with more samples than a node looks at to evict: what is read most stays."""
    monkeypatch.setattr(planner, "MOST_EVICTING", 0)


@pytest.mark.usefixtures("too_large_to_evict")
def test_a_rank_of_many_keeps_what_it_reads_most(tmp_path: Path) -> None:
    async def body() -> None:
        capacity = 15
        async with running(tmp_path, 60, ram=capacity * footprint_bytes(5000), staging=3 * footprint_bytes(5000)) as m:
            epochs = [[ranks[0]] for ranks in shuffled(m.files, 12, 4, seed=5)]
            await m.engine.shared.register(*given_job(epochs, world_size=4))
            await trio.sleep(1)
            assert not m.engine.statistics().planner.under_way
            assert about(m)["samples"] == capacity
            stream = [entry for epoch in epochs for entry in epoch[0]]
            for entry in stream:
                assert await m.read(entry, 100) == m.content(entry)
                await trio.sleep(0.01)
            await trio.sleep(1)
            held = {entry for entry in m.files if m.table.held_by[entry]}
            assert len(held) == capacity
            best = sum(sorted((count - 1 for count in Counter(stream).values()), reverse=True)[:capacity])
            first_come = hits(stream, set(list(dict.fromkeys(stream))[:capacity]))
            # What was fetched before the plan was there fills the window at most.
            assert first_come < hits(stream, held) <= best
            assert hits(stream, held) >= best - 2 * 3
            assert not any(m.engine.scheduler.keeping.reserved_bytes) or len(held - set(planned(m))) > 0
            assert m.engine.shared.ended("train")
            assert plan_of(m) is None

    simulate(body)


def test_a_job_whose_ranks_are_all_here_keeps_what_comes_first(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 12, ram=1 << 20) as mount:
            spec, streams = given_job(shuffled(mount.files, 3, 2))
            await mount.engine.shared.register(spec.model_copy(update={"sampler": "torch-distributed"}), streams)
            await trio.sleep(1)
            assert plan_of(mount) is None
            assert "plan" not in mount.runner.calls

    simulate(body)


def drawn(files: list[int]) -> list[list[list[int]]]:
    """Five epochs of a sampler that draws with replacement."""
    rng = np.random.default_rng(1)
    return [[rng.choice(files, len(files)).tolist()] for _ in range(5)]


def of_a_rank(files: list[int]) -> list[list[list[int]]]:
    """Sixteen epochs of one rank of four."""
    return [[ranks[0]] for ranks in shuffled(files, 16, 4, seed=5)]


@pytest.mark.parametrize(
    ("epochs_of", "fields", "of_keeping"), [(drawn, {"replacement": True}, 0.85), (of_a_rank, {"world_size": 4}, 0.95)]
)
def test_where_copies_make_room_for_others_less_comes_from_the_source_than_any_copies_that_stay_could_save(
    tmp_path: Path, epochs_of: Callable[[list[int]], list[list[list[int]]]], fields: dict[str, Any], of_keeping: float
) -> None:
    async def body() -> None:
        room = 40
        async with running(tmp_path, 80, ram=room * footprint_bytes(5000), staging=3 * footprint_bytes(5000)) as m:
            epochs = epochs_of(m.files)
            spec, streams = given_job(epochs)
            await m.engine.shared.register(spec.model_copy(update=fields), streams)
            await trio.sleep(1)
            assert planned(m) == []
            assert about(m)["evicts"]
            stream = [entry for epoch in epochs for entry in epoch[0]]
            for entry in stream:
                assert await m.read(entry, 100) == m.content(entry)
                await trio.sleep(0.05)
                assert m.engine.places.storing[0].used_bytes <= room * footprint_bytes(5000)
            kept = len(stream) - sum(sorted((count - 1 for count in Counter(stream).values()), reverse=True)[:room])
            assert len(m.source.read) < of_keeping * kept
            assert len(m.source.read) / len(stream) == pytest.approx(about(m)["source_share"], abs=0.06)
            assert kept / len(stream) == pytest.approx(about(m)["source_share_keeping"], abs=0.02)

    simulate(body)


class Disk(RamTier):
    """An SSD, but for its speed."""

    name = "disk"


@pytest.mark.parametrize("place", ["ram", "ssd"])
def test_copies_of_an_earlier_job_make_room_for_those_of_the_next_one(tmp_path: Path, place: str) -> None:
    async def body() -> None:
        room = 20 * footprint_bytes(5000)
        disks: Any = [(PlaceKind.SSD, Disk(room), 0)] if place == "ssd" else []
        async with running(tmp_path, 60, ram=0 if disks else room, disks=disks, staging=3 * footprint_bytes(5000)) as m:
            for name, part in (("first", m.files[:30]), ("second", m.files[25:])):
                before = len(m.source.read)
                epochs = shuffled(part, 4, 1)
                await m.engine.shared.register(*given_job(epochs, name=name))
                for epoch in epochs:
                    for entry in epoch[0]:
                        assert await m.read(entry, 100) == m.content(entry)
                        await trio.sleep(0.1)
                await trio.sleep(1)
                assert m.engine.shared.ended(name)
                # All of the room serves it: of each later epoch 20 samples less come from the source.
                held = sum(1 for entry in part if m.table.held_by[entry])
                assert held >= 18
                assert len(m.source.read) - before <= 4 * len(part) - 3 * 18

    simulate(body)


def test_copies_of_an_earlier_job_make_room_in_an_lmdb_cache_whose_commits_need_some_of_its_budget(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()

    async def body() -> None:
        tier = LmdbTier(tmp_path / "cache", 1 << 20, b"source")
        disks: Any = [(PlaceKind.LMDB, tier, 0)]
        async with running(data, 240, disks=disks, staging=6 * footprint_bytes(5000)) as m:
            for name, part in (("first", m.files[:130]), ("second", m.files[110:])):
                epochs = shuffled(part, 2, 1)
                await m.engine.shared.register(*given_job(epochs, name=name))
                for entry in (*epochs[0][0], *epochs[1][0]):
                    assert await m.read(entry, 100) == m.content(entry)
                    await trio.sleep(0.1)
                await trio.sleep(1)
                assert m.engine.shared.ended(name)
                held = sum(1 for entry in part if m.table.held_by[entry])
                assert held >= 0.95 * (tier.capacity_bytes // tier.footprint_bytes(5000))

    simulate(body)


def test_what_a_job_reads_that_is_predicted_no_more_makes_no_room_for_another(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 40, ram=20 * footprint_bytes(5000), staging=3 * footprint_bytes(5000)) as m:
            first, others = m.files[:20], m.files[20:]
            job = await m.engine.shared.register(*given_job(shuffled(first, 4, 1), name="first"))
            for entry in first:
                await m.read(entry, 100)
            await trio.sleep(1)
            held = [entry for entry in first if m.table.held_by[entry]]
            m.engine.driver.step(JobBroken(job, ValueError("a bug")))
            await m.engine.shared.register(*given_job(shuffled(others, 2, 1), name="second"))
            for entry in others:
                await m.read(entry, 200)
                await trio.sleep(0.1)
            assert len(held) == 20
            assert held == [entry for entry in m.files if m.table.held_by[entry]]

    simulate(body)


def test_of_several_jobs_what_most_of_them_read_is_kept(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 12, ram=4 * footprint_bytes(5000)) as m:
            for name, part in (("a", m.files[:8]), ("b", m.files[4:])):
                await m.engine.shared.register(*given_job(shuffled(part, 3, 1), name=name))
                await trio.sleep(1)
                assert (plan_of(m) is None) == (name == "a")
            assert planned(m) == m.files[4:8]  # both read these
            m.engine.shared.ended("a")
            await trio.sleep(1)
            assert plan_of(m) is None

    simulate(body)


def test_only_so_many_epochs_are_counted(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 3, ram=1 << 20) as mount:
            epochs = [[[mount.files[0], mount.files[epoch % 3]]] for epoch in range(MOST_EPOCHS + 50)]
            await mount.engine.shared.register(*given_job(epochs, world_size=2))
            await trio.sleep(1)
            assert mount.runner.calls.count("plan") == MOST_EPOCHS + 1  # and the plan itself
            assert about(mount)["reads"] == 2 * MOST_EPOCHS

    simulate(body)


def test_an_order_that_cannot_be_counted_costs_the_plan_only(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 12, ram=1 << 20) as mount:
            spec, streams = given_job(shuffled(mount.files, 6, 1), world_size=2)
            told = streams.epoch_ids

            def gone(epoch: int, rank: int) -> Any:
                if epoch == 5:
                    raise OSError(2, "no such order")
                return told(epoch, rank)

            streams.epoch_ids = gone
            await mount.engine.shared.register(spec, streams)
            await trio.sleep(1)
            assert not mount.engine.statistics().planner.under_way
            assert plan_of(mount) is None
            assert await mount.read(mount.files[0]) == mount.content(mount.files[0])

    simulate(body)


def test_a_job_that_ends_while_a_plan_is_made_is_not_in_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 12, ram=3 * footprint_bytes(5000), seconds={"plan": 1.0}) as mount:
            for name, part in (("first", mount.files[:4]), ("second", [mount.files[8], *mount.files[8:]])):
                await mount.engine.shared.register(*given_job(shuffled(part, 6, 1), world_size=2, name=name))
            await trio.sleep(13.5)  # both are counted, and the plan for both is being made
            mount.engine.shared.ended("first")
            await trio.sleep(0.1)
            assert plan_of(mount) is None or set(planned(mount)) <= set(mount.files)
            await trio.sleep(10)
            assert 0 < len(planned(mount)) <= 3
            assert set(planned(mount)) <= set(mount.files[8:])
            mount.engine.shared.ended("second")
            await trio.sleep(10)
            assert plan_of(mount) is None

    simulate(body)


def test_the_plan_goes_on_for_the_jobs_that_are_left(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 12, ram=3 * footprint_bytes(5000)) as mount:
            for name, part in (("first", mount.files[:4]), ("second", [mount.files[8], *mount.files[8:]])):
                await mount.engine.shared.register(*given_job(shuffled(part, 6, 1), world_size=2, name=name))
            await trio.sleep(1)
            assert about(mount)["reads"] == 54
            mount.engine.shared.ended("first")
            await trio.sleep(1)
            assert about(mount)["reads"] == 30
            assert set(planned(mount)) <= set(mount.files[8:])

    simulate(body)


@settings(deadline=None, max_examples=cases(50))
@given(st.data())
def test_planned_samples_find_their_room_and_budgets_hold(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 25))
    sizes = np.array(data.draw(st.lists(st.integers(1, 6 * PAGE), min_size=n, max_size=n)), dtype=np.int64)
    reads = np.array(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), dtype=np.uint16)
    capacities = [data.draw(st.integers(0, 20)) * PAGE, data.draw(st.integers(0, 40)) * PAGE]
    table = SampleTable(memoryview(sizes), 1 << 30)
    kinds = (PlaceKind.SOURCE, PlaceKind.RAM, PlaceKind.SSD)
    places = [
        PlaceInfo(kind, str(kind), 1, capacity, footprint_bytes=footprint_bytes)
        for kind, capacity in zip(kinds, (0, *capacities), strict=True)
    ]
    keeping = Keeping(places, table)
    plan = plan_alone(sizes, reads, keeping.capacities_bytes)
    keeping.adopt(plan)
    used = [0, 0, 0]
    order = data.draw(st.permutations(range(n)))
    for sample in order:
        cost = footprint_bytes(int(sizes[sample]))
        keep_in = keeping.promise(1, sample, [False] * 3)
        if keep_in:
            used[keep_in[0]] += cost
            assert keeping.statistics().promised_bytes == cost
            keeping.kept([(1, sample, keep_in[0], used[keep_in[0]])])
        assert used[1] <= capacities[0]
        assert used[2] <= capacities[1]
        assert keeping.statistics().promised_bytes == 0
    free = max(capacities[0] - used[1], capacities[1] - used[2])
    for sample in range(n):
        if plan.classes[sample] != NOWHERE:
            assert table.held_by[sample]
        elif not table.held_by[sample]:  # not planned and not kept: there was no room for it at the end either
            assert footprint_bytes(int(sizes[sample])) > free or order.index(sample) < n - 1
    assert not any(keeping.reserved_bytes)


@settings(deadline=None, max_examples=cases(50))
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), max_size=30), st.integers(0, 60), st.integers(0, 60))
def test_the_most_read_get_the_fastest_class(samples: list[tuple[int, int]], ram: int, disk: int) -> None:
    sizes = np.array([size for size, _ in samples], dtype=np.int64)
    reads = np.array([count for _, count in samples], dtype=np.uint16)
    classes = keep_most_read(sizes, reads, [ram, disk])
    for index, capacity in ((MEMORY, ram), (DISK, disk)):
        assert sizes[classes == index].sum() <= capacity
    assert (reads[classes != NOWHERE] >= 2).all()
    if (classes == MEMORY).any() and (classes == DISK).any():
        assert reads[classes == MEMORY].min() >= reads[classes == DISK].max()
    if (classes != NOWHERE).any():
        left_out = (classes == NOWHERE) & (reads >= 2)
        assert reads[left_out].max(initial=0) <= reads[classes != NOWHERE].min()


def test_what_is_reserved_is_out_of_reach_for_others_only() -> None:
    rooms = [ClassRoom("ram", 100, 60), ClassRoom("ssd", 80, 60), ClassRoom("lmdb", 20, 60)]
    assert [room.free_bytes for room in spare(rooms, MEMORY, [50, 50])] == [100, 40, 10]
    assert [room.free_bytes for room in spare(rooms, NOWHERE, [50, 50])] == [50, 40, 10]
    assert preferred(60, rooms, DISK)[0] == 1
    assert preferred(60, [ClassRoom("ram", 100, 60)], DISK)[0] == 0
    assert preferred(60, spare([ClassRoom("ram", 100, 60)], DISK, [50, 0]), DISK) == []


@pytest.mark.usefixtures("too_large_to_evict")
def test_sizes_that_change_count_from_the_next_epoch_on(tmp_path: Path) -> None:
    async def body() -> None:
        capacity = 12
        async with running(tmp_path, 40, ram=capacity * footprint_bytes(5000), staging=3 * footprint_bytes(5000)) as m:
            epochs = [[ranks[0]] for ranks in shuffled(m.files, 8, 2, seed=5)]
            await m.engine.shared.register(*given_job(epochs, world_size=2))
            await trio.sleep(1)
            table = m.table
            assert about(m)["samples"] == capacity
            for entry in m.files:
                (tmp_path / m.engine.manifest.path(entry).decode()).write_bytes(b"x" * 3 * footprint_bytes(5000))
            for epoch in epochs:
                for entry in epoch[0]:
                    await m.read(entry, 100)
                    await trio.sleep(0.05)
            while any(m.engine.statistics().under_way.values()):
                await trio.sleep(0.1)
            assert 0 < len(planned(m)) < capacity  # what was staged before the change is as small as it was
            assert sum(table.footprint(entry) for entry in planned(m)) == about(m)["bytes"]
            assert about(m)["bytes"] <= capacity * footprint_bytes(5000)
            ram = m.engine.places.storing[0]
            assert ram.used_bytes <= ram.capacity_bytes

    simulate(body)


def test_rates_are_those_of_all_lanes_together() -> None:
    rates = Rates()
    for _ in range(FEWEST_BATCHES):
        rates.batch("pfs", 2, 1000, 0.5)
        rates.batch("pfs", 1, 0, 0.5)
    rates.batch("tier0", 1, 10, 1.0)
    assert rates.measured("pfs") == [Measured(2, pytest.approx(4000), FEWEST_BATCHES)]
    assert rates.measured("tier0") == []
    assert rates.routes() == ["pfs", "tier0"]
    for _ in range(200):
        rates.batch("pfs", 2, 500, 0.5)
    assert rates.measured("pfs")[0].bytes_per_s == pytest.approx(2000, rel=1e-3)


def test_lanes_begin_with_what_was_measured() -> None:
    governor = LaneGovernor(16)
    before = governor.allowed
    governor.begin_with(0)
    assert governor.allowed == before
    governor.begin_with(8)
    assert governor.allowed == 8
    governor.begin_with(99)
    assert governor.allowed == 16


def test_a_tier_that_refuses_is_passed_over(tmp_path: Path) -> None:
    class Full:
        name, errors, capacity_bytes, used_bytes = "ssd:/full", 0, 1 << 30, 0

        def footprint_bytes(self, size: int) -> int:
            return size

        def put(self, *_: Any) -> bool:
            return False

        def put_all(self, samples: list[Any]) -> list[bool]:
            return [False] * len(samples)

        def contains(self, _key: bytes) -> bool:
            return False

        def drop(self, _key: bytes) -> None:
            pass

    async def body() -> None:
        disks: Any = [(PlaceKind.SSD, Full(), 0)]
        async with running(tmp_path, 20, ram=1 << 20, disks=disks) as mount:
            assert isinstance(mount.runner, InlineRunner)
            await mount.engine.shared.register(*given_job([[r[0]] for r in shuffled(mount.files, 4, 2)], world_size=2))
            await trio.sleep(1)
            for entry in mount.files:
                assert await mount.read(entry) == mount.content(entry)
            await trio.sleep(1)
            assert mount.table.held_by.count(1) == 20

    simulate(body)
