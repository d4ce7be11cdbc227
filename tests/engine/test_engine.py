"""The engine under simulated time: prefetch, budgets, demand, failures, changes, jobs that come and go."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing
from fakes import Mount, given_job, running, shuffled, simulate

from mlfs.engine.page_watch import LONGEST_IDLE_PAUSE_S
from mlfs.plan.placement import pfs_bound_bytes
from mlfs.plan.scheduler.states import State, footprint_bytes


async def train(mount: Mount, epochs: list[list[list[int]]], step_s: float = 0.01, pid0: int = 100) -> None:
    """Read the streams: a process a rank, checking every byte."""

    async def rank_reads(rank: int, stream: list[int]) -> None:
        for entry in stream:
            assert await mount.read(entry, pid0 + rank) == mount.content(entry)
            await trio.sleep(step_s)

    for epoch in epochs:
        async with trio.open_nursery() as nursery:
            for rank, stream in enumerate(epoch):
                nursery.start_soon(rank_reads, rank, stream)


def check_budgets(mount: Mount) -> None:
    """The window's sum is what the states say, and the tiers hold what the table believes, within their budgets."""
    table = mount.table
    window = sum(table.footprint(e) for e in mount.files if table.state[e] != State.ABSENT)
    assert window == table.window_bytes
    for number, place in enumerate(mount.engine.places.storing, 1):
        held = [e for e in mount.files if table.held_by[e] == number]
        assert [e for e in mount.files if place.contains(e)] == held
        assert place.used_bytes == sum(place.footprint_bytes(mount.engine.manifest.size_view[e]) for e in held)
        assert place.used_bytes <= place.capacity_bytes


def kept_samples(mount: Mount) -> int:
    """Samples in the RAM tier."""
    return mount.table.held_by.count(1)


def test_a_registered_job_never_waits_after_its_start(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 60, seconds={"pfs": 0.02}, ram=1 << 20) as mount:
            epochs = shuffled(mount.files, 3, 2)
            await mount.engine.shared.register(*given_job(epochs))
            await trio.sleep(1)
            await train(mount, epochs)
            reads = mount.engine.counters.all.reads
            assert mount.engine.counters.all.stalls.count == 0
            assert reads["page_cache"].count == 180
            assert len(mount.source.read) == len(set(mount.source.read)) == 60
            job = mount.engine.jobs["train"]
            await trio.sleep(1)
            assert job.finished
            assert job.score.agreed == job.score.observed == 180
            check_budgets(mount)

    simulate(body)


@pytest.mark.parametrize("kept", [0, 7, 30, 60])
def test_pfs_bytes_meet_the_bound_and_the_window_holds(tmp_path: Path, kept: int) -> None:
    async def body() -> None:
        cost = footprint_bytes(5000)
        async with running(tmp_path, 60, seconds={"pfs": 0.005}, ram=kept * cost, staging=8 * cost) as mount:
            epochs = shuffled(mount.files, 4, 2)
            await mount.engine.shared.register(*given_job(epochs, batch_size=2))
            table = mount.table

            async def watch() -> None:
                while True:
                    assert table.window_bytes <= table.window_capacity_bytes
                    await trio.sleep(0.003)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await train(mount, epochs)
                await trio.sleep(1)
                nursery.cancel_scope.cancel()
            by_epoch = mount.engine.jobs["train"].bytes_read.pfs_by_epoch
            bound = pfs_bound_bytes(60 * 5000, kept * 5000)
            assert by_epoch[0] == 60 * 5000
            for epoch in (1, 2, 3):  # the window may carry a few samples over from the epoch before
                assert bound - 8 * 5000 <= by_epoch.get(epoch, 0) <= bound
            assert kept_samples(mount) == kept
            check_budgets(mount)

    simulate(body)


def test_demand_reads_without_a_job_are_fetched_once_and_kept(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 20, ram=1 << 20) as mount:
            for _ in range(3):
                for entry in mount.files:
                    assert await mount.read(entry) == mount.content(entry)
                await trio.sleep(0.1)
            assert Counter(mount.source.read) == dict.fromkeys(mount.files, 1)
            mount.drop_lingering()
            await trio.sleep(0.1)
            for entry in mount.files:
                assert await mount.read(entry) == mount.content(entry)
            assert mount.engine.counters.all.reads["ram"].count == 20
            assert len(mount.source.read) == 20
            check_budgets(mount)

    simulate(body)


def test_unkept_pages_linger_within_the_window_without_a_job(tmp_path: Path) -> None:
    async def body() -> None:
        cost = footprint_bytes(5000)
        async with running(tmp_path, 30, ram=0, staging=10 * cost) as mount:
            for entry in mount.files:
                await mount.read(entry)
                await trio.sleep(0.05)
                assert mount.table.window_bytes <= 10 * cost
            assert len(mount.pages.held) == 10
            assert set(mount.pages.held) == set(mount.files[-10:])

    simulate(body)


