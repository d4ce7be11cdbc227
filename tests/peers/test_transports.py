"""Both transports keep the same contract: the one over MPI, with real ranks, and its twin in one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import transport_contract
from support.mpi import mpiexec

from mlfs.peers.memory import MemoryNetwork


def test_the_transport_in_one_process_keeps_the_contract() -> None:
    network = MemoryNetwork(2)
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


@pytest.mark.parametrize(("users", "seen"), [({}, "128k None"), ({"UCX_TCP_SNDBUF": "1m"}, "1m 1m")])
def test_settings_of_mpi_are_for_its_start_alone_and_overrule_no_user(users: dict[str, str], seen: str) -> None:
    program = """
import os, mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
from mlfs.peers import mpi
begin, at_start = MPI.Init_thread, []
MPI.Init_thread = lambda level: (at_start.append(os.environ["UCX_TCP_SNDBUF"]), begin(level))
transport = mpi.start()
print(at_start[0], os.environ.get("UCX_TCP_SNDBUF"), flush=True)
transport.close(True, 0)
"""
    environment = {name: value for name, value in os.environ.items() if name != "UCX_TCP_SNDBUF"} | users
    words = [*mpiexec(1), sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.stdout.strip() == seen, done.stdout + done.stderr


def test_an_agent_whose_terminal_is_gone_says_nothing_of_it() -> None:
    program = """
import os, signal
from mlfs.peers import mpi
signal.signal(signal.SIGHUP, signal.SIG_IGN)
transport = mpi.start()
os.kill(os.getpid(), signal.SIGHUP)
transport.close(True, 0)
"""
    words = [*mpiexec(1), sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("", "")
