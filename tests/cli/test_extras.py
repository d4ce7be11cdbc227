"""What needs a library that `pip install mlfs` leaves out says so before it begins; all else does without."""

from __future__ import annotations

import io
import sys
import tomllib
from pathlib import Path

import pytest

from mlfs.cli.main import main

ROOT = Path(__file__).parents[2]
LIBRARIES = {"matplotlib", "scipy"}


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment without them."""
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        monkeypatch.delitem(sys.modules, name)
    for name in LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)


def test_neither_is_installed_with_mlfs_itself_and_the_extra_brings_both() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(needed: list[str]) -> set[str]:
        return {one.partition(">")[0] for one in needed}

    assert not names(project["dependencies"]) & LIBRARIES
    assert names(project["optional-dependencies"]["lab"]) == LIBRARIES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "-", "page.html"], "mlfs report needs matplotlib"),
        (["simulate", "thesis-s1", "--plot", "bars.png"], "--plot needs matplotlib"),
        (["calibrate", "source", "--plot", "speeds.png"], "--plot needs matplotlib"),
        (["advise", "batch", "alexnet"], "mlfs advise batch needs scipy"),
        (["mount", "source", "point", "--report", "."], "--report needs matplotlib"),
    ],
)
def test_what_cannot_be_done_without_is_said_in_one_line_that_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("{}"))
    for name in ("source", "point"):
        (tmp_path / name).mkdir()
    (tmp_path / "source" / "a").write_text("x")
    assert main(words) == 1
    assert capsys.readouterr().err == f"mlfs: {said}, which is not installed (pip install 'mlfs[lab]')\n"
    assert not [*tmp_path.glob("*.html"), *tmp_path.glob("*.png")]


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "thesis-s1", "--shrink", "100", "--policy", "mlfs"],
        ["simulate", "thesis-s1", "--shrink", "100", "--detailed"],
        ["advise", "gpus", "--overhead", "0.1", "--gpus", "4"],
        ["advise", "batch", "--example"],
        ["plan", "source", "--epochs", "2", "--step-time", "1s", "--pfs-bandwidth", "1G", "--layout", "sorted"],
    ],
    ids=" ".join,
)
def test_the_rest_of_the_laboratory_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.jpg").write_text("x")
    assert main(words) == 0
