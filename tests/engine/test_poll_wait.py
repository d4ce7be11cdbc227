"""The loop's wait for requests: whether staying awake pays, and that nobody who is done is left waiting."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import trio

from mlfs.engine.runner import Runner
from mountd import poll_wait
from mountd.poll_wait import PollWait, Worth, leave_core


def undisturbed() -> Worth:
    """Judges for a loop that has a core of its own."""
    return Worth(preempted=lambda: 0, leave_core=lambda: None)


@pytest.mark.parametrize(("without_s", "with_s", "pays"), [(100e-6, 50e-6, True), (50e-6, 100e-6, False)])
def test_staying_awake_is_kept_where_it_pays(without_s: float, with_s: float, pays: bool) -> None:
    worth, now, seen = undisturbed(), 5.0, []
    for _ in range(2 * (2 * poll_wait.TRIAL_REQUESTS + poll_wait.KEPT_REQUESTS)):
        seen.append(worth.on)
        now += with_s if worth.on else without_s
        worth.request(now)
    kept = seen.count(True) > seen.count(False)
    assert kept == pays
    assert set(seen) == {True, False}  # both are tried, again and again


def test_pauses_say_nothing() -> None:
    worth, now = undisturbed(), 5.0
    for _ in range(10 * poll_wait.TRIAL_REQUESTS):
        now += 1.0
        worth.request(now)
    assert not worth.on


def test_a_single_pause_decides_no_trial() -> None:
    worth, now, seen = undisturbed(), 5.0, []
    for number in range(8 * (2 * poll_wait.TRIAL_REQUESTS + poll_wait.KEPT_REQUESTS)):
        seen.append(worth.on)
        now += 75e-6 if worth.on else 100e-6
        if worth.on and number % (poll_wait.TRIAL_REQUESTS // 2) == 0:
            now += 0.018
        worth.request(now)
    assert seen.count(True) > 0.9 * len(seen)


def test_a_loop_that_shares_its_core_with_a_reader_leaves_it_before_polling_is_judged() -> None:
    """On the shared core polling gains nothing, on one of its own it does."""
    times, core = [0], ["shared"]
    worth, now, seen = Worth(lambda: times[0], lambda: core.append("own")), 5.0, []
    for number in range(2 * (3 * poll_wait.TRIAL_REQUESTS + poll_wait.KEPT_REQUESTS)):
        seen.append(worth.on)
        now += 20e-6 if worth.on and core[-1] == "own" else 26e-6
        times[0] += worth.on and core[-1] == "shared" and number % 2
        worth.request(now)
    assert core == ["shared", "own"]
    assert seen.count(True) > 0.8 * len(seen)


def test_a_loop_that_finds_no_core_of_its_own_tries_once_a_trial() -> None:
    """Readers keep all cores busy: the trial ends all the same."""
    times, left, rounds = [0], list[int](), 3
    worth, now, seen = Worth(lambda: times[0], lambda: left.append(len(seen))), 5.0, []
    for _ in range(rounds * (3 * poll_wait.TRIAL_REQUESTS + poll_wait.KEPT_REQUESTS)):
        seen.append(worth.on)
        now += 30e-6
        times[0] += 1
        worth.request(now)
    assert len(left) == rounds
    assert not worth.on


def test_a_thread_leaves_its_core_and_may_use_all_afterwards() -> None:
    def core() -> int:
        return int(Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[36])

    allowed, before = os.sched_getaffinity(0), core()
    for _ in range(100):  # the kernel may have moved it back by now
        leave_core()
        assert os.sched_getaffinity(0) == allowed
        if core() != before:
            break
    assert core() != before or len(allowed) == 1


def test_workers_requests_and_calls_on_the_loop_come_through() -> None:
    """A reader of a pipe in place of the FUSE descriptor, beside callers of workers that post, call and return."""
    requests, calls = 300, 200
    reading, writing = os.pipe()
    posted: list[int] = []

    async def serve(wait: PollWait) -> None:
        for _ in range(requests):
            await wait(reading)
            assert os.read(reading, 1) == b"x"

    async def main() -> None:
        wait = PollWait()
        runner = Runner({}, wait=wait)

        def work(number: int) -> int:
            runner.post(posted.append, number)
            return runner.on_loop(lambda: number + 1)

        async def call(first: int) -> None:
            for number in range(first, first + calls):
                if first % (2 * calls):
                    assert await runner.run("pool", work, number) == number + 1
                else:  # a reader who waits: in its place, where nothing else is to be done
                    assert await runner.run_within(60, "pool", work, number) == number + 1

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, wait)
                for first in range(4):
                    nursery.start_soon(call, first * calls)
                await trio.to_thread.run_sync(lambda: [os.write(writing, b"x") for _ in range(requests - 1)])
                while len(posted) < 4 * calls:
                    await trio.sleep(0.01)
                os.write(writing, b"x")  # the last one: until then the loop waits there

    trio.run(main)
    os.close(reading)
    os.close(writing)
    assert sorted(posted) == list(range(4 * calls))


def test_a_reader_waits_in_its_place_and_requests_and_timers_come_through() -> None:
    """One worker's call outlasts another request, a timer and its own limit; then the loop is free again."""
    reading, writing = os.pipe()
    go_on = threading.Event()
    seen: list[str] = []

    async def serve(wait: PollWait) -> None:
        for _ in range(2):
            await wait(reading)
            seen.append(os.read(reading, 1).decode())

    async def end_soon() -> None:
        await trio.sleep(0.005)
        go_on.set()

    async def main() -> None:
        wait = PollWait()
        runner = Runner({"demand": 3}, wait=wait)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, wait)
                os.write(writing, b"a")
                while not seen:
                    await trio.sleep(0.001)
                with pytest.raises(trio.TooSlowError):
                    await runner.run_within(0.02, "demand", go_on.wait)
                # Ended by a timer, which must fire while the reader waits in its place.
                nursery.start_soon(end_soon)
                assert await runner.run_within(60, "demand", go_on.wait)
                assert await runner.run_within(60, "demand", lambda: 7) == 7
                with pytest.raises(ZeroDivisionError):
                    await runner.run_within(60, "demand", lambda: 1 // 0)
                assert await runner.run_within(60, "demand", os.write, writing, b"b") == 1

    trio.run(main)
    os.close(reading)
    os.close(writing)
    assert seen == ["a", "b"]


def test_a_request_and_the_end_of_a_call_at_once() -> None:
    """Whichever the loop takes first, it does not sleep over the other."""
    reading, writing = os.pipe()
    seen: list[str] = []

    async def main() -> None:
        wait = PollWait()
        runner = Runner({"demand": 1}, wait=wait)

        def work() -> None:
            time.sleep(0.002)  # the loop sleeps
            os.write(writing, b"x")

        async def serve() -> None:
            while True:
                await wait(reading)
                seen.append(os.read(reading, 1).decode())
                if seen[-1] == "s":
                    runner.start("demand", work, then=lambda *_: seen.append("done"))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                for _ in range(20):
                    seen.clear()
                    os.write(writing, b"s")
                    while len(seen) < 3:
                        await trio.sleep(0.005)
                    assert sorted(seen) == ["done", "s", "x"]
                nursery.cancel_scope.cancel()

    trio.run(main)
    os.close(reading)
    os.close(writing)
