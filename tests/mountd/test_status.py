"""What is shown of a mount, made from statistics that no mount ever told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from made_up import GB, engine, job, mount

from mlfs.engine.page_watch import PageWatchStatistics
from mlfs.explain.statistics import (
    AttemptStatistics,
    CaseStatistics,
    ExplainerStatistics,
    InferenceState,
    InferenceStatistics,
    Instead,
)
from mlfs.follow.agreement import Share
from mlfs.follow.job_statistics import FindingsStatistics, JobState
from mlfs.plan.circuit_breaker import CircuitEvidence
from mlfs.plan.epochs import EpochCost
from mlfs.plan.scheduler.keeping import KeepingStatistics
from mlfs.plan.scheduler.reading_times import ReadingTime
from mlfs.plan.scheduler.routing import RoutingStatistics
from mlfs.stats import Counters, Tally
from mountd.messages import NO_JOB
from mountd.metrics import metrics
from mountd.statistics import MountStatistics
from mountd.status import as_json, status


def shown(now: MountStatistics) -> dict[str, Any]:
    """The status as its readers have it: every value must be JSON's."""
    read: dict[str, Any] = json.loads(json.dumps(status(now)))
    return read


def test_each_part_is_shown_in_its_place() -> None:
    now = mount(engine(job(), reading={"train": ReadingTime(10.0, 1.5)}))
    read = shown(now)
    assert (read["source"], read["mountpoint"], read["pid"], read["uptime_s"]) == ("/pfs/set", "/data/set", 4711, 90.0)
    assert read["state"] == "serving"
    assert read["messages"] == []
    assert read["reads"]["all"]["page_cache"] == {"reads": 900, "bytes": 9 * GB}
    assert read["fetches"] == {"ssd": {"count": 60, "bytes": GB}, "pfs": {"count": 40, "bytes": GB}}
    assert read["stalls"]["count"] == 3
    assert read["stalls"]["epoch"] == {"count": 0, "total_s": 0.0, "worst_s": 0.0}
    assert [tier["samples"] for tier in read["tiers"]] == [200, 400]
    assert read["pfs"]["bound_bytes"] == 2 * GB
    again = mount(engine(job(stream_bytes=40 * GB)))  # chunks that many rows share: no more than the data set
    assert shown(again)["pfs"]["bound_bytes"] == 3 * GB
    assert (read["pfs"]["epoch"], read["pfs"]["epoch_bytes"]) == (1, GB)
    assert read["pfs"]["by_epoch"] == {"0": 8 * GB, "1": GB}
    assert read["rates"]["pfs"] == {
        "measured": [[4, 120_000_000]], "calibrated": [[1, 50_000_000]], "refined": [[1, 50_000_000], [4, 120_000_000]]
    }  # fmt: skip
    assert read["under_way"] == {"fetches": 0, "drops": 0, "directories_to_list": 0}
    assert read["errors"] == {"source_retried": 2, "tier_error": 1}


def test_a_record_is_shown_by_its_fields_names_but_for_what_its_metadata_says() -> None:
    @dataclass(frozen=True)
    class Part:
        name: str
        waited_s: float
        share: float
        origin: str = field(default="learned", metadata={"key": "from"})
        spare: int = field(default=1, metadata={"key": None})
        rate_bytes: float = field(default=2.7, metadata={"digits": 0})
        by_epoch: Mapping[int, tuple[float, ...]] = field(default_factory=lambda: {10: (0.5,), 9: ()})

    assert json.dumps(as_json(Part("x", 1.23456789, 1 / 3))) == (
        '{"name": "x", "waited_s": 1.234568, "share": 0.3333333333333333, "from": "learned", "rate_bytes": 3,'
        ' "by_epoch": {"10": [0.5], "9": []}}'
    )


def test_a_job_is_shown_by_epoch_and_by_rank() -> None:
    cases = ExplainerStatistics(InferenceStatistics(InferenceState.IDLE), {"train": CaseStatistics(True, 2)})
    now = mount(engine(job(), reading={"train": ReadingTime(10.0, 1.5)}), explainer=cases)
    (read,) = shown(now)["jobs"]
    assert (read["agreement"], read["agreed_opens"], read["observed_opens"]) == (0.99, 990, 1000)
    assert read["agreement_by_epoch"]["0"] == {
        "agreement": 0.9875, "agreed_opens": 790, "observed_opens": 800, "late_opens": 0, "ranks": {"0": 1.0, "1": 1.0}
    }  # fmt: skip
    assert (read["reading_s"], read["stalled_s"], read["searching"], read["searches"]) == (10.0, 1.5, True, 2)
    first, second = read["ranks"]
    assert (first["epoch"], first["position"], first["step"], first["steps_per_epoch"]) == (1, 100, 3, 13)
    assert first["ahead"] == {"samples": 10, "bytes": 100, "seconds": 0.2}
    assert second["ahead"]["seconds"] is None
    assert read["loader"]["num_workers"] == {"value": 2, "from": "learned"}
    assert read["loader"]["prefetch_depth"] == {"value": None, "from": "unknown", "at_least": 2, "at_most": None}
    assert read["spec"] == {"sampler": "torch-distributed", "seed": 7}


