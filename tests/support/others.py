"""What another user of the machine does: for tests of directories that several users share. They run as root."""

from __future__ import annotations

import os
from collections.abc import Callable

NOBODY = 65534


def somebody_else(action: Callable[[], object]) -> None:
    """Do something as a user without any rights, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.umask(0)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
