"""The daemon's threads: who is given what, what is told to whom, and what is kept of it."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import trio

from mlfs.engine.runner import Calls, Runner


class Held:
    """Something that a call returns."""


async def _until(done: threading.Event) -> None:
    while not done.is_set():
        await trio.sleep(0.001)


def test_a_pool_has_its_threads_and_the_rest_waits() -> None:
    async def main() -> None:
        runner = Runner({"pool": 2})
        busy, most, order = [0], [0], []
        lock = threading.Lock()

        def work(number: int) -> None:
            with lock:
                busy[0] += 1
                most[0] = max(most[0], busy[0])
                order.append(number)
            time.sleep(0.002)
            with lock:
                busy[0] -= 1

        with trio.fail_after(30):
            for _ in range(3):  # threads that wait are woken, and those that find work waiting go on
                async with trio.open_nursery() as nursery:
                    for number in range(20):
                        nursery.start_soon(runner.run, "pool", work, number)
                assert sorted(order) == list(range(20))
                order.clear()
        assert most[0] == 2

    trio.run(main)


def test_the_thread_that_was_busy_last_goes_first() -> None:
    async def main() -> None:
        runner = Runner({"pool": 4})
        barrier = threading.Barrier(4)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(runner.run, "pool", barrier.wait)  # all four are there
            await trio.sleep(0.01)
            used = {await runner.run("pool", threading.get_ident) for _ in range(50)}
        assert len(used) <= 2  # one may not be idle again yet

    trio.run(main)


def test_nothing_of_a_call_is_kept() -> None:
    """A result may be megabytes, or an open file: the thread that made it must not hold it while it waits."""

    async def main() -> None:
        runner = Runner({"pool": 1})
        with trio.fail_after(30):
            for _ in range(3):
                result = weakref.ref(await runner.run("pool", Held))
                await trio.sleep(0.01)
                gc.collect()
                assert result() is None

    trio.run(main)


def test_what_was_started_is_told_once_or_given_up() -> None:
    async def main() -> None:
        runner = Runner({"pool": 1})
        told: list[tuple[object, type | None]] = []
        go_on, over = threading.Event(), threading.Event()

        def then(result: object, error: BaseException | None) -> None:
            told.append((result, type(error) if error else None))

        with trio.fail_after(30):
            begun = runner.start("pool", go_on.wait, then=then)
            waiting = runner.start("pool", told.append, ("never", None), then=then)
            begun.give_up()
            waiting.give_up()
            runner.start("pool", lambda: 1 // 0, then=then)
            runner.start("pool", lambda: 7, then=lambda *_: told.append(told[99]))  # a fault there ends nothing
            runner.start("pool", lambda: 8, then=then)
            runner.start("pool", over.set, then=lambda *_: None)
            go_on.set()
            await _until(over)
            await trio.sleep(0.01)
        assert told == [(None, ZeroDivisionError), (8, None)]

    trio.run(main)


class Lingering:
    """A loop that waits outside of trio, and counts what wakes it. See mlfs.engine.runner.LoopWait."""

    def __init__(self) -> None:
        self.lingers = self.is_awake = True
        self.calls = Calls()
        self.interrupts = 0

    def idle_s(self) -> float:
        return 0.0

    def in_place(self, limit_s: float) -> None:
        """Not used."""

    def interrupt(self) -> None:
        self.interrupts += 1


def test_a_loop_is_not_woken_for_what_nobody_waits_for() -> None:
    """It learns of it behind the next request, or when it has slept its time."""

    async def main() -> None:
        wait = Lingering()
        runner = Runner({"pool": 1}, wait=wait)
        told: list[bool] = []

        def work(hurried: bool) -> bool:
            if not hurried:
                runner.unhurried()
            return hurried

        with trio.fail_after(30):
            for hurried, interrupts in ((False, 0), (True, 1), (False, 1)):
                assert not wait.calls.owing
                runner.start("pool", work, hurried, then=lambda result, _: told.append(bool(result)))
                while not wait.calls.owing:
                    await trio.sleep(0.001)
                await trio.sleep(0.01)
                assert (wait.interrupts, len(told)) == (interrupts, 0)
                wait.calls.collect()
                assert told == [hurried]
                told.clear()
            wait.lingers = False  # it is busy, and about to linger
            runner.start("pool", work, False, then=lambda result, _: told.append(bool(result)))
            while not wait.calls.owing:
                await trio.sleep(0.001)
            await trio.sleep(0.01)
            assert not told
            wait.calls.collect()
            told.clear()
            wait.is_awake = False  # it sleeps in trio: then it is woken in any case
            runner.start("pool", work, False, then=lambda result, _: told.append(bool(result)))
            while not told:
                await trio.sleep(0.001)
        assert wait.interrupts == 1

    trio.run(main)
