"""Begins the COMMAND of `mlfs peers` when the node has joined the others, so that its first reads find them.

In: a mount point and a command's words. Out: `words`, which start a process that waits and then becomes the command:
its pid, its signals and its exit code are the command's. A node that does not join within JOIN_PATIENCE_S begins alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

# Agents of one MPI job start together, and join within 0.1 s; on a slow disk their imports may take some seconds.
JOIN_PATIENCE_S = 10.0
LOOK_S = 0.05


def words(mountpoint: str, command: Sequence[str]) -> list[str]:
    """The words that start the command when the node has joined."""
    return [sys.executable, "-P", "-m", __name__, mountpoint, *command]


def main() -> None:
    """Wait, and become the command."""
    mountpoint, *command = sys.argv[1:]
    until_s = time.monotonic() + JOIN_PATIENCE_S
    while not _joined(mountpoint) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"mlfs: {command[0]} cannot be run: {error.strerror}")


def _joined(mountpoint: str) -> bool:
    try:
        with open(os.path.join(mountpoint, ".mlfs", "status"), "rb") as file:
            peers = json.load(file)["peers"]
    except (OSError, ValueError):
        return True  # there is no mount to wait for
    return peers is not None and (bool(peers["joined"]) or bool(peers["refused"]))


if __name__ == "__main__":
    main()
