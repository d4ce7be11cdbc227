"""What the launcher of the MPI job is told by a node whose agent could not tell it.

MPICH's launcher (Hydra) takes a process that ends without a word for one that has failed: it ends all others, or sends
them a signal. The word is one of MPI_Finalize, which takes all nodes, and an agent that was killed or leaves before the
others cannot have said it. The keeper has the same connection to the launcher, and says it for the agent. Other
launchers take flags for this (docs/peers.md).
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

_PATIENCE_S = 2.0


def say_goodbye() -> None:
    """Say that this process has ended its part in MPI (`finalize` of PMI 1), where Hydra has started it."""
    fd = os.environ.get("PMI_FD", "")
    if "HYDI_CONTROL_FD" not in os.environ or not fd.isdecimal():
        return
    with suppress(OSError):
        os.write(int(fd), b"cmd=finalize\n")
        until_s, answer = time.monotonic() + _PATIENCE_S, b""
        # What the agent has asked for and not heard is answered first. Who ends before the answer was not heard.
        while b"finalize_ack" not in answer and (left_s := until_s - time.monotonic()) > 0:
            if not select.select([int(fd)], [], [], left_s)[0] or not (more := os.read(int(fd), 4096)):
                return
            answer += more
