"""The nodes of a cluster on one machine: a mount each, and a training with one rank a node.

In: a network (scripts/cluster_net.py), a work directory. Out: `Cluster`: commands on nodes, mounts, training runs under
mpiexec with or without the agents of `mlfs peers`, what the mounts counted. Called by scripts/demo_cluster.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_net import Network
from demo import BIN, SCRIPTS, Run, console, end
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

PORT = 29511  # of the training's own rendezvous, on the first node
COMMAND_TIMEOUT_S = 60.0
# Four nodes share this machine's cores, and whatever else it does: a node that has to wait for a core is not lost.
PEERS = ("--peer-timeout", "10")


@dataclass
class Node:
    """A node: its mount's place, and what its commands find in their environment."""

    number: int
    data: Path
    environment: dict[str, str]


class Cluster:
    """See the module."""

    def __init__(self, network: Network, work: Path) -> None:
        self._network = network
        self._work = work
        self.nodes = []
        for number in range(network.nodes):
            base = work / f"node{number}"
            for directory in ("data", "run", "cache"):
                (base / directory).mkdir(parents=True)
            places = {"XDG_CACHE_HOME": str(base / "cache"), "MLFS_RUNTIME_DIR": str(base / "run")}
            self.nodes.append(Node(number, base / "data", places))

    # -- mounts

    @contextlib.contextmanager
    def mounted(self, source: Path, flags: Sequence[str]) -> Iterator[None]:
        """All nodes mount, one after the other: the first one scans the source, the others take its index."""
        try:
            for node in self.nodes:
                self.command(node, "mlfs", "mount", source, node.data, *flags, "--index", self._work / "index")
            yield
            for node in self.nodes:
                self.command(node, "mlfs", "unmount", node.data)
        finally:
            for node in self.nodes:  # nothing is mounted any more, unless something failed
                words = [BIN / "mlfs", "unmount", node.data, "--force"]
                environment = os.environ | node.environment
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run(
                        words, check=False, capture_output=True, env=environment, timeout=COMMAND_TIMEOUT_S
                    )  # fmt: skip

    def command(self, node: Node, *words: str | Path, quiet: bool = False) -> str:
        """Run a command on a node, shown as a user would type it there. Its failure ends the demo."""
        if not quiet:
            shown = " ".join(str(word) for word in words)
            console.print(f"node{node.number} $ {shown}", style="bold", soft_wrap=True, highlight=False)
        # The output goes to files: a daemon that kept a pipe's end open would keep us waiting for its end.
        out, err = self._work / "command.out", self._work / "command.err"
        with open(out, "w") as out_file, open(err, "w") as err_file:
            done = subprocess.run(
                [*self._network.inside(node.number), BIN / words[0], *words[1:]],
                check=False, stdout=out_file, stderr=err_file, env=os.environ | node.environment,
                timeout=COMMAND_TIMEOUT_S,
            )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"demo: {words[0]} failed with {done.returncode}\n{out.read_text()}{err.read_text()}")
        return out.read_text()

    def statuses(self) -> list[dict[str, Any]]:
        """What the mounts say of themselves."""
        return [
            json.loads(self.command(node, "mlfs", "status", node.data, "--json", quiet=True)) for node in self.nodes
        ]

    def fetched(self) -> Counter[str]:
        """The bytes that all mounts fetched, by route."""
        total: Counter[str] = Counter()
        for node in self.nodes:
            status = json.loads((node.data / ".mlfs" / "status").read_bytes())
            total.update({route: tally["bytes"] for route, tally in status["fetches"].items()})
        return total

    def all_to_all_s(self, count: int) -> float:
        """The seconds in which each node sends so many bytes to each other one over plain TCP, all at once."""
        addresses = [self._network.address(node.number) for node in self.nodes]
        ranks = [
            subprocess.Popen(
                [
                    *self._network.inside(node.number), sys.executable, str(SCRIPTS / "all_to_all.py"),
                    str(node.number), str(count), *addresses,
                ],
                stdout=subprocess.PIPE, text=True, start_new_session=True,
            )
            for node in self.nodes
        ]  # fmt: skip
        try:
            return max(float(rank.communicate(timeout=COMMAND_TIMEOUT_S)[0]) for rank in ranks)
        finally:
            for rank in ranks:
                end(rank)

    # -- training

    def train(
        self, run: Run, data: Callable[[Node], Path], words: Sequence[str], ended: Callable[[], None],
        register: Sequence[str] = (), program: str = "train_demo.py",
    ) -> None:  # fmt: skip
        """A training run with one rank a node.

        Args:
            data: where a node reads. words: of the training script. ended: called when an epoch has ended.
            register: the flags of `mlfs register`; where there are any, the training runs under the agents.
            program: the training script, one of these here.
        """
        epochs = int(words[words.index("--epochs") + 1])
        launch = self._launch(data, self._script(program, words, register), bool(register))
        columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
        log = self._work / f"{run.name}.log"
        with open(log, "w") as errors, Progress(*columns, console=console) as progress:
            bar = progress.add_task(f"training, {run.name}: epoch 1 of {epochs}", total=epochs)
            process = subprocess.Popen(
                launch, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True,
                start_new_session=True, env=os.environ | self._network.environment,
            )  # fmt: skip
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if not line.startswith("{"):  # what the launcher and `mlfs register` have to say
                        errors.write(line)
                    elif run.note(json.loads(line)):
                        ended()
                        self._show(progress, bar, run, epochs)
                code = process.wait()
            finally:
                end(process)
        if code or len(run.epochs) < epochs:
            raise SystemExit(f"demo: the training failed with exit code {code}\n{log.read_text()}")

    @staticmethod
    def _show(progress: Progress, bar: TaskID, run: Run, epochs: int) -> None:
        if not console.is_terminal:  # a log shows no bar
            console.print(f"  {run.name}: epoch {len(run.epochs)} of {epochs} is done")
        text = f"training, {run.name}: epoch {min(len(run.epochs) + 1, epochs)} of {epochs}"
        progress.update(bar, completed=len(run.epochs), description=text)

    def _script(self, program: str, words: Sequence[str], register: Sequence[str]) -> Path:
        """What each node runs. The job is registered on one of them, when all have joined."""
        path = self._work / "job.sh"
        lines = [f'[ "$RANK" != 0 ] || mlfs register "$DATA" {" ".join(register)}'] if register else []
        lines += [f'exec python "$SCRIPTS/{program}" "$DATA" {" ".join(words)}']
        path.write_text("set -e\n" + "\n".join(lines) + "\n")
        agent = f'mlfs peers "$DATA" {" ".join(PEERS)} -- ' if register else ""
        console.print(f"$ mpiexec -n {len(self.nodes)} -ppn 1 {agent}sh job.sh", style="bold", highlight=False)
        for line in lines:
            console.print(f"  job.sh: {line}", style="dim", highlight=False, markup=False, soft_wrap=True)
        return path

    def _launch(self, data: Callable[[Node], Path], script: Path, peers: bool) -> list[str]:
        """The words that run a script on all nodes."""
        hosts = ",".join(self._network.address(node.number) for node in self.nodes)
        launch = [str(BIN / "mpiexec"), "-launcher", "ssh", "-launcher-exec", str(self._network.launcher)]
        launch += ["-iface", self._network.interface, "-hosts", hosts, "-ppn", "1"]
        everywhere = {
            "WORLD_SIZE": str(len(self.nodes)), "MASTER_ADDR": self._network.address(0), "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "SCRIPTS": str(SCRIPTS),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }  # fmt: skip
        for node in self.nodes:
            environment = everywhere | node.environment | {"RANK": str(node.number), "DATA": str(data(node))}
            launch += [":"] if node.number else []
            launch += ["-n", "1", *(word for name, value in environment.items() for word in ("-env", name, value))]
            launch += [str(BIN / "mlfs"), "peers", str(node.data), *PEERS, "--"] if peers else []
            launch += ["sh", str(script)]
        return launch
