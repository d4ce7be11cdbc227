"""End-to-end tests share a machine with whatever else it runs: which of them may be tried a second time.

A test that waits for time to pass (a source that hangs until its time-out, a loop that computes for a while, a process
that says each second that it is still there) can fail because the machine stood still for a moment. It is marked
`wall_clock`, is run once more when it fails, and the end of a run says how many were: whoever reads that looks for the
cause. All others wait for conditions only and have one try (docs/decisions/second-try.md).
"""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("wall_clock") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1))
