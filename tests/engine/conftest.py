"""Fixtures of the tests of the engine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in tests/explain/conftest.py, which says why."""
    monkeypatch.setattr("mlfs.explain.screen.LONGEST_FOR_PAIRS_S", 0.25)