def test_many_readers_of_one_file_make_one_source_read(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 3, seconds={"demand": 0.5}) as mount:
            entry = mount.files[0]
            async with trio.open_nursery() as nursery:
                for pid in range(20):
                    nursery.start_soon(mount.read, entry, pid)
            assert mount.source.read == [entry]

    simulate(body)


def test_a_queued_prefetch_is_taken_over_by_a_reader(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 40, seconds={"pfs": 1.0, "demand": 0.1}, pfs_threads=1) as mount:
            epochs = shuffled(mount.files, 1, 1)
            await mount.engine.shared.register(*given_job(epochs))
            await trio.sleep(0.5)
            began = trio.current_time()
            assert await mount.read(epochs[0][0][30]) == mount.content(epochs[0][0][30])
            assert trio.current_time() - began < 0.3
            await trio.sleep(60)
            assert max(Counter(mount.source.read).values()) == 1

    simulate(body)


def test_a_failing_prefetch_costs_no_read(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 30) as mount:
            epochs = shuffled(mount.files, 1, 1)
            mount.source.failures = {entry: 1 for entry in mount.files[::3]}
            await mount.engine.shared.register(*given_job(epochs))
            await trio.sleep(1)
            await train(mount, epochs)
            assert mount.engine.counters.errors["prefetch_failed"] == 10

    simulate(body)


def test_a_reader_gets_the_error_only_when_the_retry_fails_too(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 3) as mount:
            once, always, fine = mount.files
            mount.source.failures = {once: 1, always: 2}
            assert await mount.read(once) == mount.content(once)
            with pytest.raises(OSError, match="injected") as caught:
                await mount.read(always)
            assert caught.value.errno == errno.EIO
            assert await mount.read(fine) == mount.content(fine)
            assert await mount.read(always) == mount.content(always)
            check_budgets(mount)

    simulate(body)


def test_a_hanging_source_times_out_and_others_go_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 10, hedge_s=2, timeout_s=5) as mount:
            hung, *others = mount.files
            mount.runner.hang = {hung}

            async def reader() -> None:
                with pytest.raises(OSError, match="did not answer"):
                    await mount.read(hung)
                assert trio.current_time() - began == pytest.approx(7, abs=0.5)

            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader)
                for entry in others:
                    assert await mount.read(entry) == mount.content(entry)
                assert trio.current_time() - began < 1
            mount.runner.hang = set()
            assert await mount.read(hung) == mount.content(hung)
            check_budgets(mount)

    simulate(body)


def test_changed_files_are_read_new_and_cached_copies_go(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 6, ram=0, staging=1 << 20) as mount:
            entry = mount.files[2]
            for size in (100, 9000, 0, 5000):
                path = tmp_path / os.fsdecode(mount.engine.manifest.path(entry))
                path.write_bytes(os.urandom(size))
                os.utime(path, ns=(1, size + 7))
                mount.drop_lingering()
                await trio.sleep(0.1)
                assert await mount.read(entry) == mount.content(entry)
                await trio.sleep(0.1)
                check_budgets(mount)
            assert mount.engine.statistics().tree.changed_files == 4
            assert mount.engine.manifest.size_view[entry] == 5000

    simulate(body)


def test_a_wrong_prediction_stops_the_guessing_and_reads_go_on(tmp_path: Path) -> None:
    async def body() -> None:
        cost = footprint_bytes(5000)
        async with running(tmp_path, 300, staging=40 * cost) as mount:
            job = await mount.engine.shared.register(*given_job(shuffled(mount.files, 4, 1, seed=1), batch_size=16))
            real = shuffled(mount.files, 2, 1, seed=2)
            await train(mount, real)
            await trio.sleep(1)
            assert not job.predicting
            assert mount.engine.scheduler.window.linger
            check_budgets(mount)
            await train(mount, real[:1])
            await trio.sleep(1)
            assert mount.table.window_bytes <= 40 * cost
            assert sum(mount.table.pending) == 0

    simulate(body)


def test_a_second_run_of_the_script_is_followed_from_the_start(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 300, ram=0, staging=50 * footprint_bytes(5000), seconds={"pfs": 0.001}) as mount:
            epochs = shuffled(mount.files, 3, 2)
            job = await mount.engine.shared.register(*given_job(epochs, batch_size=8))
            await train(mount, epochs[:2])
            await trio.sleep(1)
            before = mount.engine.counters.all.stalls.count
            await train(mount, epochs, pid0=500)
            await trio.sleep(1)
            assert job.finished
            assert mount.engine.counters.all.stalls.count - before < 100
            check_budgets(mount)

    simulate(body)


