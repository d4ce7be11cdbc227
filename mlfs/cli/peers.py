"""`mlfs peers MOUNT [-- COMMAND...]`: the agent of a node, which joins its mount to those of the other nodes.

In: parsed arguments; an MPI job with one such command on each node. Out: the exit code of COMMAND, or of the agent.
Called by `mlfs.cli.commands`. The mount itself needs no MPI and outlives this command, whatever becomes of it.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

from mlfs.cli import client
from mlfs.errors import ConfigError, ExitCode

_EPILOG = """\
examples:
  mpirun -n 4 --map-by ppr:1:node \\
      mlfs peers /data/imagenet -- torchrun ... train.py
  srun --ntasks-per-node=1 \\
      mlfs peers /data/imagenet -- torchrun ... train.py

Each node mounts first (`mlfs mount /data/imagenet`), for instance in the prolog of the batch system.
"""
# What a launcher tells its own process: COMMAND is not that process, and MPI in it would take itself for it.
_LAUNCHERS = ("PMI_", "PMIX_", "HYDI_", "PMI2_")

# COMMAND begins when all nodes have joined, so that its first reads are shared. It does not wait for ever for a node
# that serves another data set, or none.
JOIN_PATIENCE_S = 30.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `peers`."""
    parser = subparsers.add_parser(
        "peers",
        help="join this node's mount to the other nodes' (one a node, under MPI)",
        description="Join the mounts of all nodes of an MPI job: what one node has read of the source, the others get "
        "from it. It stays until COMMAND ends, or without one until the MPI job does.",
        epilog=_EPILOG,
    )
    parser.add_argument("mount", metavar="MOUNT", help="the mount point, the same data set on each node")
    parser.add_argument(
        "--peer-timeout", metavar="SECONDS", type=float, default=1.0,
        help="how long a node that owes an answer may say nothing before its samples come from elsewhere (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "command_words", metavar="COMMAND", nargs="*", help="what to run once the nodes have joined, behind --"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve as the node's agent. The exit code is COMMAND's, or 0."""
    if not args.peer_timeout > 0:
        raise ConfigError(f"--peer-timeout is {args.peer_timeout:g}, must be above 0", "1 is the default")
    if args.command_words and shutil.which(args.command_words[0]) is None:
        raise ConfigError(f"there is no command {args.command_words[0]}", "check the name behind --")
    from mlfs.peers import mpi, process
    from mountd import door

    mountpoint = client.require_mount(args.mount)
    connection = process.connect(door.agent_socket(mountpoint), mountpoint)
    transport = mpi.start()
    stop_read, stop_write = os.pipe()
    os.set_blocking(stop_write, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.write(stop_write, b"!"))
    agent = process.AgentProcess(connection, transport, args.peer_timeout)
    joined = agent.join([stop_read], JOIN_PATIENCE_S)
    sys.stderr.write(_in_words(transport.node, transport.nodes, joined))  # in one piece, beside others
    child = _begin([] if select.select([stop_read], [], [], 0)[0] else args.command_words)
    ends = [stop_read, *([os.pidfd_open(child.pid)] if child else [])]
    whole = agent.run(ends)
    code = _end(child, told=bool(select.select([stop_read], [], [], 0)[0]))
    transport.close(whole, code)
    return code


def _in_words(node: int, nodes: int, joined: bool) -> str:
    if nodes == 1:
        return "mlfs: there are no other nodes in this MPI job: this one serves alone\n"
    if not joined:
        return f"mlfs: node {node} of {nodes} goes on before all have joined: see `mlfs status`\n"
    return f"mlfs: node {node} of {nodes} has joined\n"


def _begin(words: Sequence[str]) -> subprocess.Popen[bytes] | None:
    if not words:
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    try:
        return subprocess.Popen(words, env=environment)
    except OSError as error:
        raise ConfigError(f"{words[0]} cannot be run: {error.strerror}", "check the name behind --") from None


def _end(child: subprocess.Popen[bytes] | None, told: bool) -> int:
    """COMMAND's exit code. It is told to end if this command was; it runs on when only the mount or the peers end."""
    if child is None:
        return ExitCode.OK
    if told and child.poll() is None:
        child.send_signal(signal.SIGTERM)
    code = child.wait()
    return code if code >= 0 else 128 - code
