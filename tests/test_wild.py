"""What `scripts/wild` concludes from outputs, statuses and recorded opens; the runs themselves take minutes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
report = importlib.import_module("wild_report")
clients = importlib.import_module("wild_clients")

EPOCHS, FILES = 2, 100


def status(reads: int, *jobs: dict[str, Any]) -> dict[str, Any]:
    """As the mount tells it, with half of the reads from the page cache."""
    routes = {"page_cache": {"reads": reads // 2}, "pfs": {"reads": reads - reads // 2}}
    return {"reads": {"all": routes}, "jobs": list(jobs)}


def job(
    agreed: int, observed: int, root: str = "train", seed: int = 0, sampler: str = "torch-random", late: int = 0
) -> dict[str, Any]:
    """All of it in the job's first epoch; `late`: opens that came before it was in force."""
    return job_of({"0": counts(agreed, observed, late)}, root, seed, sampler)


def job_of(
    by_epoch: dict[str, dict[str, Any]], root: str = "train", seed: int = 0, sampler: str = "torch-random"
) -> dict[str, Any]:
    spec = {"root": root, "seed": seed, "sampler": sampler}
    observed = sum(told["observed_opens"] for told in by_epoch.values())
    return {
        "name": "inferred", "inferred": True, "spec": spec, "observed_opens": observed, "agreement_by_epoch": by_epoch
    }  # fmt: skip


def counts(agreed: int, observed: int, late: int = 0) -> dict[str, Any]:
    share = agreed / observed if observed else 0.0
    return {"agreement": share, "agreed_opens": agreed, "observed_opens": observed, "late_opens": late}


def opened(count: int) -> list[bool]:
    """That many opens of the client's training files, and nobody else's."""
    return [True] * count


@pytest.mark.parametrize(
    ("client", "printed", "expected"),
    [
        ("imagenet", "Epoch: [0][ 1/24]\tTime 4.9 ( 4.9)\tData 2.3 ( 2.3)\tLoss 6.92e+00 (6.92e+00)\tAcc@1 0", 1),
        ("imagenet", "=> creating model 'shufflenet_v2_x0_5'\nusing CPU, this will be slow", 0),
        ("torchvision-torchrun", "Epoch: [1]  [ 3/19]  eta: 0:00:04  lr: 0.1  img/s: 210.2  loss: 2.24 (2.38)", 1),
        ("torchvision-torchrun", "Test:   [0/4]  eta: 0:00:00  loss: 2.17 (2.17)  acc1: 9.3 (9.3)", 1),
    ],
)
def test_losses_are_found_where_the_scripts_print_them(client: str, printed: str, expected: int) -> None:
    found = report.losses(f"begins\n{printed}\n{printed}\n", clients.CLIENTS[client].losses)
    assert len(found) == 2 * expected
    assert all(" (" in loss and "Time" not in loss for loss in found)


def test_a_strangers_opens_and_those_of_its_children_are_not_the_clients() -> None:
    lines = [
        report.Opened(10, 1, "train/a/1.jpg"),
        report.Opened(20, 1, "train/a/1.jpg"),  # the stranger
        report.Opened(21, 20, "train/a/1.jpg"),  # started by it
        report.Opened(22, 21, "train/a/1.jpg"),
        report.Opened(10, 1, "val/a/1.jpg"),
        report.Opened(11, 10, "train/a/2.jpg"),
    ]
    assert report.opens_of_client(lines, [20]) == [True, False, False, False, False, True]


def test_opens_count_as_predicted_from_when_the_job_was_there() -> None:
    """mlfs counts what came before as predicted, too: at 60 reads it says that all 60 were, and that 55 came before."""
    looks = [
        status(0),
        status(60, job(60, 60, late=55)),
        status(100, job(100, 100, late=55)),
        status(200, job_of({"0": counts(100, 100, 55), "1": counts(100, 100)})),
    ]
    assert report.true_agreement(looks, opened(200), EPOCHS) == [0.45, 1.0]
    assert report.found_after(looks, opened(200)) == 60


