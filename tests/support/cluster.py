"""Several nodes on one machine: a mount each, and their agents as real MPI ranks.

In: a source, how many nodes, flags of `mlfs mount`. Out: `MountedCluster`, a context manager. Each node has a state
directory of its own, so that to mlfs they are different machines but for their network.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from mlfs.peers.keeper import AGENT_NAME
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.mpi import mpiexec

JOIN_PATIENCE_S = 60.0


class Network(Protocol):
    """What is used of scripts/cluster_net.py."""

    @property
    def interface(self) -> str: ...

    @property
    def launcher(self) -> Path: ...

    @property
    def environment(self) -> dict[str, str]: ...

    def address(self, node: int) -> str: ...


class MountedCluster:
    """Nodes that have joined while the context lasts.

    Args:
        directory: empty, for mount points and states. command: what each agent runs meanwhile, the node's mount point
            for "{mount}"; empty: nothing. launcher_flags: None: those that tests start MPI with.
        agent: what Python runs as `mlfs`.
        network: a machine's network of its own for each agent (scripts/cluster_net.py); None: they share a memory.
    """

    def __init__(
        self,
        source: Path,
        nodes: int,
        directory: Path,
        *flags: str,
        peer_timeout_s: float = 1.0,
        command: Sequence[str] = (),
        agent: Sequence[str] = ("-m", "mlfs.cli.main"),
        infer: bool = False,
        network: Network | None = None,
        launcher_flags: Sequence[str] | None = None,
        agent_flags: Sequence[str] = (),
    ) -> None:
        self.mounts: list[MlfsMount] = []
        for node in range(nodes):
            mountpoint = directory / f"node{node}"
            mountpoint.mkdir(parents=True)
            mount = MlfsMount(source, *flags, mountpoint=mountpoint, state=directory / f"state{node}", infer=infer)
            self.mounts.append(mount)
        self._timeout = f"{peer_timeout_s:g}"
        self._command = list(command)
        self._agent = list(agent)
        self._network = network
        self._launcher_flags = launcher_flags
        self._agent_flags = list(agent_flags)
        self._entered: list[MlfsMount] = []
        self.launcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> MountedCluster:
        try:
            self._at_once(self._enter, self.mounts)
            self.join()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _enter(self, mount: MlfsMount) -> None:
        mount.__enter__()
        self._entered.append(mount)

    @staticmethod
    def _at_once(call: Callable[[MlfsMount], None], mounts: Sequence[MlfsMount]) -> None:
        """As nodes do it, each for itself; one after the other would take a third of the time of all these tests."""
        with ThreadPoolExecutor(len(mounts)) as pool:
            calls = [pool.submit(call, mount) for mount in mounts]
        for done in calls:
            done.result()

    def join(self) -> None:
        """Start the agents, and wait until all nodes know each other."""
        self.start()
        wait_until(self.joined, JOIN_PATIENCE_S)

    def start(self) -> None:
        """Start the agents."""
        launcher, *options, _, _ = mpiexec(1)
        words = [launcher, *(options if self._launcher_flags is None else self._launcher_flags)]
        environment = os.environ | {"XDG_RUNTIME_DIR": ""}
        if self._network is not None:
            hosts = ",".join(self._network.address(node) for node in range(len(self.mounts)))
            words += ["-launcher", "ssh", "-launcher-exec", str(self._network.launcher)]
            words += ["-iface", self._network.interface, "-hosts", hosts, "-ppn", "1"]
            environment |= self._network.environment
        for number, mount in enumerate(self.mounts):
            agent = [sys.executable, *self._agent, "peers", str(mount.path), "--peer-timeout", self._timeout]
            agent += self._agent_flags
            command = ["--", *(word.replace("{mount}", str(mount.path)) for word in self._command)]
            env = [word for name in ("MLFS_RUNTIME_DIR",) for word in ("-env", name, mount.env[name])]
            words += [*([":"] if number else []), "-n", "1", *env, *agent, *(command if self._command else [])]
        self.launcher = subprocess.Popen(words, env=environment, start_new_session=True)

    def joined(self) -> bool:
        """Whether all nodes have joined."""
        return all((self.peers(node) or {}).get("joined") for node in range(len(self.mounts)))

    def peers(self, node: int) -> dict[str, Any] | None:
        """What a node's status says of the others."""
        found: dict[str, Any] | None = self.mounts[node].status()["peers"]
        return found

    def agents(self) -> list[int]:
        """The pids of the agents by node, 0 for one that is gone."""
        return self._processes(agents=True)

    def keepers(self) -> list[int]:
        """The pids of `mlfs peers` by node, which run agents and COMMANDs; 0 for one that is gone."""
        return self._processes(agents=False)

    def _processes(self, agents: bool) -> list[int]:
        found = [0] * len(self.mounts)
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                is_agent = bool(words) and (entry / "comm").read_text().strip() == AGENT_NAME
            except OSError:
                continue
            is_ours = b"peers" in words and os.fsencode(self._agent[-1]) in words and b"-n" not in words
            if is_ours and is_agent == agents:
                for node, mount in enumerate(self.mounts):
                    if os.fsencode(mount.path) in words:
                        found[node] = int(entry.name)
        return found

    def fetched(self, route: str) -> list[int]:
        """How many samples each node has fetched from there, once nothing is under way."""
        for mount in self.mounts:
            mount.settle()
        return [mount.status()["fetches"].get(route, {"count": 0})["count"] for mount in self.mounts]

    def register(self, node: int, **fields: object) -> None:
        """Register a job on one node, and wait until all have it."""
        self.mounts[node].register(**fields)
        wait_until(lambda: all(self._follows(mount) for mount in self.mounts), JOIN_PATIENCE_S)

    @staticmethod
    def _follows(mount: MlfsMount) -> bool:
        status = mount.status()
        jobs = [job for job in status["jobs"] if not job["inferred"]]
        return bool(jobs) and not status["under_way"]["jobs_to_plan"]

    def leave(self) -> int | None:
        """End the agents as Ctrl-C does; returns the launcher's exit code."""
        if self.launcher is None:
            return None
        for pids, number in ((self.agents(), signal.SIGCONT), (self.keepers(), signal.SIGTERM)):
            for pid in filter(None, pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        try:
            return self.launcher.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.launcher.pid, signal.SIGKILL)
            return self.launcher.wait()

    def _kill(self) -> None:
        for pid in filter(None, [*self.keepers(), *self.agents()]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.launcher is not None and 0 in self.agents():
            self._kill()  # those that are left would wait for those that are gone
        self.leave()
        if self._entered:
            self._at_once(lambda mount: mount.__exit__(kind, error, traceback), self._entered)
