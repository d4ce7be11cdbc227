"""What `scripts/bench versus` makes of its figures; the runs themselves take minutes."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
told = importlib.import_module("benchmark.versus_table")

OURS = told.Figures(
    told.MLFS,
    ready_s=1.0,
    first_batch_s=1.5,
    epochs_s=(4.0, 1.0, 3.0, 2.0),
    all_s=11.5,
    source_mb=100.0,
    memory_mb=120.0,
    page_cache_mb=100.0,
    disk_mb=0.0,
)
LOCAL = replace(OURS, name=told.LOCAL, all_s=10.0, source_mb=0.0)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_table_has_a_line_a_way_and_its_time_of_the_local_disks() -> None:
    head, ruler, *rows = told.table([OURS, LOCAL])
    assert len({len(line) for line in (head, ruler, *rows)}) == 1, "the columns stand below each other"
    by_heading = dict(zip(cells(head), cells(rows[0]), strict=True))
    assert by_heading["over"] == told.MLFS
    assert (by_heading["epoch 0, s"], by_heading["later epoch, s"]) == ("4.00", "2.00")
    assert (by_heading["memory, MB"], by_heading["all, of a local disk"]) == ("120", "1.15")
    assert cells(rows[1])[-1] == "1.00"
    assert cells(told.table([OURS])[2])[-1] == "", "without a local disk no time is compared with its"


def test_a_way_that_cannot_be_gone_stands_in_the_table_with_the_reason() -> None:
    *_, ours, left_out = told.table([OURS], {"NFS": "no NFS server runs"})
    assert cells(left_out)[0] == "NFS: not here, no NFS server runs"
    assert left_out.count("|") == ours.count("|"), "it is a line of the same table"
    assert not any(cells(left_out)[1:])


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"memory_mb": 3.0}, "memory (MB, mlfs 120): peer 3"),
        ({"first_batch_s": 0.5}, "first batch (s, mlfs 1.50): peer 0.50"),
        ({"memory_mb": 116.0, "first_batch_s": 1.45, "all_s": 11.0}, "in nothing that is told here"),  # noise
        ({"all_s": 20.0, "memory_mb": 500.0}, "in nothing that is told here"),
    ],
)
def test_what_others_do_better_is_said_and_noise_is_not(other: dict[str, float], expected: str) -> None:
    line = told.others_do_better([replace(OURS, name="peer", **other), OURS, replace(LOCAL, all_s=1.0)])
    assert line == f"others do better than {told.MLFS}: {expected}"


def test_rounds_give_the_median_of_each_figure() -> None:
    rounds = [
        replace(OURS, all_s=all_s, epochs_s=(first, 1.0)) for all_s, first in ((3.0, 9.0), (1.0, 8.0), (2.0, 1.0))
    ]
    middle = told.middle(rounds)
    assert (middle.all_s, middle.epochs_s) == (2.0, (8.0, 1.0))
    assert (middle.name, middle.source_mb) == (OURS.name, OURS.source_mb)
