"""`python -m mountd --config-fd N --status-fd M`: the holder of one mount, as `mlfs mount` starts it, and its server.

With `--foreground N` it is what systemd has started; by N it sees that what tells of the start has ended.

A server whose holder has died starts another one: `--config-fd N --channel-fd M --server PID --restarts A
--holder-restarts B`.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys

from mountd.holder import MountHolder, Serve

# Why a mount ends is said in less, also on a busy machine.
TOLD_S = 5.0


def load() -> Serve:
    """In a process that is to serve: load what it does.

    Garbage is not looked for while the daemon's modules are imported, nor ever after among what they are made of: all
    of it stays until the process ends, and to look takes a third of the time until a mount serves.
    """
    gc.disable()
    from mountd.daemon import main as serve

    gc.freeze()
    gc.enable()
    return serve


def main() -> int:
    """Hold, or serve in a fork of this process. Returns the exit code of either."""
    if "--config-fd" not in sys.argv:
        print(__doc__, file=sys.stderr)
        return 2
    flags = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    with open(int(flags["--config-fd"]), encoding="ascii") as pipe:
        config = pipe.read()
    if "--server" not in flags:
        report_fd = int(flags["--status-fd"])
        os.set_inheritable(report_fd, False)
        told = os.environ.pop("NOTIFY_SOCKET", "")  # no program that is started from here is to speak for this one
        try:
            code = MountHolder(config, load, report_fd, told if "--foreground" in flags else "").run()
        except OSError as error:  # no process can be had
            from mountd.launch import not_started, reported

            os.write(report_fd, reported(not_started(error)))
            os.close(report_fd)
            code = 1
        if "--foreground" in flags:  # in a container nothing goes on when this process has ended
            select.select([int(flags["--foreground"])], [], [], TOLD_S)
        return code
    from mlfs.processes import OF_SERVER, be_killed_sooner

    be_killed_sooner(-OF_SERVER)  # it is a child of the server
    counts = int(flags["--restarts"]), int(flags["--holder-restarts"])
    channel = socket.socket(fileno=int(flags["--channel-fd"]))
    return MountHolder(config, load).go_on(int(flags["--server"]), channel, *counts)


if __name__ == "__main__":
    sys.exit(main())
