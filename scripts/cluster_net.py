"""A network of four nodes on one machine: a network namespace each, joined by a bridge over links that tc limits.

In: how many nodes, the rate of each link. Out: `Network`, a context manager: words that run a command on a node, a
launcher for MPI, the bytes that went over each link. Called by scripts/demo_cluster.py. As root. What an earlier
network of this name has left (its process was killed) is removed first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

NAME = "mlfsdemo"
SUBNET = "198.18.77"  # of the range that is set aside for measuring networks: it is nobody's own
# What may pass at once before the rate holds: some hundred microseconds of a link of 1 Gbit/s, and more than the 64 KiB
# that the kernel hands to a link in one piece.
BURST = "128kb"
# How long a packet may queue before the link drops it. As long as in a cheap switch.
QUEUE = "20ms"
END_TIMEOUT_S = 10.0
NEEDED = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}


class Network:
    """See the module.

    Args:
        rate: of each link, in each direction, as tc writes it (1gbit); empty: no limit.
        directory: where the launcher's script goes.
    """

    def __init__(self, nodes: int, rate: str, directory: Path) -> None:
        self.nodes = nodes
        self._rate = rate
        self._directory = directory
        self._lock = -1

    @property
    def interface(self) -> str:
        """The network's interface on the machine itself."""
        return NAME

    def address(self, node: int) -> str:
        """The address of a node."""
        return f"{SUBNET}.{node + 1}"

    def inside(self, node: int) -> list[str]:
        """The words that run what follows on a node. Unlike `ip netns exec` they leave mounts as they are."""
        return ["nsenter", f"--net=/run/netns/{NAME}{node}"]

    @property
    def environment(self) -> dict[str, str]:
        """Has MPI speak TCP and nothing else: it would find that all nodes share a memory, and the links were idle."""
        names = {"MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"}
        return names | {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"}

    @property
    def launcher(self) -> Path:
        """A script that MPI's mpiexec takes for ssh: it runs a command on the node with an address."""
        path = self._directory / "on_node"
        path.write_text(
            "#!/usr/bin/env bash\n# mpiexec calls: on_node [-x] ADDRESS COMMAND...\n"
            "while [[ $1 == -* ]]; do shift; done\naddress=$1\nshift\n"
            f'exec nsenter --net=/run/netns/{NAME}$((${{address##*.}} - 1)) sh -c "$*"\n'
        )
        path.chmod(0o755)
        return path

    def cut(self, node: int, cut: bool) -> None:
        """Cut the link of a node, or mend it."""
        _run(f"ip link set {NAME}{node} {'down' if cut else 'up'}")

    def sent_bytes(self) -> list[int]:
        """The bytes that each node has sent over its link, by the interface's own counter."""
        return [int(Path(f"/sys/class/net/{NAME}{node}/statistics/rx_bytes").read_text()) for node in range(self.nodes)]

    def __enter__(self) -> Network:
        self._lock = os.open(f"/run/{NAME}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise SystemExit("demo: the network of another demo is up\n  wait until that one has ended") from None
        self._remove()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()
        os.close(self._lock)

    def _make(self) -> None:
        _run(f"ip link add {NAME} type bridge")
        _run(f"ip addr add {SUBNET}.254/24 dev {NAME}")
        _run(f"ip link set {NAME} up")
        for node in range(self.nodes):
            name = f"{NAME}{node}"
            _run(f"ip netns add {name}")
            _run(f"ip link add {name} type veth peer name eth0 netns {name}")
            _run(f"ip link set {name} master {NAME} up")
            _run(f"ip -n {name} addr add {self.address(node)}/24 dev eth0")
            _run(f"ip -n {name} link set eth0 up")
            _run(f"ip -n {name} link set lo up")
            if self._rate:  # each end limits what it sends: the link is as fast in both directions
                limit = f"root tbf rate {self._rate} burst {BURST} latency {QUEUE}"
                _run(f"tc qdisc add dev {name} {limit}")
                _run(f"tc -n {name} qdisc add dev eth0 {limit}")

    def _remove(self) -> None:
        """End all processes on the nodes, which are ours, and remove the network."""
        found = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
        names = [words[0] for line in found.splitlines() if (words := line.split())[0].startswith(NAME)]
        end_all(lambda: {pid for name in names for pid in _pids_of(name)})
        for name in names:
            _run(f"ip netns del {name}", may_fail=True)
            _run(f"ip link del {name}", may_fail=True)
        _run(f"ip link del {NAME}", may_fail=True)


def _pids_of(name: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def end_all(pids: Callable[[], set[int]]) -> None:
    """SIGTERM to all of them, then SIGKILL to those that are left; asked anew, as processes make others."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        until_s = time.monotonic() + END_TIMEOUT_S
        while pids() and time.monotonic() < until_s:
            time.sleep(0.05)


def _run(command: str, may_fail: bool = False) -> None:
    done = subprocess.run(command.split(), check=False, capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise SystemExit(f"demo: {command}\n  {done.stderr.strip()}")


def check_able() -> None:
    """End with one line and the way out where no such network can be made."""
    if os.geteuid() != 0:
        raise SystemExit("demo: network namespaces need root\n  run it as root, or with sudo")
    missing = [(name, package) for name, package in NEEDED.items() if shutil.which(name) is None]
    if missing:
        names, packages = zip(*missing, strict=True)
        raise SystemExit(f"demo: {', '.join(names)} is missing\n  apt-get install {' '.join(sorted(set(packages)))}")
