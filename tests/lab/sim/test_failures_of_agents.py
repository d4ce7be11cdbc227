"""Clusters with agents, drawn from seeds: whoever dies, sleeps or is cut off, readers get the right bytes in time.

What runs is what daemons run (support.failures.agents), on simulated time. `scripts/soak --cluster --seed N` runs
a seed of these alone, `scripts/soak --cluster --hours H` more of them.
"""

from __future__ import annotations

from collections import Counter

import pytest
from support.failures import agents
from support.failures.drawing import (
    BESIDE_AGENTS,
    GETS_BESIDE_AGENTS,
    OF_AGENTS,
    AgentsCase,
    Case,
    Fault,
    Habits,
    JobCase,
    draw_cluster,
)
from support.failures.invariants import Broken
from support.failures.run import Trial, fails, shrunk

from mlfs.peers.agent import Agent
from mlfs.peers.desk import Desk
from mlfs.peers.liveness import Liveness

SEEDS = 100  # and of `scripts/soak` 2,000


def test_whatever_strikes_a_cluster_what_must_hold_holds() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        trial = Trial(draw_cluster(seed))
        try:
            trial.run()
        except Exception as error:
            small = shrunk(draw_cluster(seed), error)
            pytest.fail(f"seed {seed}: {error!r}\nscripts/soak --cluster --seed {seed}\nas small as it gets: {small}")
        assert trial.agents is not None
        counted = trial.agents.counted
        happened.update(here=counted.here, missing=counted.missing, lost=counted.lost, back=counted.back)
    assert happened["here"] > 700
    assert min(happened["missing"], happened["lost"], happened["back"]) >= 10, happened


def test_the_seeds_draw_all_that_can_be_drawn() -> None:
    cases = [draw_cluster(seed) for seed in range(SEEDS)]
    kinds = {fault.kind for case in cases for fault in case.faults}
    assert kinds == {*OF_AGENTS, *BESIDE_AGENTS, *GETS_BESIDE_AGENTS}
    assert {case.nodes for case in cases} == {2, 3, 4, 6}
    assert any(not case.faults for case in cases)
    assert any(sum(fault.kind in OF_AGENTS for fault in case.faults) > 1 for case in cases)


def test_a_seed_replays() -> None:
    for seed in range(5):
        assert Trial(draw_cluster(seed)).run() == Trial(draw_cluster(seed)).run()


PATIENCE_S = 0.2
SIZES = tuple(5000 + 100 * number for number in range(40))


def cluster(*faults: Fault) -> Trial:
    """Four nodes that own a quarter each, 20 epochs of a job: some ten reads of peers at any time."""
    job = JobCase("job", 1, 0, 40, 20, 2, 1, 0.0, Habits(think_s=0.005))
    return Trial(
        Case(
            1, 4, SIZES, 16 * 4096, (11 * 8192,), 2, 30.0, 30.0, True, (job,), (), faults,
            agents=AgentsCase(PATIENCE_S, 1 << 20, 0.001),
        )
    )  # fmt: skip


def test_without_failures_each_sample_is_read_from_the_source_once_by_all_nodes_together() -> None:
    trial = cluster()
    outcome = trial.run()
    assert outcome.reads == 40 * 20
    assert trial.world.read_from_source == [1] * 40
    assert trial.agents is not None
    assert trial.agents.counted.missing == trial.agents.counted.lost == 0
    assert trial.agents.counted.here > 40 * 10


def test_what_an_owner_does_not_have_comes_from_the_source_without_a_stall_and_is_counted() -> None:
    """For a while a node takes others for the owners of what it owns, and refuses what it does not have itself yet."""
    trial = cluster(Fault("other_plan", 1, at_s=0.0, lasts_s=0.1))
    outcome = trial.run()
    assert outcome.refused == 0
    assert trial.agents is not None
    counted = trial.agents.counted
    assert counted.missing > 0
    assert counted.lost == 0
    assert counted.missing == sum(node.scheduler.statistics().peers_missed for node in trial.world.nodes)
    assert counted.longest_s < PATIENCE_S / 2
    assert max(trial.world.read_from_source) <= 4


@pytest.mark.parametrize(
    "kind", ["kill_agent", "kill_agents", "agent_sleeps", "node_cut", "crash", "others_crash", "network_slow"]
)
def test_readers_go_on_within_the_patience_and_who_comes_back_is_asked_again(kind: str) -> None:
    trial = cluster(Fault(kind, 1, at_s=0.3, lasts_s=0.5))
    outcome = trial.run()
    assert outcome.reads >= 40 * 20 * (1 if "crash" not in kind else 0.25)
    assert outcome.refused == 0
    assert trial.agents is not None
    counted = trial.agents.counted
    assert counted.longest_s <= trial.agents.longest_wait_s({kind})
    if kind in ("agent_sleeps", "node_cut"):
        assert counted.lost > 0
        assert counted.back > 0
        slept = cluster(Fault(kind, 1, at_s=0.3, lasts_s=0.5), Fault("kill_agents", 0, at_s=0.9))
        slept.run()
        assert slept.agents is not None
        assert counted.here > slept.agents.counted.here + 40  # they are asked on after it


# Cases that have found faults, as small as they got.
FOUND = {
    "the bytes have landed, and their checksum never comes": Case(
        29, 2,
        (1389, 11161, 131114, 12277, 15175, 6027, 1612, 20497, 17084, 16041, 15093, 22442, 10154, 21241, 20017, 23802),
        618496, (1236992,), 1, 30.0, 30.0, True, (JobCase("job0", 690142370, 1, 15, 5, 1, 1, 0.0, Habits()),), (),
        (Fault("messages_garbled", 0, at_s=0.05239484587880214, lasts_s=0.5),),
        agents=AgentsCase(0.2, 618496, 0.01),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_once_failed_holds(name: str) -> None:
    Trial(FOUND[name]).run()


# Bugs that the invariants have to notice.
BUGS = {
    "a peer that came back is not noticed": (Liveness, "heard", lambda self, node, now_s: False),
    "nobody is ever lost": (Liveness, "found_lost", lambda self, now_s: []),
    "bytes are believed without a look": (agents, "checksum", lambda data, sample, version: 0),
    "memory of what nobody wants any more stays reserved": (Desk, "no_longer", lambda self, wants: None),
    "who waits is not told that a peer is lost": (Agent, "_lose", lambda self, nodes, now_s: None),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, does = BUGS[bug]
    monkeypatch.setattr(owner, name, does)
    if owner is agents:
        monkeypatch.setattr("mlfs.peers.agent.checksum", does)
    assert any(isinstance(fails(draw_cluster(seed)), Broken) for seed in range(3 * SEEDS)), "no seed notices"