def test_only_the_last_epochs_are_shown() -> None:
    shares: Mapping[int, Mapping[int, Share]] = {epoch: {0: Share(1, 1)} for epoch in range(500)}
    (read,) = shown(mount(engine(job(shares=shares))))["jobs"]
    assert list(read["agreement_by_epoch"]) == [str(epoch) for epoch in range(400, 500)]


def test_messages_say_what_a_person_should_know() -> None:
    assert shown(mount(engine()))["messages"] == [NO_JOB.format(ahead="nothing is fetched ahead")]
    drifting = job(state=JobState.DRIFTING, recent=Share(64, 256), inferred=True)
    said = shown(mount(engine(drifting)))["messages"]
    assert len(said) == 2
    assert "inferred" in said[0]
    assert "agreement 25 % of the last 256" in said[1]
    both = shown(mount(engine(job(inferred=True), job(name="other", inferred=True))))["messages"]
    assert len(both) == 1, "what is true of two jobs is said once"
    assert shown(mount(engine(job(), job(name="other", inferred=True))))["messages"] == [], "one of them is registered"
    (said,) = shown(mount(engine(job(given_up=True))))["messages"]
    assert "register it again" in said
    found = job(
        findings=FindingsStatistics(("the epochs count from 1",), "--start-epoch 1", 40, "--seed 7 --start-epoch 1")
    )
    (said,) = shown(mount(engine(found)))["messages"]
    assert "the epochs count from 1" in said
    assert "--start-epoch 1 would have said so: mlfs register /data/set --seed 7 --start-epoch 1" in said


def test_a_job_that_is_not_read_as_told_is_explained() -> None:
    def told(case: CaseStatistics, state: JobState) -> list[str]:
        explainer = ExplainerStatistics(InferenceStatistics(InferenceState.IDLE), {"train": case})
        said: list[str] = shown(mount(engine(job(state=state)), explainer=explainer))["messages"]
        return said

    searching = CaseStatistics(True, 1, AttemptStatistics("words of seed 7", 1 << 20, 1 << 26, 3.0, True))
    assert told(searching, JobState.RUNNING) == [
        "job train: looking for where its epoch begins in the words of seed 7: 1,048,576 of 67,108,864"
    ]
    (said,) = told(CaseStatistics(likely="--words-before, another seed"), JobState.DRIFTING)
    assert "Likely: --words-before, another seed (mlfs register again" in said
    instead = Instead("torch-random, seed 7", "numpy, seed 7", "--sampler numpy --seed 7")
    (said,) = told(CaseStatistics(instead=instead), JobState.DRIFTING)
    assert "(torch-random, seed 7), but in this one: numpy, seed 7." in said
    assert said.endswith("mlfs register /data/set --sampler numpy --seed 7")


def test_a_machine_that_takes_pages_back_is_told_of() -> None:
    def said(watch: PageWatchStatistics, late: int) -> list[str]:
        at_rest = engine(job())
        counters = replace(at_rest.counters, errors={"pages_taken_back": late})
        told: list[str] = shown(mount(replace(at_rest, page_watch=watch, counters=counters)))["messages"]
        return told

    assert said(PageWatchStatistics(1000, 10), 10) == []  # of 1,000 opens
    for watch, late in ((PageWatchStatistics(1000, 11), 0), (PageWatchStatistics(1000, 0), 11)):
        (told,) = said(watch, late)
        assert f"mlfs noticed {watch.taken_back} of 1,000 samples" in told
        assert f"{late} of 1,000 reads came before that" in told


