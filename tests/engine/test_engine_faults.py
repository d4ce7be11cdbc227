"""Faults of mlfs' own beside the read path: they cost what they are about, never the mount."""

from __future__ import annotations

from pathlib import Path

import trio
from fakes import running, simulate


def test_a_fault_of_who_watches_the_opens_costs_the_watching_only(tmp_path: Path) -> None:
    async def body() -> None:
        async with running(tmp_path, 3) as mount:
            seen: list[int] = []

            def fault(*_: object) -> None:
                raise ZeroDivisionError

            mount.engine.watchers += [fault, lambda entry, *_: seen.append(entry)]
            for entry in mount.files:
                assert await mount.read(entry) == mount.content(entry)
                await trio.sleep(1)
            assert seen == list(mount.files)
            assert fault not in mount.engine.watchers

    simulate(body)
