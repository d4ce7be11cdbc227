"""The commands that show a status ask for what a daemon says, and go on without what another version leaves out."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from made_up import engine, job, mount
from rich.console import Console

from mlfs import report
from mlfs.cli import refresh, status, top, warmup
from mlfs.engine.peering import PeeringStatistics
from mlfs.engine.roll_call import MemberStatistics
from mlfs.explain.statistics import AttemptStatistics, ExplainerStatistics, InferenceState, InferenceStatistics
from mlfs.follow.job_statistics import FindingsStatistics, ReadersStatistics, Stranger
from mlfs.plan.epochs import EpochCost
from mlfs.plan.scheduler.keeping import KeepingStatistics
from mlfs.plan.scheduler.reading_times import EpochTime, ReadingTime
from mlfs.shown import StatusPart
from mountd.refreshing import OutdatedJob, RefreshStatistics
from mountd.status import status as status_of

# Asked for, and not said here: an earlier version's message; routes that nothing was fetched by; fields that not every
# registration has; advice for loaders that need none; and of the staging window the columns that caches have.
BY_SOME_ONLY = ("jobs.message", "fetches.", "jobs.spec.", "jobs.load.advice.", "staging.")


def statuses() -> Iterator[dict[str, Any]]:
    """What daemons say in several states, with all that there is to be said."""
    times = ReadingTime(20.0, 2.0, (EpochTime(0, 10.0, 2.0, 4, 400), EpochTime(1, 10.0, 0.0, 4, 100)))
    spec = {"sampler": "served", "serve": "opportunistic", "nodes": [{"node": 0}], "world_size": 4, "seed": None}
    followed = job(
        specification=spec,
        findings=FindingsStatistics(("no set_epoch",), "--no-set-epoch", 1, order_unknown={0: 3}),
        readers=ReadersStatistics((1,), (Stranger(7, 1, "cp", 1, 40, True),)),
    )
    base = engine(followed, reading={"train": times})
    base = replace(
        base,
        scheduler=replace(base.scheduler, keeping=KeepingStatistics(True, {"evicts": True}, 0, (1, 2, 3))),
        speeds=replace(base.speeds, loading=EpochCost(5.0, 1.0, 9.0, 0.0, {"ram": 1.0}, {"pfs": 5.0})),
        peering=PeeringStatistics(
            0, 2, 11, 12, True, False, (1,), (1,), 1, (MemberStatistics(0, "a", "alive", 2.0),), {1: "it has no agent"}
        ),
    )
    made = mount(base, refresh=RefreshStatistics(1, "done", "a", 3, 4, 5, 6, 7, 8, "r", (OutdatedJob("x", 1, 2, "w"),)))
    searches = [
        InferenceStatistics(InferenceState.SEARCHING, 1, AttemptStatistics("small seeds", 25, 100, 7.4, True)),
        InferenceStatistics(InferenceState.LOCKED, 1, None, "torch-random, seed 7", 3),
        InferenceStatistics(InferenceState.UNKNOWN, 2),
    ]
    for search in searches:
        yield json.loads(json.dumps(status_of(replace(made, explainer=ExplainerStatistics(search, {})))))


def show(said: dict[str, Any]) -> None:
    """Everything that shows a status."""
    status.render(said)
    top.render(top.Moment(2.0, said), top.Moment(1.0, said))
    report.page(said, "today")
    refresh.summary("/mnt", StatusPart(said).refresh)
    warmup.summary("/mnt", StatusPart(said).warming)
    warmup.so_far(StatusPart(said).warming, [(0.0, 0), (1.0, 1)])


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither drawn nor laid out: that has tests of its own."""
    for drawn in ("times", "reads", "source_bytes", "agreement", "bandwidths"):
        monkeypatch.setattr(report, f"{drawn}_svg", lambda *_: "")
    monkeypatch.setattr(Console, "render_lines", lambda *_, **__: [])


class Watched(dict[str, Any]):
    """A part of a status that notes what it is asked for."""

    asked: dict[str, bool]
    path: str

    def get(self, name: str, default: Any = None) -> Any:
        path = self.path + name
        self.asked[path] = self.asked.get(path, False) or name in self
        return super().get(name, default)


def watched(value: Any, asked: dict[str, bool], path: str = "") -> Any:
    """A status whose parts note, by what they are asked for, whether any had it."""
    if isinstance(value, list):
        return [watched(one, asked, path) for one in value]
    if not isinstance(value, dict):
        return value
    part = Watched({name: watched(one, asked, f"{path}{name}.") for name, one in value.items()})
    part.asked, part.path = asked, path
    return part


def test_nothing_is_asked_for_that_no_daemon_says() -> None:
    asked: dict[str, bool] = {}
    for said in statuses():
        show(watched(said, asked))
    assert len(asked) > 150
    assert [path for path, there in asked.items() if not there and not path.startswith(BY_SOME_ONLY)] == []


def paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of a status."""
    for at, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(at, str):
            yield (*above, at)
        yield from paths(one, (*above, at))


def test_what_a_version_leaves_out_or_does_not_know_is_shown_as_nothing() -> None:
    whole = next(statuses())
    ways = [path for path in paths(whole) if path[0] not in ("requests", "source_state", "under_way")]
    assert len(ways) > 250
    for *above, last in ways:
        said = copy.deepcopy(whole)
        part: Any = said
        for at in above:
            part = part[at]
        part[last] = None
        show(said)
        del part[last]
        show(said)
