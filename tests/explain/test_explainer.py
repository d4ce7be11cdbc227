"""Both cases of explaining without an engine: jobs in a dict, opens as the test makes them, time that jumps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
import trio.testing
from support.explaining import FILES, SearchInline, explaining, order_of, pass_time, simulate

from mlfs.explain.seed_search import SeedSearch
from mlfs.explain.statistics import InferenceState, InferenceStatistics


def test_reads_that_nobody_told_are_explained_until_somebody_registers(tmp_path: Path) -> None:
    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, explainer):
            assert explainer.statistics().inference.state == InferenceState.WATCHING
            files = list(order_of(jobs.manifest, 0, shuffle=False))
            for entry in files[:60]:
                await jobs.read(entry, 7)
            (job, opens, said, _) = jobs.installed[-1]
            assert (job.spec.sampler, job.inferred, opens, said) == ("sequential", True, [], "")
            assert explainer.statistics().inference.state == InferenceState.LOCKED
            assert job.score.agreed == job.score.observed == 60  # also those from before it was found
            await jobs.register(name="told")
            assert list(jobs.jobs) == ["told"]
            assert explainer.statistics().inference.state == InferenceState.IDLE
            for entry in files[60:]:
                await jobs.read(entry, 7)
            assert list(jobs.jobs) == ["told"]
            assert jobs.end("told")
            assert explainer.statistics().inference.state == InferenceState.WATCHING

    simulate(body)


def test_what_was_inferred_ends_when_the_reads_say_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFS_INFER_SEEDS", "0-16")
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SeedSearch)

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, _):
            for entry in order_of(jobs.manifest, 0, shuffle=False):
                await jobs.read(entry, 7)
            (inferred,) = jobs.running.values()
            shuffled = list(order_of(jobs.manifest, 0, seed=3))
            for entry in shuffled[:9]:
                await jobs.read(entry, 8)
            assert inferred in jobs.running.values()  # a few strays are no other order
            for entry in shuffled[9:]:
                await jobs.read(entry, 8)
            (job,) = jobs.running.values()
            assert (job.spec.sampler, job.spec.seed) == ("torch-distributed", 3)
            assert job.score.agreed == job.score.observed == FILES

    simulate(body)


def test_without_leave_nothing_is_inferred(tmp_path: Path) -> None:
    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, explainer):
            for entry in order_of(jobs.manifest, 0, shuffle=False):
                await jobs.read(entry, 7)
            assert not jobs.installed
            assert explainer.statistics().inference == InferenceStatistics(InferenceState.OFF)

    simulate(body)


@pytest.mark.parametrize("infer", [False, True])
def test_a_wrong_registration_is_corrected_once_further_opens_confirm_it(tmp_path: Path, infer: bool) -> None:
    async def body() -> None:
        async with explaining(tmp_path, infer) as (jobs, explainer):
            old = await jobs.register(name="train", seed=5)
            seen = 0
            for entry in order_of(jobs.manifest, 0, seed=42):
                await jobs.read(entry, 7)
                seen += 1
                if seen == 20:
                    assert explainer.statistics().cases["train"].searching
                    assert len(jobs.installed) == 1  # found, but not confirmed
                if len(jobs.installed) == 2:
                    break
            new, opens, said, way_out = jobs.installed[1]
            assert (said, way_out) == ("this job's seed is 42, not 5", "--seed 42")
            assert new.spec.name == "train"
            assert new.spec.seed == 42
            assert seen >= 16 + 12
            assert [opened.sample for opened in opens] == list(order_of(jobs.manifest, 0, seed=42))[:seen]
            assert new.score.agreed >= seen - 1
            assert old.score.agreed < seen / 2
            await trio.testing.wait_all_tasks_blocked()
            case = explainer.statistics().cases["train"]
            assert (case.searching, case.searches) == (False, 1)
            await jobs.register(name="train", seed=5)
            assert explainer.statistics().cases["train"].searches == 0

    simulate(body)


@pytest.mark.parametrize("seed", range(4))
def test_what_waits_to_be_confirmed_is_given_up_once_another_job_has_the_reads(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that reads slowly: its registration is set aside before a correction is confirmed."""
    monkeypatch.setattr("mlfs.explain.attempt.SeedSearch", SearchInline)
    rng = random.Random(seed)
    true, wrong, slow = *rng.sample([0, 1, 5, 42, 77], 2), rng.randrange(18, 26)

    async def body() -> None:
        async with explaining(tmp_path, infer=True) as (jobs, explainer):
            await jobs.register(name="train", seed=wrong)
            for at, entry in enumerate(order_of(jobs.manifest, 0, seed=true)):
                await jobs.read(entry, 7)
                await pass_time(2 if slow <= at < slow + 4 else 0)
            inferred, case = jobs.running.get("inferred"), explainer.statistics().cases["train"]
            assert inferred is None or case.instead is not None
            assert (inferred or jobs.running["train"]).score.agreement_of_last(400) == 1.0
            assert not case.searching

    simulate(body)


def test_what_further_opens_do_not_confirm_is_not_installed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mlfs.explain")

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, explainer):
            await jobs.register(name="train", seed=5)
            right = list(order_of(jobs.manifest, 0, seed=42))[:200]
            stray = [entry for entry in order_of(jobs.manifest, 0, seed=987654321) if entry not in right]
            for entry in right[:18]:
                await jobs.read(entry, 7)
            for entry, other in zip(right[18:], stray, strict=False):  # half of the opens fit
                await jobs.read(entry, 7)
                await jobs.read(other, 7)
            assert explainer.statistics().cases["train"].searches >= 1
            assert len(jobs.installed) == 1
            assert "not confirmed by 96 further opens: this job's seed is 42, not 5" in caplog.text

    simulate(body)


def test_a_job_that_reads_as_registered_again_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Opens in another order, of a look at some samples say, do not change a registration that is right."""
    caplog.set_level("INFO", "mlfs.explain")

    async def body() -> None:
        async with explaining(tmp_path, infer=False) as (jobs, explainer):
            job = await jobs.register(name="train", seed=5)
            for entry in list(order_of(jobs.manifest, 0, seed=42))[:16]:
                await jobs.read(entry, 7)
            for entry in order_of(jobs.manifest, 0, seed=5):
                await jobs.read(entry, 8)
            assert explainer.statistics().cases["train"].searches == 1
            assert list(jobs.jobs.values()) == [job]
            assert job.score.agreement_of_last(500) == 1.0
            assert "reads come as registered again" in caplog.text

    simulate(body)
