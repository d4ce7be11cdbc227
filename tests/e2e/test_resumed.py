"""Trainings that end in the middle of an epoch and go on, as torch, torchdata, accelerate, Lightning, HF Trainer,
litdata and mlfs' own sampler do it: the mount follows them, and the auditor says of them what is so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import scripts
from support.mounts import MlfsMount
from support.trees import make_classes

FILES, STEPS, BATCH, SEED = 1200, 20, 24, 2024
SCRIPT = Path(__file__).parent / "frameworks" / "resume_script.py"
REST = FILES - STEPS * BATCH


class Way(NamedTuple):
    """How a run goes on.

    Attributes:
        fields: what is registered. rest: samples of epoch 1 that the second run reads. before, after: ranks.
        epochs: on a busy machine half an epoch of so few files is read before another number of ranks is found.
        resumed: whether the second run is registered, with `--resume` and what rank 0 has saved.
        said: what the mount finds out. found: the kinds of what the auditor finds.
    """

    fields: dict[str, Any]
    rest: int = REST
    before: int = 1
    after: int = 1
    epochs: int = 3
    resumed: bool = False
    said: tuple[str, ...] = ()
    found: tuple[str, ...] = ()


TORCH = {"sampler": "torch-distributed"}
WAYS = {
    "epoch": Way(TORCH, FILES, 2, 2),  # set_epoch(1), from the beginning of the epoch
    "stateful": Way(TORCH, REST, 2, 2),
    "stateful, told": Way(TORCH, REST, 2, 2, resumed=True),
    "accelerate": Way({"preset": "accelerate", "use_seedable_sampler": True}),
    "lightning": Way({"sampler": "torch-random"}, epochs=4, said=("draws 2 words",), found=("epoch-replayed",)),
    "elastic": Way(TORCH, REST, 2, 3, epochs=4, said=("world size is 3, not 2",)),
    "elastic, told": Way(TORCH, REST, 2, 3, resumed=True),
}
OF_OTHER_LIBRARIES = {"trainer": Way({"preset": "hf-trainer"})}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Small files in class directories."""
    return make_classes(tmp_path / "images", FILES, 3, lambda index: index.to_bytes(4, "big") * 500)


class Scripts:
    """The process whose forks train."""

    def __init__(self, directory: Path) -> None:
        self._outs = directory
        own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RANK": "0", "WORLD_SIZE": "1"}
        pipe = subprocess.PIPE
        words = [sys.executable, str(SCRIPT)]
        self._program = scripts.Popen(words, env=os.environ | own, stdin=pipe, stdout=pipe, text=True)

    def run(
        self, how: str, world: int, root: Path, state: Path, epochs: int, *seeds: int
    ) -> list[dict[int, list[int]]]:
        """By seed the samples that all ranks have read, by epoch. Those of all seeds run side by side."""
        runs = [
            {
                "how": how, "root": str(root), "state": str(state), "out": str(self._outs / f"{seed}.{rank}"),
                "rank": rank, "world": world, "seed": seed, "steps": STEPS, "epochs": epochs,
            }
            for seed in seeds for rank in range(world)
        ]  # fmt: skip
        pipes = self._program.stdin, self._program.stdout
        assert None not in pipes
        print(json.dumps(runs), file=pipes[0], flush=True)
        assert json.loads(pipes[1].readline()) == [0] * len(runs)
        found = []
        for seed in seeds:
            read: dict[int, list[int]] = {}
            for rank in range(world):
                for epoch, samples in json.loads((self._outs / f"{seed}.{rank}").read_text()).items():
                    read.setdefault(int(epoch), []).extend(samples)
            found.append(read)
        return found

    def end(self) -> None:
        """End it."""
        self._program.communicate()


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    """Imports its libraries once."""
    trainings = Scripts(tmp_path_factory.mktemp("scripts"))
    yield trainings
    trainings.end()


