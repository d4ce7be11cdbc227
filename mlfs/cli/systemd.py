"""What a service of type `notify` tells systemd; see sd_notify(3).

In: the environment of the unit. Out: a datagram. Used by `mlfs mount`, so that what needs the mount starts after it.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def tell_systemd(state: str) -> None:
    """Send the state, as "READY=1", to who started this process; nobody may be there to hear it."""
    address = os.environ.pop("NOTIFY_SOCKET", "")  # a program that this one starts is not to speak for it
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
        # A name that begins with @ is an abstract one, which has a null byte there.
        out.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
