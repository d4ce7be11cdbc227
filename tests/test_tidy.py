"""Tidiness as a test: short functions, files of one idea, every module says its job, and who may know whom."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted([*ROOT.glob("mlfs/**/*.py"), *ROOT.glob("mountd/**/*.py"), *ROOT.glob("scripts/*.py")])
TESTS = sorted(ROOT.glob("tests/**/*.py"))
MOST_LINES_OF_A_FUNCTION = 60
MOST_LINES_OF_A_FILE = 500

# Part of the tree -> what it may import of ours and of others, besides the standard library.
MAY_IMPORT = {
    "mlfs/orders": {"mlfs.orders", "mlfs.job", "mlfs.errors", "numpy", "numba"},
    "mlfs/plan": {"mlfs.plan", "numpy"},
    "mlfs/sim": {
        "mlfs.sim",
        "mlfs.plan",
        "mlfs.errors",
        "mlfs.units",
        "mlfs.job",
        "mlfs.orders",
        "mlfs.follow",
        "mlfs.measure.rates",
        "mlfs.tree.index",
        "numpy",
        "pydantic",
        "matplotlib",
    },
    "mlfs/tree": {"mlfs.tree", "mlfs.errors", "numpy", "xxhash"},
    "mlfs/follow": {"mlfs.follow", "mlfs.plan", "mlfs.explain.variants", "mlfs.orders", "mlfs.job", "numpy"},
    "mlfs/places": {"mlfs.places", "mlfs.tree", "mlfs.errors", "mlfs.units", "numpy", "xxhash", "lmdb"},
}
FORBIDDEN = {
    "mlfs/engine": ("pyfuse3", "mountd"),
    "mlfs/explain": ("pyfuse3", "mountd"),
    "mountd/handlers.py": ("pyfuse3",),
    "mountd/virtual.py": ("pyfuse3",),
}


def imports_of(path: Path) -> set[str]:
    """Modules that a file imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=lambda p: str(p.relative_to(ROOT)))
def test_functions_and_files_are_short_and_modules_say_their_job(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert text.count("\n") <= MOST_LINES_OF_A_FILE
    if text.strip():
        assert ast.get_docstring(tree), "a module's docstring says its job"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MOST_LINES_OF_A_FUNCTION, f"{node.name} has {lines} lines"


def test_what_texts_refer_to_is_there() -> None:
    """Documents and modules named in documents, docstrings and comments."""
    named = re.compile(r"(?<![\w/.])(?:docs|mlfs|mountd|scripts|tests)/[\w/.-]+\.(?:md|py|toml)\b|\b[A-Z]+\.md\b")
    for path in [*SOURCES, ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for name in named.findall(path.read_text()):
            assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} refers to {name}"


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_the_pure_and_the_low_parts_know_nobody_above_them(part: str) -> None:
    allowed = MAY_IMPORT[part]
    for path in ROOT.glob(f"{part}/**/*.py"):
        for module in imports_of(path):
            top = module.split(".")[0]
            ours = any(module == name or module.startswith(name + ".") for name in allowed)
            assert ours or top in sys.stdlib_module_names, f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("part", FORBIDDEN)
def test_only_the_channel_knows_the_binding(part: str) -> None:
    for path in [ROOT / part] if part.endswith(".py") else (ROOT / part).glob("**/*.py"):
        for module in imports_of(path):
            assert not module.startswith(FORBIDDEN[part]), f"{path.relative_to(ROOT)} imports {module}"