def test_registering_again_resumes_and_unregistering_leaves_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        cost = footprint_bytes(5000)
        async with running(tmp_path, 90, ram=10 * cost, staging=20 * cost) as mount:
            epochs = shuffled(mount.files, 4, 1)
            await mount.engine.shared.register(*given_job(epochs, batch_size=10))
            await train(mount, epochs[:1])
            again = given_job(epochs, batch_size=10, start_epoch=2, start_step=3)
            job = await mount.engine.shared.register(*again)
            await trio.sleep(1)
            assert job.matcher.ranks[0].frontier == 2 * 90 + 30
            [record] = mount.engine.scheduler.records.values()
            assert record.uses.cursors[0] >= 2 * 90 + 30 + 10
            await train(mount, [[epochs[2][0][30:]], epochs[3]])
            await trio.sleep(1)
            assert job.finished
            assert mount.engine.shared.ended("train")
            assert not mount.engine.shared.ended("train")
            await trio.sleep(1)
            table = mount.table
            assert sum(table.pending) == 0
            assert table.window_bytes <= 20 * cost
            check_budgets(mount)

    simulate(body)


def test_two_jobs_share_the_window(tmp_path: Path) -> None:
    async def body() -> None:
        cost = footprint_bytes(5000)
        async with running(tmp_path, 120, staging=24 * cost, seconds={"pfs": 0.002}) as mount:
            train_files, val_files = mount.files[:90], mount.files[90:]
            train_epochs, val_epochs = shuffled(train_files, 2, 1), [[val_files]] * 2
            await mount.engine.shared.register(*given_job(train_epochs, batch_size=5))
            await mount.engine.shared.register(*given_job(val_epochs, batch_size=5, name="val"))
            for epoch in range(2):
                await train(mount, train_epochs[epoch : epoch + 1], pid0=100)
                await train(mount, val_epochs[epoch : epoch + 1], pid0=900 + epoch)
            await trio.sleep(1)
            assert all(job.finished for job in mount.engine.jobs.values())
            assert mount.engine.counters.all.stalls.count < 12
            check_budgets(mount)

    simulate(body)


def test_a_reader_that_stops_for_an_hour_costs_nothing_and_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        cost = footprint_bytes(5000)
        async with running(tmp_path, 60, staging=10 * cost) as mount:
            epochs = shuffled(mount.files, 2, 2)
            await mount.engine.shared.register(*given_job(epochs, batch_size=4))
            await train(mount, [[stream[:20] for stream in epochs[0]]])
            await trio.sleep(1)
            calls = Counter(mount.runner.calls)
            await trio.sleep(3600)
            more = Counter(mount.runner.calls) - calls
            assert more.keys() <= {"look"}  # whether what is staged is still there
            assert more["look"] <= 3600 / LONGEST_IDLE_PAUSE_S + 10
            await train(mount, [[stream[20:] for stream in epochs[0]], epochs[1]])
            await trio.sleep(1)
            assert mount.engine.jobs["train"].finished

    simulate(body)


def test_ranks_at_different_speeds_and_random_pauses(tmp_path: Path) -> None:
    async def body() -> None:
        cost = footprint_bytes(5000)
        rng = random.Random(7)
        async with running(tmp_path, 120, staging=30 * cost, ram=40 * cost, seconds={"pfs": 0.003}) as mount:
            epochs = shuffled(mount.files, 5, 3)
            await mount.engine.shared.register(*given_job(epochs, batch_size=4))

            async def rank_reads(rank: int) -> None:
                for number, epoch in enumerate(epochs):
                    for entry in epoch[rank]:
                        assert await mount.read(entry, 100 * number + rank) == mount.content(entry)
                        await trio.sleep(rng.random() * 0.01 * (rank + 1))

            async with trio.open_nursery() as nursery:
                for rank in range(3):
                    nursery.start_soon(rank_reads, rank)
            await trio.sleep(1)
            job = mount.engine.jobs["train"]
            assert job.finished
            assert job.score.agreed / job.score.observed >= 0.99
            assert kept_samples(mount) == 40
            check_budgets(mount)

    simulate(body)


def test_what_a_reader_fetched_is_not_fetched_again_before_a_tier_has_it(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 3, ram=1 << 20, seconds={"keep": 5.0}) as mount:
            entry = mount.files[0]
            for _ in range(4):
                assert await mount.read(entry) == mount.content(entry)
                await trio.sleep(0.5)
                mount.drop_lingering()
            assert mount.source.read == [entry]
            await trio.sleep(10)
            assert kept_samples(mount) == 1

    simulate(body)


