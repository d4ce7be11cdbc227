"""Faults of mlfs' own beside the read path: they cost what they are about, never the mount."""

from __future__ import annotations

from pathlib import Path

import trio
from fakes import running, simulate


class Listens:
    """A listener that notes what it hears, or fails."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.told = 0
        self.seen: list[int] = []

    def opened(self, entry: int, process: int, parent: int) -> None:
        self.told += 1
        if self.fails:
            raise ZeroDivisionError
        self.seen.append(entry)

    def installed(self, job: object) -> None:
        pass


def test_a_fault_of_who_listens_to_the_opens_costs_the_listening_only(tmp_path: Path) -> None:
    async def body() -> None:
        faulty, other = Listens(True), Listens(False)
        async with running(tmp_path, 3, listeners=(faulty, other)) as mount:
            for entry in mount.files:
                assert await mount.read(entry) == mount.content(entry)
                await trio.sleep(1)
            assert other.seen == list(mount.files)
            assert faulty.told == 1

    simulate(body)
