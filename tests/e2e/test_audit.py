"""`mlfs audit` on a real mount: ranks that a launcher has started read in the same order in each epoch, and it is said.

That it says nothing of scripts which are right is looked at where their libraries read: test_frameworks_torch,
test_frameworks_other, test_torch_script.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.mounts import MlfsMount
from support.trees import make_classes

from mlfs.cli import main as cli
from mlfs.errors import ExitCode

FILES, RANKS, EPOCHS = 240, 2, 3
RANK = """
import os, random, sys
root, epochs, seeded = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "seeded"
files = sorted(os.path.join(directory, name) for directory, _, names in os.walk(root) for name in names)
for epoch in range(epochs):
    order = random.Random(epoch if seeded else 0).sample(files, len(files))
    for path in order[int(os.environ["RANK"]) :: int(os.environ["WORLD_SIZE"])]:
        with open(path, "rb") as file:
            file.read()
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Small files in class directories."""
    return make_classes(tmp_path / "images", FILES, 3, lambda index: index.to_bytes(4, "big") * 100)


def launch(mount: MlfsMount, kind: str) -> None:
    """Run all ranks to their ends."""
    command = [sys.executable, "-c", RANK, str(mount.path), str(EPOCHS), kind]
    own = [os.environ | {"RANK": str(rank), "WORLD_SIZE": str(RANKS)} for rank in range(RANKS)]
    ranks = [subprocess.Popen(command, env=environment) for environment in own]
    assert [rank.wait(60) for rank in ranks] == [0] * RANKS


def test_an_order_that_each_epoch_repeats_is_said(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MlfsMount(images) as mount:
        assert cli.main(["audit", str(mount.path)]) == ExitCode.OK
        assert capsys.readouterr().out == "nothing was read yet\n"
        launch(mount, "once")
        found = mount.findings()
        assert cli.main(["audit", str(mount.path)]) == ExitCode.AUDIT
        said = capsys.readouterr().out
        assert cli.main(["audit", str(mount.path), "--json"]) == ExitCode.AUDIT
        audit = json.loads(capsys.readouterr().out)
    assert [sentence.partition(":")[0] for sentence in found] == ["same-order-each-epoch"]
    assert "to mend it: call sampler.set_epoch(epoch) before each epoch" in said
    assert [finding["kind"] for finding in audit["findings"]] == ["same-order-each-epoch"]
    assert sum(epoch["by_one"] for job in audit["jobs"] for epoch in job["epochs"]) == EPOCHS * FILES


def test_nothing_is_said_of_epochs_that_are_shuffled(images: Path) -> None:
    with MlfsMount(images) as mount:
        launch(mount, "seeded")
        assert mount.findings() == []
