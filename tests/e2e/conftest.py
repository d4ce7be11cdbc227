"""End-to-end tests share a machine with whatever else it runs: which of them may be tried a second time.

A test that waits for time to pass (a source that hangs until its time-out, a loop that computes for a while, a process
that says each second that it is still there) can fail because the machine stood still for a moment: it is marked
`wall_clock`. A module that counts how often the source or a tier gave what can fail because the machine took pages
back, which are then fetched once more: it is marked `page_counts`. Both are run once more when they fail, and the end
of a run says how many were: whoever reads that looks for the cause. All others have one try
(docs/decisions/second-try.md).
"""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(mark) is not None for mark in ("wall_clock", "page_counts")):
            item.add_marker(pytest.mark.flaky(reruns=1))
