"""The table of a sample's states in docs/concurrency.md is that of the scheduler."""

from __future__ import annotations

import re
from pathlib import Path

from mlfs.plan.scheduler.states import STATE_NAMES

PAGE = (Path(__file__).resolve().parents[2] / "docs/concurrency.md").read_text()
SECTION = PAGE.partition("\n## A sample's states\n")[2].partition("\n## ")[0]


def test_each_state_has_its_row() -> None:
    assert tuple(re.findall(r"^\| ([A-Z]+) \|", SECTION, re.MULTILINE)) == STATE_NAMES
