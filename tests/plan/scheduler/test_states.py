"""A sample's life is one table: what is not allowed raises, and the window's bytes follow the states."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfs.plan.scheduler import states
from mlfs.plan.scheduler.states import (
    ALLOWED,
    STATE_NAMES,
    VERB_NAMES,
    IllegalTransitionError,
    SampleTable,
    State,
    Verb,
    footprint_bytes,
)

IN_PLACE = (State.STAGED, State.RECENT)
PACKAGE = Path(states.__file__).parent.parent.parent


def table_of(sizes: list[int]) -> SampleTable:
    return SampleTable(memoryview(np.array(sizes, dtype=np.int64)), 1 << 30)


def brought_to(state: int) -> SampleTable:
    """A table whose only sample is in a state."""
    table = table_of([5000])
    ways = {
        State.QUEUED: [Verb.RESERVE],
        State.FETCHING: [Verb.DEMAND],
        State.STAGED: [Verb.DEMAND, Verb.LAND, Verb.EXPECT],
        State.RECENT: [Verb.DEMAND, Verb.LAND],
        State.DROPPING: [Verb.DEMAND, Verb.LAND, Verb.LET_GO],
        State.GOING: [Verb.DEMAND, Verb.LAND, Verb.LET_GO, Verb.SEND],
    }
    for verb in ways.get(state, []):
        table.move(0, verb)
    assert table.state[0] == state
    return table


@pytest.mark.parametrize("state", range(len(STATE_NAMES)), ids=STATE_NAMES)
@pytest.mark.parametrize("verb", range(len(VERB_NAMES)), ids=VERB_NAMES)
def test_what_does_not_stand_in_the_table_of_transitions_raises(state: int, verb: int) -> None:
    table = brought_to(state)
    if verb in ALLOWED[state]:
        assert table.move(0, verb) == ALLOWED[state][verb]
    else:
        with pytest.raises(IllegalTransitionError, match=f"{VERB_NAMES[verb]} in state {STATE_NAMES[state]}"):
            table.move(0, verb)
        assert table.state[0] == state
    in_window = table.state[0] != State.ABSENT and 0 not in table.filling
    assert table.window_bytes == (footprint_bytes(5000) if in_window else 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, len(VERB_NAMES) + 1)), max_size=200))
def test_the_window_is_the_sum_of_what_is_not_absent_and_staged_is_what_is_expected(
    moves: list[tuple[int, int]],
) -> None:
    table = table_of([0, 1, 4096, 9000])

    def counts(sample: int) -> bool:
        return table.state[sample] != State.ABSENT and sample not in table.filling

    for sample, verb in moves:
        if verb == len(VERB_NAMES):
            table.expect(sample)
        elif verb == len(VERB_NAMES) + 1:
            table.fulfil([sample])
        elif verb in ALLOWED[table.state[sample]] and verb not in (Verb.EXPECT, Verb.USED):
            table.move(sample, verb)
        window = sum(table.footprint(one) for one in range(4) if counts(one))
        assert table.window_bytes == window
        for one in range(4):
            if table.state[one] in IN_PLACE:
                assert (table.state[one] == State.STAGED) == (table.pending[one] > 0)


def test_nobody_else_writes_a_samples_state() -> None:
    """A sample's life is one table: its arrays are assigned to in their own module, and nowhere else."""
    writers = set()
    parts = [(PACKAGE / part).glob("**/*.py") for part in ("plan", "engine", "sim")]
    for path in itertools.chain(*parts):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AugAssign):
                targets = [node.target]
            for target in targets:
                of = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(of, ast.Attribute) and of.attr in ("state", "pending", "window_bytes", "readers"):
                    writers.add((path.name, of.attr))
    assert {(name, of) for name, of in writers if name != "run.py"} == {
        ("states.py", "state"), ("states.py", "pending"), ("states.py", "window_bytes"), ("states.py", "readers"),
    }  # fmt: skip


def test_each_state_can_be_reached_and_left() -> None:
    reached = {State.ABSENT}
    for _ in STATE_NAMES:
        reached |= {new for state in reached for new in ALLOWED[state].values()}
    assert reached == set(range(len(STATE_NAMES)))
    assert all(ALLOWED[state] for state in reached)
