"""`mlfs peers MOUNT [-- COMMAND...]`: the agent of a node, which joins its mount to those of the other nodes.

In: parsed arguments; an MPI job with one such command on each node. Out: the exit code of COMMAND, or of the agent.
Called by `mlfs.cli.commands`. The mount itself needs no MPI and outlives this command, whatever becomes of it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import suppress

from mlfs.cli import client
from mlfs.errors import ConfigError

_EPILOG = """\
examples, with MPICH, Open MPI and Slurm:
  mpiexec -n 4 -ppn 1 \\
      mlfs peers /data/imagenet -- torchrun ... train.py
  mpirun --with-ft ulfm -n 4 --map-by ppr:1:node \\
      mlfs peers /data/imagenet -- torchrun ... train.py
  srun --mpi=pmi2 --kill-on-bad-exit=0 --ntasks-per-node=1 \\
      mlfs peers /data/imagenet -- torchrun ... train.py

Each node mounts first (`mlfs mount /data/imagenet`), for instance in the prolog of the batch system.

COMMAND lives as the mount does: an agent that dies, here or elsewhere, does not
end it, nor does the end of another node's COMMAND. It is no MPI program of this
job. A training that uses MPI is started by a launcher of its own, in the COMMAND
of one node:
  mlfs peers /data/imagenet -- sh -c '[ "$(hostname)" != node1 ] ||
      mpiexec -hosts node1,node2 train'
"""

# COMMAND begins when all nodes have joined, so that its first reads are shared. Nodes of a large job may start minutes
# apart; a node that serves another data set, or none, is not waited for for ever.
JOIN_TIMEOUT_S = 300.0
MOST_SECONDS = 86_400.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Join the mounts of all nodes of an MPI job: what one node has read of the source, the others get "
        "from it. It stays until COMMAND ends, or without one until the MPI job does."
    )
    parser.epilog = _EPILOG
    parser.add_argument("mount", metavar="MOUNT", help="the mount point, the same data set on each node")
    parser.add_argument(
        "--peer-timeout", metavar="SECONDS", type=float, default=1.0,
        help="how long a node that owes an answer may say nothing before its samples come from elsewhere (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--join-timeout", metavar="SECONDS", type=float, default=JOIN_TIMEOUT_S,
        help="how long COMMAND waits for all nodes to join; then it begins, and nodes that come later join later "
        f"(default: {JOIN_TIMEOUT_S:g})",
    )  # fmt: skip
    parser.add_argument(
        "command_words", metavar="COMMAND", nargs="*", help="what to run once the nodes have joined, behind --"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Be the node's keeper. The exit code is COMMAND's, or the agent's."""
    if not 0 < args.peer_timeout <= MOST_SECONDS:
        raise ConfigError(f"--peer-timeout is {args.peer_timeout:g}, must be above 0", "1 is the default")
    if not 0 <= args.join_timeout <= MOST_SECONDS:
        must = f"must be 0 to {MOST_SECONDS:g} seconds"
        raise ConfigError(f"--join-timeout is {args.join_timeout:g}, {must}", f"{JOIN_TIMEOUT_S:g} is the default")
    if args.command_words and shutil.which(args.command_words[0]) is None:
        raise ConfigError(f"there is no command {args.command_words[0]}", "check the name behind --")
    from mlfs.peers import keeper, process
    from mountd import interface

    mountpoint = client.require_mount(args.mount)
    socket = interface.agent_socket(mountpoint)
    process.connect(socket, mountpoint).close()  # nobody waits for other nodes in vain
    return keeper.Keeper(args.command_words, args.join_timeout, _say).run(
        lambda line: process.serve(socket, mountpoint, args.peer_timeout, line)
    )


def _say(words: str) -> None:
    """A line, in one piece beside those of other nodes. COMMAND goes on all the same where nobody hears it."""
    with suppress(OSError):
        sys.stderr.write(f"mlfs: {words}\n")
        sys.stderr.flush()
