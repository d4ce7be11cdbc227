"""What the part `clients` of scripts/bench reads from others' results, and its tables; the runs take minutes."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.append(str(SCRIPTS))
clients = importlib.import_module("benchmark.clients")

TREE_BYTES = 40_960


def summary(use: list[float], samples_s: list[float]) -> str:
    """The part of dlio_benchmark's summary.json that is read."""
    metric = {"train_au_percentage": use, "train_throughput_samples_per_second": samples_s}
    return json.dumps({"epochs": len(use), "metric": metric})


def fio_json(*jobs: tuple[str, int, int]) -> str:
    """fio's output of jobs (name, error, bytes), behind the line that it prints before."""
    told = [
        {"jobname": name, "error": error, "read": {"io_bytes": length, "total_ios": length // 8192}}
        for name, error, length in jobs
    ]
    return "fio: opendir added 209 files\n" + json.dumps({"fio version": "fio-3.33", "jobs": told}, indent=2)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_a_table_has_the_first_epoch_and_medians_of_the_later_ones_beside_the_sources() -> None:
    source = [clients.parse_summary(summary([40, 50, 60, 70], [100, 110, 120, 130])) for _ in range(3)]
    rounds = ([80, 90, 96, 97], [200, 230, 240, 250]), ([10, 20, 30, 40], [20, 30, 40, 50])
    through = [clients.parse_summary(summary(*values)) for values in (*rounds, rounds[0])]
    through = [said._replace(source_bytes=103_000_000, page_cache_share=0.5) for said in through]
    table = clients.dlio_table({("unet3d", "source"): source, ("unet3d", "mlfs"): through})
    assert cells(table[2]) == ["unet3d", "source", "40 %", "60 %", "100", "120", "", "0 MB", ""]
    assert cells(table[3]) == ["unet3d", "mlfs", "80 %", "96 %", "200", "240", "2.00", "103 MB", "50 %"]
    assert len({len(cells(line)) for line in table}) == 1


def test_a_summary_of_one_epoch_is_no_result() -> None:
    with pytest.raises(clients.Failed):
        clients.parse_summary(summary([40], [100]))


@pytest.mark.parametrize(
    ("jobs", "passes"),
    [
        ([("a", 0, TREE_BYTES), ("b", 0, TREE_BYTES)], True),
        ([("a", 0, TREE_BYTES), ("b", 84, TREE_BYTES)], False),  # a wrong block
        ([("a", 0, TREE_BYTES), ("b", 0, TREE_BYTES - 4096)], False),  # a file was left out
        ([], False),
    ],
)
def test_fio_passes_when_each_job_has_compared_all(jobs: list[tuple[str, int, int]], passes: bool) -> None:
    assert clients.passed(clients.parse_fio(fio_json(*jobs)), TREE_BYTES) is passes


@pytest.mark.parametrize("error", [0, 84])
def test_clients_end_with_an_error_where_a_verify_fails_over_a_mount_only(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fio and mlfs do is made up here: fio finds a wrong block over the second mount, and a changed byte at the
    source."""
    runs = iter([("write", 0), ("source", 0), ("mlfs", 0), ("--infer off", error), ("changed", 84)])

    def run_fio(work: Path, what: str, tree: Path) -> list[Any]:
        name, found = next(runs)
        if name == "write":
            (tree / "middle" / "file").write_bytes(bytes(TREE_BYTES))
        jobs: list[Any] = clients.parse_fio(fio_json(("job", found, TREE_BYTES)))
        return jobs

    monkeypatch.setattr(clients, "run_fio", run_fio)
    monkeypatch.setattr(clients, "mount", lambda tree, through, *flags: contextlib.nullcontext(through))
    monkeypatch.setattr(clients, "dlio_faults", lambda work, rounds: [])
    monkeypatch.setattr(clients.shutil, "which", lambda program: program)
    if error:
        with pytest.raises(
            SystemExit, match="a client failed over the mount: fio's verify, mlfs, --infer off"
        ) as ended:
            clients.clients(tmp_path, tmp_path, 1)
        assert ended.value.code, "what is no number ends with 1"
    else:
        clients.clients(tmp_path, tmp_path, 1)


def test_fio_that_fails_and_does_not_say_which_job_ends_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(command: list[Any], **kwargs: Any) -> Any:
        (tmp_path / "fio.json").write_text(fio_json(("job", 0, TREE_BYTES)))
        return SimpleNamespace(returncode=1, stderr="fio: killed")

    monkeypatch.setattr(clients.subprocess, "run", fails)
    with pytest.raises(SystemExit, match="fio could not verify"):
        clients.run_fio(tmp_path, "verify", tmp_path)


def test_fio_without_a_result_has_no_jobs() -> None:
    assert clients.parse_fio("fio: failed parsing opendir=\n") == []


def test_the_table_of_fio_says_which_job_failed_where() -> None:
    found = {
        "source": clients.parse_fio(fio_json(("a", 0, TREE_BYTES), ("b", 0, TREE_BYTES))),
        "mlfs": clients.parse_fio(fio_json(("a", 0, TREE_BYTES), ("b", 84, 8192))),
    }
    table = clients.fio_table(found, TREE_BYTES)
    assert cells(table[2]) == ["a", *["pass, 10 checksums in 5 reads"] * 2]
    assert cells(table[3]) == ["b", "pass, 10 checksums in 5 reads", "FAIL (error 84), 2 checksums in 1 reads"]


def test_the_share_of_the_page_cache_is_told_of_all_reads() -> None:
    routes: dict[str, Any] = {"page_cache": {"reads": 3}, "pfs": {"reads": 1}}
    assert clients.page_cache_share({"reads": {"all": routes}}) == 0.75
    assert clients.page_cache_share({"reads": {"all": {}}}) == 0.0


def test_settings_of_each_workload_scale_one_of_its_own() -> None:
    for workload in clients.WORKLOADS:
        text = (SCRIPTS / f"clients/dlio/workload/scaled_{workload}.yaml").read_text()
        assert f"  - {workload}_h100\n  - _self_\n" in text


def test_each_size_of_file_is_a_multiple_of_each_size_of_block() -> None:
    """Or fio would leave the rest of the files out."""
    units = {"k": 1 << 10, "m": 1 << 20}

    def sizes(name: str, option: str) -> set[int]:
        lines = (SCRIPTS / "clients/fio" / name).read_text().splitlines()
        told = [line.split("=")[1] for line in lines if line.startswith(f"{option}=")]
        return {int(value[:-1]) * units[value[-1]] for value in told}

    files, blocks = sizes("write.fio", "filesize"), sizes("verify.fio", "bs")
    assert len(files) == 3
    assert len(blocks) >= 5
    assert sizes("verify.fio", "verify_interval") == sizes("write.fio", "verify_interval") == {clients.CHECKED_BYTES}
    assert not [(size, block) for size in files for block in blocks if size % block]
