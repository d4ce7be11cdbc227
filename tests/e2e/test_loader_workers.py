"""A script whose preprocessing is slow: the mount says how many workers it should have, and they gain what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import scripts, slow_preprocessing
from support.mounts import MlfsMount

from mlfs.limits import usable_processors

FILES = 96


def paces(mount: MlfsMount) -> set[int]:
    """The numbers of workers of which the mount knows how fast they are."""
    return {count for count, _ in mount.status()["jobs"][0]["load"]["pace"]}


@pytest.mark.wall_clock
def test_slow_preprocessing_is_told_of_and_the_advice_gains_what_it_says(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for index in range(FILES):
        (data / f"{index:03d}.bin").write_bytes(bytes([index]) * 20_000)
    fields = {
        "name": "train",
        "sampler": "sequential",
        "layout": "sorted",
        "batch_size": slow_preprocessing.BATCH,
        "epochs": 2,
    }
    with MlfsMount(data, "--ram", "16M", "--staging", "16M") as mount:
        script = scripts.Popen(
            [sys.executable, slow_preprocessing.__file__, str(mount.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

        def epoch_s(workers: int) -> float:
            """Register, and have the script load with so many workers: the seconds of its second epoch."""
            assert script.stdin
            assert script.stdout
            mount.register(num_workers=workers, **fields)
            script.stdin.write(f"{workers}\n")
            script.stdin.flush()
            seconds = script.stdout.readline().split()
            mount.settle()
            return float(seconds[1])

        try:
            before_s = epoch_s(1)
            status = mount.status()
            told = status["jobs"][0]["load"]
            load, processors = told["ranks"]["0"], usable_processors()
            assert told["advice"]["workers"] == {"0": processors}
            assert (told["advice"]["gain"] > 1.5) == (processors > 1)
            assert load["limit"] == "preprocessing", load
            assert load["preprocess_s"] >= slow_preprocessing.BATCH * slow_preprocessing.SLEEP_S
            assert "preprocesses" in mount.run("status", str(mount.path)).stdout
            words = ["advise", "workers", "--from-mount", str(mount.path), "--processors", "4"]
            advice = json.loads(mount.run(*words, "--json").stdout)
            assert (advice["workers_now"], advice["workers"]) == ({"0": 1}, {"0": 4})
            assert "rank 0: 4 (now 1)" in mount.run(*words).stdout
            saved = tmp_path / "saved.json"
            saved.write_text(json.dumps(mount.status()))
            for like in (mount.path, saved):
                simulated = json.loads(mount.run("simulate", "--like", str(like), "--json").stdout)
                assert simulated["policies"]["mlfs"]["epochs"], simulated
                # One epoch is over; nothing is faster than its preprocessing, which the status has told.
                compared = simulated["like"]["epochs"]["0"]
                assert 0.3 < compared["simulated"]["seconds"] / compared["measured"]["seconds"] < 3, compared
            assert "epoch 0: measured" in mount.run("simulate", "--like", str(mount.path)).stdout
            gained = before_s / epoch_s(advice["workers"]["0"])
            assert 1.5 < gained < 2 * advice["gain"], (gained, advice)
            assert paces(mount) == {1, 4}
            mount.run("unregister", str(mount.path), "train")
            epoch_s(2)
            assert paces(mount) == {2}, "another script of that name may do something else"
        finally:
            if script.stdin:
                script.stdin.close()
            script.wait()