def test_a_tier_that_is_passed_over_is_named() -> None:
    at_rest = engine(job())
    evidence = CircuitEvidence(1e6, 50e6, 1e5, 0.1, 9, 1.0)
    scheduler = replace(
        at_rest.scheduler,
        routing=RoutingStatistics((False, False, True), (None, None, evidence)),
        keeping=KeepingStatistics(True, {"bytes": 5}, 0, (0, 0, 800)),
        stopped=True,
    )
    counters = replace(at_rest.counters, by_choice=Tally(4, 4096))
    loading = EpochCost(8.0, 0.0, 1.0, 0.0, {}, {"compute": 0.0, "pfs": 8.0})
    read = shown(mount(replace(
        at_rest, scheduler=scheduler, counters=counters, speeds=replace(at_rest.speeds, loading=loading)
    )))  # fmt: skip
    (said,) = read["messages"]
    assert said.startswith("ssd:/scratch is slower than the source (1 and 50 MB/s)")
    assert "4 KiB so far" in said
    assert read["state"] == "draining"
    assert [tier["passed_over"] for tier in read["tiers"]] == [False, True]
    assert read["plan"] == {
        "keeps": "most read", "being_counted": [], "bytes": 5,
        "loading": {"epoch_s": 8.0, "rules": "pfs", "busy_s": {"pfs": 8.0}},
    }  # fmt: skip
    evicting = replace(scheduler, keeping=KeepingStatistics(True, {"evicts": True}, 0, (0, 0, 800)))
    assert shown(mount(replace(at_rest, scheduler=evicting)))["plan"]["keeps"] == "needed soonest"


def test_a_search_tells_where_it_is() -> None:
    def told(inference: InferenceStatistics) -> dict[str, Any]:
        read: dict[str, Any] = shown(mount(engine(), explainer=ExplainerStatistics(inference, {})))["inference"]
        return read

    assert told(InferenceStatistics(InferenceState.OFF)) == {"state": "off"}
    assert told(InferenceStatistics(InferenceState.WATCHING)) == {"state": "watching the first reads", "searches": 0}
    attempt = AttemptStatistics("small seeds", 25, 100, 7.4, True)
    assert told(InferenceStatistics(InferenceState.SEARCHING, 1, attempt)) == {
        "state": "searching", "searches": 1, "stage": "small seeds", "seeds_tried": 25, "seeds": 100, "share": 0.25,
        "remaining_s": 7, "with": "numba",
    }  # fmt: skip
    locked = told(InferenceStatistics(InferenceState.LOCKED, 1, None, "torch-random, seed 7", 3))
    assert (locked["hypothesis"], locked["alternatives"]) == ("torch-random, seed 7", 3)


def test_metrics_tell_the_same() -> None:
    text = metrics(mount(engine(job()))).decode()
    for line in (
        'mlfs_reads_total{mountpoint="/data/set",route="page_cache"} 900.0',
        'mlfs_fetched_bytes_total{mountpoint="/data/set",route="pfs"} 1e+09',
        'mlfs_stall_seconds_total{mountpoint="/data/set"} 1.5',
        'mlfs_tier_bytes{mountpoint="/data/set",tier="ssd:/scratch"} 4e+09',
        'mlfs_agreement{job="train",mountpoint="/data/set"} 0.99',
        'mlfs_epoch_agreement{job="train",mountpoint="/data/set",rank="1"} 1.0',
        'mlfs_epoch{job="train",mountpoint="/data/set",rank="0"} 1.0',
        'mlfs_rss_bytes{mountpoint="/data/set"} 6.7108864e+07',
    ):
        assert line in text.splitlines()


def test_counters_for_prometheus_never_fall() -> None:
    """An open that was counted as staged stays so: what is known later is counted apart."""

    def told(counters: Counters) -> list[str]:
        text = metrics(mount(replace(engine(job()), counters=counters.statistics()))).decode()
        return [line for line in text.splitlines() if line.startswith(("mlfs_reads", "mlfs_read_bytes_total"))]

    counters = Counters()
    counters.read("page_cache", 10)
    counters.read("ram", 7)
    before = told(counters)
    counters.taken_back("ram", 1, 10)
    after = told(counters)
    changed = set(after) - set(before)
    assert changed == {'mlfs_reads_taken_back_total{mountpoint="/data/set",route="ram"} 1.0'}
    assert counters.statistics().all.reads["ram"] == Tally(2, 17)
    assert counters.statistics().all.reads["page_cache"] == Tally(0, 0)


def test_how_large_samples_are_is_told_of_whole_samples() -> None:
    one = status(mount(engine(job(deviation_bytes=1e6))))["jobs"]
    two = status(mount(engine(job(deviation_bytes=1e6, files_per_sample=4))))["jobs"]
    assert one[0]["sample_bytes"] == {"mean": 10_000_000, "deviation": 1_000_000}  # type: ignore[index]
    assert two[0]["sample_bytes"] == {"mean": 40_000_000, "deviation": 2_000_000}  # type: ignore[index]
