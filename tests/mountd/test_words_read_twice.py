"""Words that were wrong or had to be read twice, each with the case in which they were."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up import engine, mount

from mlfs.cli.register import understood
from mlfs.cli.status import render
from mlfs.doctor import SourceMount, source
from mlfs.explain.statistics import ExplainerStatistics, InferenceState, InferenceStatistics
from mountd.messages import ahead_without_prediction, engine_messages


@pytest.mark.parametrize("state", list(InferenceState))
def test_while_the_order_is_looked_for_that_is_said(state: InferenceState) -> None:
    now = replace(mount(engine()), explainer=ExplainerStatistics(InferenceStatistics(state), {}))
    looking = state in (InferenceState.WATCHING, InferenceState.SEARCHING)
    assert ("is looking for the order" in ahead_without_prediction(now.engine, now.explainer)) == looking
    (said,) = engine_messages(now.engine, now.explainer, "/mnt")
    assert ("is looking for the order" in said) == looking


@pytest.mark.parametrize("ranks", [1, 4, 5, 16, 1024])
def test_a_registration_of_many_ranks_is_summarised(ranks: int) -> None:
    paths = {str(rank): [f"{rank}/{number}" for number in range(5)] for rank in range(ranks)}
    lines = understood("/mnt", {"job": {"name": "train", "epochs": 3}, "first_paths": paths})
    assert len(lines) < 30
    assert "rank 0 is predicted to read first:" in lines
    is_cut = any(f"the {ranks - 2} other ranks of this node, 2 to {ranks - 1}: see" in line for line in lines)
    assert is_cut == (ranks > 4)


@pytest.mark.parametrize("inferred", [False, True])
def test_epochs_that_nobody_told_are_not_shown(inferred: bool) -> None:
    from rich.console import Console

    job = {"name": "x", "state": "running", "epochs": 1000, "inferred": inferred, "ranks": [{"rank": 0, "epoch": 3}]}
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render({"jobs": [job]}))
    assert ("3/1,000" in console.export_text()) != inferred


@pytest.mark.parametrize(
    ("fstype", "said"),
    [
        ("fuse.sshfs", "a FUSE file system (fuse.sshfs)"),
        ("fuse", "a FUSE file system"),
        ("fuse.juicefs", "a FUSE file system"),
        ("ext4", "a local file system (ext4)"),
        ("fuseblk", "a local file system"),
        ("nfs4", "a network file system"),
    ],
)
def test_a_fuse_source_is_not_called_local(fstype: str, said: str) -> None:
    found = list(source("/data", SourceMount(fstype, frozenset({"relatime"})), 1.0, 2.0))
    assert said in str(found[0])
