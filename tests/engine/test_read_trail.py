"""What a server that was killed has noted of reads, the next one counts: each once, and none that was torn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import trio
import trio.testing

from mlfs.engine.digest import Digest, Uncounted
from mlfs.engine.read_trail import RECORDS, SIZE_BYTES, ReadTrail
from mlfs.follow.evidence import Read

OPENED, WAITED, ROW = 0, 1, 5


def test_reads_are_found_again_in_their_order_and_a_torn_one_is_left_out() -> None:
    memory = bytearray(SIZE_BYTES)
    trail = ReadTrail(memory)
    for sample in range(RECORDS - 10):
        trail.note(sample, 7, OPENED)
    last = np.arange(RECORDS - 10, RECORDS + 10)
    trail.note_all(last, np.full(20, 7, np.int32), OPENED)
    again = ReadTrail(memory)
    assert again.end == RECORDS + 10
    assert [noted.sample for noted in again.since(RECORDS + 7)] == [RECORDS + 7, RECORDS + 8, RECORDS + 9]
    at = (RECORDS + 11) % RECORDS * (SIZE_BYTES // RECORDS)
    memory[at : at + 8] = bytes(8)  # the sample of one more, whose writer came no further
    kept = ReadTrail(memory).since(0)
    assert kept == [(sample, 7, OPENED) for sample in range(11, RECORDS + 10)]
    for further in (12, 13):  # and of two more that were told together
        at = (RECORDS + further) % RECORDS * (SIZE_BYTES // RECORDS)
        memory[at : at + (SIZE_BYTES // RECORDS)] = bytes(SIZE_BYTES // RECORDS)
    assert ReadTrail(memory).since(0) == kept[2:]


def heard(digest: Digest, told: list[int]) -> list[int]:
    """The samples of which those who observe hear, once the jobs go on."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(digest.run)
            await trio.testing.wait_all_tasks_blocked()
            assert not told
            digest.jobs_go_on()
            await digest.taken_in()
            nursery.cancel_scope.cancel()

    trio.run(main)
    return told


def test_reads_that_were_noted_and_not_counted_are_counted_once() -> None:
    trail = ReadTrail()
    told: list[int] = []

    def tell(reads: Sequence[Read]) -> None:
        told.extend(read.sample for read in reads)

    def step(*_: Any) -> None: ...

    for sample, thread, kind in (10, 1, OPENED), (11, 1, OPENED), (12, 2, WAITED), (13, 3, WAITED), (14, 4, ROW):
        trail.note(sample, thread, kind)
    # Of the first one jobs have heard; the third was counted by place. 2 and 3 wait; 4 asks for its row again.
    uncounted = Uncounted(trail, by_jobs=1, by_place=1, takes_over=True)
    digest = Digest(step, tell, lambda: 0.0, lambda pid: (pid, 1), uncounted)
    answered = digest.given_again([(2, False), (3, False), (4, True), (5, False)])
    assert [noted.sample for noted in answered] == [11]
    digest.waits(12, 2)
    digest.reads_row(14, 4)
    digest.waits(20, 3)  # another file than it was noted for
    digest.waits(12, 2)  # and once more
    assert heard(digest, told) == [11, 12, 13, 20, 12]
    assert digest.noted == (trail.end, trail.end) == (7, 7)
