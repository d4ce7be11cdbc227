"""A cluster with a COMMAND on each node: agents die or come late, COMMANDs end, and the launcher says how."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.cluster import MountedCluster
from support.fuse import kill, wait_until
from support.trees import make_tree

NODES = 3
# Trains until it is told its exit code: means are fitted to what is read, whose every byte is compared.
TRAINING = """
import os, pathlib, sys
import numpy as np
mount, source, notes = map(pathlib.Path, sys.argv[1:])
assert os.getsid(0) == os.getpid() and not any(name.startswith("PMI") for name in os.environ)
own, weights, rounds = notes / mount.name, np.zeros(256), 0
while not (told := own.with_suffix(".end")).exists():
    for path in sorted(source.rglob("*.jpg")):
        data = (mount / path.relative_to(source)).read_bytes()
        assert data == path.read_bytes(), path
        counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
        weights += 0.1 * (counts / len(data) - weights)
    rounds += 1
    own.with_suffix(".new").write_text(str(rounds))
    own.with_suffix(".new").rename(own.with_suffix(".rounds"))
own.with_suffix(".checkpoint").write_text(str(weights.sum()))
sys.exit(int(told.read_text()))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    draw = np.random.default_rng(28)
    files = {f"c{number % 3}/f{number:02}.jpg": draw.bytes(int(draw.integers(1, 20_000))) for number in range(60)}
    return make_tree(tmp_path / "source", files)


class Trainings:
    """What the COMMANDs have noted, by node."""

    def __init__(self, directory: Path) -> None:
        self.notes = directory / "notes"
        self.notes.mkdir()

    def command(self, source: Path) -> list[str]:
        """COMMAND, for the node whose mount point is $1."""
        return [sys.executable, "-c", TRAINING, "{mount}", str(source), str(self.notes)]

    def rounds(self, node: int) -> int:
        noted = self.notes / f"node{node}.rounds"
        return int(noted.read_text()) if noted.exists() else 0

    def go_on(self, nodes: Sequence[int]) -> None:
        """Wait until each of these has trained for two rounds more."""
        before = {node: self.rounds(node) for node in nodes}
        wait_until(lambda: all(self.rounds(node) >= before[node] + 2 for node in nodes), 60)

    def end(self, node: int, code: int) -> None:
        (self.notes / f"node{node}.new-end").write_text(str(code))
        (self.notes / f"node{node}.new-end").rename(self.notes / f"node{node}.end")
        wait_until((self.notes / f"node{node}.checkpoint").exists, 60)


@pytest.mark.promise("command-lives")
@pytest.mark.promise("peers-refused")
def test_trainings_live_as_their_mounts_do(source: Path, tmp_path: Path) -> None:
    """Under a launcher with no flags, which ends all processes of a job once one of them has failed."""
    trainings, draw = Trainings(tmp_path), np.random.default_rng(28)
    with MountedCluster(
        source, NODES, tmp_path / "nodes", "--ram", "64M", command=trainings.command(source), launcher_flags=()
    ) as cluster:
        everybody = range(NODES)
        trainings.go_on(everybody)
        first, second, third = map(int, draw.permutation(NODES))
        alone = cluster.mounts[first].run("peers", str(cluster.mounts[first].path), "--", "true", check=False)
        assert alone.returncode == 7
        assert alone.stderr.startswith("mlfs: the mount's server does not let this agent in: its agent (process ")
        assert alone.stderr.count("\n") == 1
        kill(cluster.agents()[first])
        wait_until(lambda: cluster.peers(first) is None, 30)
        says_so = [
            any("all nodes joins them again" in said for said in one.status()["messages"]) for one in cluster.mounts
        ]
        assert says_so == [node == first for node in everybody]
        trainings.go_on(everybody)
        trainings.end(second, 0)  # a node that is done gives what it has until the others are
        trainings.go_on([first, third])
        assert second not in (cluster.peers(third) or {})["lost"]
        code = int(draw.integers(1, 100))
        trainings.end(first, code)
        wait_until(lambda: not cluster.keepers()[first], 30)
        trainings.go_on([third])
        trainings.end(third, 0)
        assert cluster.launcher is not None
        assert cluster.launcher.wait(60) == code


LATE = """
import sys, time
from pathlib import Path
from mlfs.cli.main import main
while sys.argv[2].endswith("node1") and not Path(sys.argv[2] + ".comes").exists():
    time.sleep(0.1)
sys.exit(main())
"""


@pytest.mark.promise("peers-late")
def test_a_node_that_comes_late_joins_those_that_have_begun(source: Path, tmp_path: Path) -> None:
    late, trainings = tmp_path / "late.py", Trainings(tmp_path)
    late.write_text(LATE)
    cluster = MountedCluster(
        source, 2, tmp_path / "nodes", "--ram", "64M", command=trainings.command(source), agent=[str(late)],
        agent_flags=["--join-timeout", "1"],
    )  # fmt: skip
    comes = Path(f"{cluster.mounts[1].path}.comes")
    cluster.join = cluster.start  # type: ignore[method-assign] # they join later
    with cluster:
        trainings.go_on([0])
        assert cluster.peers(0) is None
        comes.touch()
        wait_until(cluster.joined, 60)
        trainings.go_on([0, 1])
        for node in (0, 1):
            trainings.end(node, 0)
        assert cluster.launcher is not None
        assert cluster.launcher.wait(60) == 0
