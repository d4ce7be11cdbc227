"""A report of a job that has ended is written also where the mount ends while it is being written."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from mlfs.follow.job import JobRun
from mlfs.follow.job_statistics import JobState
from mountd.control import JobReports


def test_a_report_under_way_when_the_mount_ends_is_written_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    judged: list[str] = []

    async def judge() -> None:
        judged.append("")

    async def slow_at_first(command: list[str], **of: Any) -> subprocess.CompletedProcess[bytes]:
        begun.append(Path(command[-1]).name.partition("-")[0])
        assert of["stdin"] == b"1", "the auditor has looked, once"
        if len(begun) == 1:
            await trio.sleep_forever()
        return subprocess.CompletedProcess(command, 0)

    async def body() -> None:
        monkeypatch.setattr(trio, "run_process", slow_at_first)
        jobs = {"train": cast(JobRun, SimpleNamespace(state=JobState.FINISHED, observed=20))}
        reports = JobReports(str(tmp_path), lambda: str(len(judged)).encode(), lambda: jobs, judge)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reports.run)
            await trio.testing.wait_all_tasks_blocked()
            assert begun == ["train"]
            nursery.cancel_scope.cancel()
        await reports.mount_ends()
        await reports.mount_ends()
        assert begun == ["train", "train"], "once more, and not again when it is written"

    trio.run(body)
