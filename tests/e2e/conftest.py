"""End-to-end tests share a machine with whatever else it runs: which of them may be tried a second time.

A test of several processes, a kernel and a clock can fail because the machine stood still for a moment. Such a test is
run once more, alone, and pytest's summary names it (R, "RERUN"): whoever reads it looks for the cause. What is about
the bytes is never tried again: one wrong byte in a thousand runs is a bug (docs/decisions/second-try.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
BYTES = frozenset({"test_changes.py", "test_property.py", "test_view.py"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.path.name not in BYTES:
            item.add_marker(pytest.mark.flaky(reruns=1))
