"""`mlfs status`: every number has its place, missing ones are dashes, watching ends with the mount."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_support import Mounts
from rich.console import Console

from mlfs.cli import main as cli
from mlfs.cli.status import render
from mlfs.errors import ExitCode
from mountd import mounts

STATUS: dict[str, Any] = {
    "headline": "training waited 0.4 % of the time; nothing to do",
    "version": "0.1.0",
    "pid": 4711,
    "source": "/pfs/set",
    "mountpoint": "/data/[set]",
    "state": "serving",
    "uptime_s": 90,
    "messages": ["the seed may be wrong", "the seed may be wrong"],
    "strangers": [{"name": "cp", "pid": 123, "words": "cp (pid 123) reads 1,200 files in directory order"}],
    "neighbours": {"words": "no job follows 800 reads"},
    "opens": 13000,
    "jobs": [
        {
            "name": "train[x]",
            "state": "running",
            "agreement": 0.987,
            "agreement_recent": 0.5,
            "recent_opens": 256,
            "agreed_opens": 12184,
            "observed_opens": 12345,
            "message": "set_epoch is not called",
            "epochs": 90,
            "load": {
                "imbalance": 0.4,
                "imbalanced_steps": 0.25,
                "steps": 64,
                "straggler": 2,
                "advice": {"workers": {"2": 7}, "gain": 2.25},
                "ranks": {
                    "2": {
                        "limit": "preprocessing",
                        "workers": 3,
                        "batches": 64,
                        "batch_bytes": 1000,
                        "waiting_s": 0.001,
                        "preprocess_s": 0.3,
                        "handing_s": 0.02,
                        "idle_s": 0.0,
                        "step_s": 0.107,
                        "next_s": 0.11,
                    }
                },
            },
            "loader": {
                "batch_size": {"value": 64, "from": "registered"},
                "num_workers": {"value": 8, "from": "learned"},
                "prefetch_depth": {"value": None, "from": "unknown", "at_least": 2, "at_most": None},
            },
            "ranks": [
                {
                    "rank": 2,
                    "epoch": 3,
                    "step": 17,
                    "position": 98765,
                    "steps_per_epoch": 500,
                    "waited_s": 12.5,
                    "ahead": {"samples": 321, "bytes": 5 * 2**20, "seconds": 1.25},
                }
            ],
        }
    ],
    "reads": {
        "all": {"ram": {"reads": 11, "bytes": 1024}, "peer": {"reads": 7, "bytes": 3}},
        "epoch": {"ram": {"reads": 4, "bytes": 2048}},
    },
    "fetches": {"pfs": {"count": 66, "bytes": 4096}},
    "stalls": {"count": 9, "total_s": 2.5, "worst_s": 0.75},
    "pfs": {"epoch_bytes": 2**30, "bound_bytes": 3 * 2**30, "total_bytes": 2**40},
    "tiers": [{"name": "ssd:/scratch", "capacity_bytes": 200, "used_bytes": 50, "samples": 33, "errors": 1}],
    "plan": {"keeps": "needed soonest", "evicts": True},
    "staging": {"capacity_bytes": 2**31, "used_bytes": 2**30},
    "manifest": {"files": 1281167, "bytes": 2**37, "scanned_s": 1, "changed": 5},
    "errors": {"source_reads": 3, "none_of_these": 0},
    "memory": {"rss_bytes": 77 * 2**20},
}


def text_of(status: dict[str, Any], width: int = 140) -> str:
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(render(status))
    return capture.get()


def cells(text: str, first: str) -> list[str]:
    """The line that begins with a word, by columns."""
    line = next(line for line in text.splitlines() if line.strip().startswith(first + " "))
    return [cell for cell in line.strip().split("  ") if cell.strip()]


def test_every_number_has_its_place() -> None:
    text = text_of(STATUS)
    for part in (
        "/data/[set]: serving reads for 1 min 30 s (process 4711)",
        "source /pfs/set: 1,281,167 files, 128 GiB, 5 changed since the scan",
        "! the seed may be wrong",
        "beside the jobs: cp (pid 123) reads 1,200 files in directory order\nno job follows 800 reads\n",
        "job train[x]: running, agreement 98.7 %: 12,184 of 12,345 opens that were compared, of 13,000 in all; "
        "50.0 % of the last 256",
        "! set_epoch is not called",
        "loader: batch size 64 (registered), workers 8 (learned), prefetch depth at least 2\n",
        "\n25.0 % of the last 64 steps are uneven (imbalance 40.0 %); rank 2 will",
        "\nwhat each process of a loader does for a batch\n",
        "stalls   9, 2.5 s in all, worst 750 ms",
        "PFS      1 GiB this epoch, bound 3 GiB, 1 TiB in all",
        "plan     what is needed furthest ahead makes room in memory\n",
        "errors   source reads 3\n",
        "memory   77 MiB",
    ):
        assert part in text
    assert "(imbalance 40.0 %); rank 2 will be late in the next steps" in " ".join(text.split())
    assert "others are not seen" not in text
    assert text.startswith("training waited 0.4 % of the time; nothing to do\n")
    assert text.count("the seed may be wrong") == 1
    assert [cell.strip() for cell in cells(text, "2")] == ["2", "3/90", "17/500", "98,765", "321", "5 MiB", "1.2 s"]
    load = [cell.strip() for cell in cells(text[text.index("what each process of a loader") :], "2")]
    assert load == ["2", "3", "7", "1 ms", "300 ms", "20 ms", "0 s", "107 ms", "preprocessing"]
    assert [cell.strip() for cell in cells(text, "RAM")] == ["RAM", "4", "2 KiB", "11", "1 KiB", "-", "-"]
    assert [cell.strip() for cell in cells(text, "PFS")] == ["PFS", "-", "-", "-", "-", "66", "4 KiB"]
    assert [cell.strip() for cell in cells(text, "peers")] == ["peers", "-", "-", "7", "3 B", "-", "-"]
    tier = [cell.strip() for cell in cells(text, "ssd:/scratch")]
    assert tier == ["ssd:/scratch", "50 B", "200 B", "25.0 %", "33", "1"]
    assert [cell.strip() for cell in cells(text, "staging")][:4] == ["staging", "1 GiB", "2 GiB", "50.0 %"]


@pytest.mark.promise("told-narrow")
@pytest.mark.parametrize("width", [20, 30, 40])
def test_no_number_is_lost_or_broken_on_a_narrow_terminal(width: int) -> None:
    lines = [line.strip() for line in text_of(STATUS, width).splitlines()]
    for line in (
        "rank 2",
        "epoch: 3/90",
        "step: 17/500",
        "position: 98,765",
        "bytes: 5 MiB",
        "name ssd:/scratch",
        "samples: 33",
    ):
        assert line in lines
    assert "ahead: samples: 321" in " ".join(lines)


def test_a_search_that_has_not_begun_says_that_it_gets_ready() -> None:
    told = {"state": "searching", "stage": "common seeds", "seeds_tried": 0, "seeds": 1 << 20, "share": 0.0}
    text = text_of({"inference": told})
    assert "getting ready to try 1,048,576 seeds (common seeds): " in text
    assert "0 of 1,048,576" not in text
    assert "25 of 1,048,576 tried" in text_of({"inference": told | {"seeds_tried": 25}})


def test_why_no_order_was_found_is_said() -> None:
    told = {"state": "no order that mlfs knows explains the reads", "searches": 1, "why": "its seed is not known"}
    assert "no order that mlfs knows explains the reads: its seed is not known" in text_of({"inference": told})


@pytest.mark.parametrize(
    ("nodes", "rounds", "said"),
    [(1, 1, "dealt to 1 node; 83.0 % of the randomness of a uniform shuffle, in 1 round; nodes keep 25.0 %"),
     (2, 4, "dealt to 2 nodes; 83.0 % of the randomness of a uniform shuffle, in 4 rounds; nodes keep 25.0 %")],
)  # fmt: skip
def test_the_served_order_is_told_of_in_words(nodes: int, rounds: int, said: str) -> None:
    spec = {"serve": "opportunistic", "nodes": [{}] * nodes, "level_reached": 0.83, "rounds": rounds, "kept": 0.25}
    assert said in text_of({"jobs": [{"name": "train", "spec": spec}]})
    assert "dealt to 0 nodes; 83.0 % of" in text_of({"jobs": [{"spec": {"serve": "x", "level_reached": 0.83}}]})


def test_whatever_is_missing_or_odd_is_a_dash() -> None:
    assert "no job is registered" in text_of({})
    odd: dict[str, Any] = {key: None for key in STATUS}
    assert "stalls   -, - in all, worst -" in text_of(odd)
    for key in STATUS:
        assert text_of({name: value for name, value in STATUS.items() if name != key})
    assert "- of - opens that were compared" in text_of({"jobs": [{"name": "x", "ranks": [{}]}]})
    assert "0 B" in text_of({"tiers": [{"name": "ram", "capacity_bytes": 0, "used_bytes": 0}]})


def test_json_is_passed_on_and_tables_are_not_cut(
    open_dir: Path, tiny: Mounts, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(open_dir / "m")
    os.mkdir(path)
    server = tiny.start(path)
    assert cli.main(["status", "--json", path]) == 0
    assert json.loads(capsys.readouterr().out)["pid"] == server.pid
    assert cli.main(["status", path]) == 0
    assert f"{path}: serving reads" in capsys.readouterr().out
    tiny.kill(server)
    assert cli.main(["status", path]) == ExitCode.NOT_MOUNTED
    assert "is gone" in capsys.readouterr().err


def test_usage_of_watch(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--watch"]) == ExitCode.USAGE
    assert cli.main(["status", "/proc", "--watch", "x"]) == ExitCode.NOT_MOUNTED
    # The path right behind --watch is the path.
    capsys.readouterr()
    assert cli.main(["status", "--watch", "/nowhere"]) == ExitCode.NOT_MOUNTED
    assert "/nowhere is not" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["unmounted", "interrupted"])
def test_watching_ends_quietly(open_dir: Path, tiny: Mounts, ending: str) -> None:
    path = str(open_dir / "m")
    os.mkdir(path)
    tiny.start(path)
    argv = [sys.executable, "-m", "mlfs.cli.main", "status", path, "--watch", "100ms", "--json"]
    watch = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watch.stdout is not None
    for _ in range(2):
        # Twice the first line of a whole object: it did go round.
        while watch.stdout.readline() != b"{\n":
            pass
    if ending == "interrupted":
        watch.send_signal(signal.SIGINT)
    else:
        assert mounts.unmount(path) or mounts.detach(path) is None
    _, stderr = watch.communicate(timeout=60)
    assert watch.returncode == 0
    assert stderr == (b"" if ending == "interrupted" else f"mlfs: the mount at {path} is gone\n".encode())


def test_how_uneven_ranks_are_is_left_out_where_no_two_were_seen_and_is_said_to_be_of_this_node() -> None:
    status = copy.deepcopy(STATUS)
    job = status["jobs"][0]
    job["spec"] = {"world_size": 8}
    said = "25.0 % of the last 64 steps are uneven (imbalance 40.0 %) of this node's ranks; others are not seen;"
    assert said in text_of(status)
    job["load"] |= {"imbalance": None, "imbalanced_steps": None, "steps": 0, "straggler": None}
    text = text_of(status)
    assert "uneven" not in text
    assert "what each process of a loader does for a batch" in text
