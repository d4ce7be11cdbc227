"""The tables of a sample's states in docs/concurrency.md are those of the scheduler."""

from __future__ import annotations

import re
from pathlib import Path

from mlfs.plan.scheduler.states import ALLOWED, STATE_NAMES, VERB_NAMES

PAGE = (Path(__file__).resolve().parents[2] / "docs/concurrency.md").read_text()
SECTION = PAGE.partition("\n## A sample's states\n")[2].partition("\n## ")[0]


def test_each_state_has_its_row() -> None:
    described, _, _ = SECTION.partition("These are all transitions")
    assert tuple(re.findall(r"^\| ([A-Z]+) \|", described, re.MULTILINE)) == STATE_NAMES


def test_the_transitions_are_those_that_are_allowed() -> None:
    rows = re.findall(r"^\| ([A-Z]+) \| .+ \| ([A-Z_]+) \| ([A-Z]+) \|$", SECTION, re.MULTILINE)
    allowed = [
        (STATE_NAMES[state], VERB_NAMES[verb], STATE_NAMES[new])
        for state, verbs in ALLOWED.items()
        for verb, new in verbs.items()
    ]
    assert sorted(rows) == sorted(allowed)