def test_a_large_file_opened_just_before_a_change_is_opened_again(tmp_path: Path) -> None:
    """What a worker opened is of the past by the time the loop hears of it: somebody else noticed the change first."""

    async def body() -> None:
        async with running(tmp_path, 3, size=5 << 20, staging=1 << 20) as mount:
            entry = mount.files[0]
            fetcher, ranges = mount.engine.fetcher, mount.engine.ranges
            stale = fetcher.open(entry)
            path = Path(os.fsdecode(mount.root)) / os.fsdecode(mount.engine.manifest.path(entry))
            (path.parent / "incoming").write_bytes(b"new" * 2_000_000)
            os.rename(path.parent / "incoming", path)
            fetcher.open(entry).close()  # by another reader: it notices
            true, opened = fetcher.open, [stale]
            fetcher.open = lambda entry: opened.pop() if opened else true(entry)
            handle = await ranges.open(entry)
            assert bytes(await ranges.read_large(handle, 0, 9)) == b"new" * 3
            assert stale.fd < 0
            mount.engine.manifest.update(entry, 1, 1, 1)  # another content under the name: this one is open still
            assert bytes(await ranges.read_large(handle, 9, 9)) == b"new" * 3
            path.write_bytes(b"written over")
            with pytest.raises(OSError, match="was changed while it was open") as caught:
                await ranges.read_large(handle, 0, 9)
            assert caught.value.errno == errno.ESTALE
            assert ranges.close_large(handle) == entry

    simulate(body)


def test_a_fault_in_following_a_job_costs_its_prediction_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with running(tmp_path, 60, ram=1 << 20) as mount:
            epochs = shuffled(mount.files, 3, 2)
            await mount.engine.shared.register(*given_job(epochs))
            await trio.sleep(1)
            job = mount.engine.jobs["train"]
            await train(mount, epochs[:1])
            await trio.sleep(1)

            def fault(*_: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(job.matcher, "observe", fault)
            await train(mount, epochs[1:])
            await trio.sleep(1)
            assert job.given_up
            assert not job.predicting
            assert not any(mount.table.pending)
            check_budgets(mount)
            await mount.engine.shared.register(*given_job(epochs))
            await trio.sleep(1)
            await train(mount, epochs)
            await trio.sleep(1)
            again = mount.engine.jobs["train"]
            assert again.finished
            assert again.score.agreed == 180

    simulate(body)


@pytest.mark.parametrize("pids", [(100, 200), (200, 100)])
def test_reads_of_another_job_over_the_same_files_do_not_count_against_a_job(
    tmp_path: Path, pids: tuple[int, int]
) -> None:
    async def body() -> None:
        async with running(tmp_path, 90, ram=1 << 20) as mount:
            first, second = shuffled(mount.files, 3, 1, seed=1), shuffled(mount.files[:60], 3, 1, seed=2)
            await mount.engine.shared.register(*given_job(first, name="first"))
            await mount.engine.shared.register(*given_job(second, name="second"))
            states = set()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(train, mount, first, 0.01, pids[0])
                await trio.sleep(0.5)  # the second begins when the first is under way
                states.add(mount.engine.jobs["second"].state)
                nursery.start_soon(train, mount, second, 0.01, pids[1])
            await trio.sleep(1)
            jobs = mount.engine.jobs
            assert states == {"waiting for the first read"}
            for name, opens in (("first", 270), ("second", 180)):
                score = jobs[name].score
                assert score.agreed >= opens - 8
                assert score.agreement == 1.0
                assert jobs[name].finished
                assert sum(cell.observed for cell in score.cells.values()) == score.observed == score.agreed

    simulate(body)


def test_a_wrong_job_beside_a_right_one_is_still_noticed(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 90, ram=1 << 20) as mount:
            right, wrong = shuffled(mount.files, 3, 1, seed=1), shuffled(mount.files, 3, 1, seed=2)
            await mount.engine.shared.register(*given_job(right, name="right"))
            await mount.engine.shared.register(*given_job(wrong, name="wrong"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(train, mount, right, 0.01, 100)
                nursery.start_soon(train, mount, shuffled(mount.files, 3, 1, seed=3), 0.01, 200)
            jobs = mount.engine.jobs
            assert jobs["wrong"].state == "prediction failing"

    simulate(body)


def test_a_job_beside_one_of_many_processes_still_waits_for_its_first_read(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 240, ram=1 << 20) as mount:
            first, second = shuffled(mount.files, 2, 12, seed=1), shuffled(mount.files, 2, 1, seed=2)
            await mount.engine.shared.register(*given_job(first, name="first"))
            await mount.engine.shared.register(*given_job(second, name="second"))
            await train(mount, first)
            await trio.sleep(1)
            assert mount.engine.jobs["first"].finished  # a fault in following it would have dropped it
            assert mount.engine.jobs["second"].predicting
            await train(mount, second, pid0=900)
            await trio.sleep(1)
            job = mount.engine.jobs["second"]
            assert job.score.agreement == 1.0
            assert job.finished

    simulate(body)