@pytest.mark.parametrize(
    "name", [*WAYS, *(pytest.param(name, marks=pytest.mark.oracle) for name in OF_OTHER_LIBRARIES)]
)
def test_a_run_that_goes_on_is_followed(name: str, trainings: Scripts, images: Path, tmp_path: Path) -> None:
    way, how = (WAYS | OF_OTHER_LIBRARIES)[name], name.partition(",")[0]
    state = tmp_path / "state"
    job = {"seed": SEED, "epochs": way.epochs, "batch_size": BATCH // way.before, "world_size": way.before} | way.fields
    with MlfsMount(images) as mount:
        mount.register(**job)
        [first] = trainings.run(how, way.before, mount.path, state, way.epochs, SEED)
        mount.settle()
        state.touch()
        if way.resumed:
            job |= {"batch_size": BATCH // way.after, "world_size": way.after}
            flags = [f"--{field.replace('_', '-')}={value}" for field, value in job.items()]
            mount.run("register", str(mount.path), *flags, f"--resume={state.with_suffix('.0')}")
        [second] = trainings.run(how, way.after, mount.path, state, way.epochs, SEED)
        mount.settle()
        [status] = mount.status()["jobs"]
        findings = mount.findings()
    assert len(first[1]) == STEPS * BATCH
    assert len(second[1]) == way.rest
    assert sorted(second[2]) == list(range(FILES))
    if way.rest < FILES and how != "lightning":
        assert sorted(first[1] + second[1]) == list(range(FILES))
    by_epoch = status["agreement_by_epoch"]
    last = max(map(int, by_epoch))  # Lightning's is the one before: its order has begun anew
    assert last == way.epochs - 1 - (how == "lightning")
    assert by_epoch[str(last)]["observed_opens"] >= 0.95 * FILES
    followed = range(1 if way.resumed else last, last + 1)
    assert all(by_epoch[str(epoch)]["agreement"] >= 0.95 for epoch in followed), status
    assert [said in found for said, found in zip(way.said, status["found_out"], strict=True)] == [True] * len(way.said)
    assert [finding.partition(":")[0] for finding in findings] == list(way.found)


@pytest.mark.oracle
def test_a_run_with_litdata_that_goes_on_is_followed(trainings: Scripts, tmp_path: Path) -> None:
    """Its workers open each chunk three times, and the next four whenever they come to one."""
    source, state = tmp_path / "source", tmp_path / "state"
    source.mkdir()
    (tmp_path / "mnt").mkdir()
    trainings.run("chunks", 1, source, state, 1, SEED)
    job = ["--preset=litdata", f"--seed={SEED}", "--epochs=3", f"--group-batch={BATCH}", "--num-workers=2"]
    agreement = []
    with MlfsMount(source, mountpoint=tmp_path / "mnt") as mount:
        reads = []
        for resume in [], [f"--resume={state.with_suffix('.0')}"]:
            mount.run("register", str(mount.path), *job, *resume)
            reads += trainings.run("litdata", 1, mount.path, state, 3, SEED)
            mount.settle()
            by_epoch = mount.status()["jobs"][0]["agreement_by_epoch"]
            agreement.append({epoch: (one["agreement"], one["observed_opens"]) for epoch, one in by_epoch.items()})
            state.touch()
        assert mount.findings() == []
    assert sorted(reads[0][1] + reads[1][1]) == sorted(reads[1][2]) == list(range(STEPS * BATCH))
    followed = [agreement[run][epoch] for run, epoch in ((0, "0"), (0, "1"), (1, "1"), (1, "2"))]
    assert all(share >= 0.95 and opens >= STEPS // 2 for share, opens in followed), agreement


def test_a_sweep_reads_the_source_once(trainings: Scripts, images: Path, tmp_path: Path) -> None:
    """Runs with other seeds, one after another and at once, that nobody has registered."""
    begins = tmp_path / "begins"
    begins.touch()
    begins.with_suffix(".0").write_text(json.dumps({"epoch": 0}))
    with MlfsMount(images, "--ram", "64M", infer=True) as mount:
        for seeds in ((1,), (2, 3)):
            for run in trainings.run("epoch", 1, mount.path, begins, 2, *seeds):
                assert all(sorted(epoch) == list(range(FILES)) for epoch in run.values())
            mount.settle()
            assert mount.status()["fetches"]["pfs"]["count"] == FILES
