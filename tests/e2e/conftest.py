"""End-to-end tests share a machine with whatever else it runs: which of them may be tried a second time.

A test of several processes, a kernel and a clock can fail because the machine stood still for a moment. Such a test is
run once more, alone, and pytest's summary names it (R, "RERUN"): whoever reads it looks for the cause. What is about
the bytes is tried again only if a wait ran out, never for what it read: one wrong byte in a thousand runs is a bug
(docs/decisions/second-try.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
BYTES = frozenset({"test_changes.py", "test_property.py", "test_view.py"})
RAN_OUT = [r"waited \d+ s for", "TimeoutExpired"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            only = {"only_rerun": RAN_OUT} if item.path.name in BYTES else {}
            item.add_marker(pytest.mark.flaky(reruns=1, **only))
