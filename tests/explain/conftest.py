"""Fixtures of the tests of explaining."""

from __future__ import annotations

import pytest
from support.explaining import SearchHere


@pytest.fixture(autouse=True)
def _searches_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for a seed begins no process of its own, which would import all that is here: half of its time.

    It draws the usual orders once for many tests. The process itself is in test_infer_search.py, test_explainer.py,
    and in the tests of mounts.
    """
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchHere)


@pytest.fixture(autouse=True)
def _few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing tries pairs of mistakes for a sixth of the time that it takes otherwise.

    Most tests have several such searches, and are about something else. test_two_mistakes_drawn.py tries all pairs.
    """
    monkeypatch.setattr("mlfs.explain.screen.LONGEST_FOR_PAIRS_S", 0.25)