def test_no_read_between_two_looks_is_lost_where_one_job_follows_another() -> None:
    """Each counts from its own first epoch on, and reads come between the last look at one and the first at the other;
    only the reads that told the other one were not predicted."""
    looks = [
        status(60, job(60, 60)),
        status(100, job(100, 100)),
        status(140, job(40, 40, seed=7, late=6)),
        status(200, job(100, 100, seed=7, late=6)),
    ]
    assert report.true_agreement(looks, opened(200), EPOCHS) == [1.0, 0.94]


def test_a_job_that_is_found_again_in_the_same_words_begins_anew() -> None:
    looks = [status(100, job(90, 90)), status(150, job(45, 45, late=5)), status(200, job(95, 95, late=5))]
    assert report.true_agreement(looks, opened(200), EPOCHS) == [0.9, 0.9]


def test_what_only_told_the_order_was_not_predicted() -> None:
    looks = [status(0), status(FILES, job(FILES, FILES, late=FILES)), status(2 * FILES, job(0, 0, seed=7))]
    assert report.true_agreement(looks, opened(2 * FILES), EPOCHS) == [0.0, 0.0]


@pytest.mark.parametrize("other", [{"root": "val"}, {"root": "", "sampler": "sequential"}])
def test_jobs_about_validation_files_do_not_count(other: dict[str, Any]) -> None:
    looks = [status(0), status(100, job(100, 100, **other)), status(200, job(200, 200, **other))]
    assert report.true_agreement(looks, opened(200), EPOCHS) == [0.0, 0.0]
    assert report.found_after(looks, opened(200)) is None


def test_a_registered_job_is_held_against_all_opens() -> None:
    """A job that saw 90 of 100 opens, and predicted those, has predicted 90 %."""
    end = status(200, job_of({"0": counts(90, 90), "1": counts(100, 100)}))
    assert report.registered_agreement(end, 200, EPOCHS) == [0.9, 1.0]


def test_reads_that_told_a_registered_jobs_order_were_not_predicted() -> None:
    end = status(200, job_of({"0": counts(100, 100), "1": counts(100, 100, late=14)}))
    assert report.registered_agreement(end, 200, EPOCHS) == [1.0, 0.86]


@pytest.mark.parametrize(
    ("more", "is_wrong"),
    [
        ({"agreement": [1.0, 1.0], "losses": "equal"}, False),
        ({"agreement": [1.0, 0.998], "losses": "equal"}, True),
        ({"agreement": [1.0, 0.96], "losses": "equal", "least": 0.95}, False),
        ({"agreement": [1.0, 0.94], "losses": "equal", "least": 0.95}, True),
        ({"agreement": [], "losses": "equal"}, True),
        ({"agreement": [1.0, 1.0], "losses": "DIFFER"}, True),
        ({"agreement": [1.0, 1.0], "losses": "not compared"}, False),
        ({"problem": "the client failed"}, True),
        ({"mode": "unregistered", "agreement": [0.0, 0.9], "losses": "equal"}, False),
    ],
)
def test_wrong_are_other_losses_and_registered_reads_that_were_not_predicted(
    more: dict[str, Any], is_wrong: bool
) -> None:
    row = report.Row(**{"client": "imagenet", "mode": "registered", "stranger": "cp"} | more)
    assert bool(row.wrong()) == is_wrong


def test_the_table_has_a_cell_for_each_heading() -> None:
    row = report.Row("imagenet", "registered", "none", [1.0, 0.5], {"0": 1.0, "1": 0.5}, 0, 0.876, "equal")
    failed = report.Row("timm", "direct", "none", problem="the client failed with exit code 1")
    lines = report.markdown([row, failed]).splitlines()
    assert [line.count("|") for line in lines] == [len(report.HEADINGS) + 1] * 4
    assert "1.000 0.500" in lines[2]
    assert "87.6%" in lines[2]
    assert "exit code 1" in lines[3]
