"""Both transports keep the same contract: the one over MPI, with real ranks, and its twin in one process."""

import subprocess
import sys
from pathlib import Path

import transport_contract
from support.mpi import mpiexec

from mlfs.peers.memory import Network


def test_the_transport_in_one_process_keeps_the_contract() -> None:
    network = Network(2)
    roles = [transport_contract.asker(network.port(0)), transport_contract.owner(network.port(1))]
    ended = 0
    for _ in range(100_000):
        for role in roles:
            ended += next(role, "ended") == "ended"
        if ended >= 2:
            return
    raise AssertionError("the roles wait for each other")


def test_the_transport_over_mpi_keeps_the_contract() -> None:
    program = Path(transport_contract.__file__)
    done = subprocess.run(
        [*mpiexec(2), sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"node {node}: the contract is kept" in done.stdout for node in (0, 1)), done.stdout + done.stderr
