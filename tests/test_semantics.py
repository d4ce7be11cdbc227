"""docs/semantics.md, line by line: a test carries each promise, and no test claims a promise that is not there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/semantics.md").read_text()
PROMISED, NOT_PROMISED = PAGE.split("\n## What is not promised\n")
IDS = re.findall(r"^- `([a-z0-9-]+)` [A-Z`]", PROMISED, re.MULTILINE)


def claims() -> Iterator[tuple[str, str]]:
    """Each promise that a test carries, with the test's name: `@pytest.mark.promise("id", ...)`."""
    for path in sorted(ROOT.glob("tests/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                        where = f"{path.relative_to(ROOT)}::{node.name}"
                        assert isinstance(node, ast.FunctionDef), f"{where}: tests carry promises, one by one"
                        assert node.name.startswith("test_"), f"{where} is no test"
                        yield from ((ast.literal_eval(argument), where) for argument in mark.args)


def test_ids_are_unique() -> None:
    assert sorted(IDS) == sorted(set(IDS))
    assert len(IDS) > 40


def test_every_line_is_a_promise() -> None:
    """Below each heading stand promises with their ids, and before them at most one paragraph that binds nobody."""
    for section in PROMISED.split("\n## ")[1:]:
        title, *blocks = re.split(r"\n\n|\n(?=- )", section.strip())
        lines = [block for block in blocks if block.startswith("- ")]
        assert len(blocks) - len(lines) <= 1, f"{title}: a promise is a line with an id"
        for line in lines:
            assert re.match(r"- `[a-z0-9-]+` [A-Z`]", line), f"{title}: no id in {line!r}"


def test_each_promise_is_carried_by_a_test_and_no_test_claims_another() -> None:
    carried = dict(claims())
    assert not set(IDS) - carried.keys(), "mark the test that proves it, or write one"
    assert not {where: promise for promise, where in carried.items() if promise not in IDS}
