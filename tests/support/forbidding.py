"""Runs a command under a seccomp filter that lets some system calls fail, as a container's profile does.

In: `python forbidding.py ERRNO NUMBER,NUMBER... COMMAND...`. Out: the command in this process's place. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

PR_SET_SECCOMP, FILTER = 22, 2
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
ALLOW, ERROR = 0x7FFF0000, 0x00050000


def main() -> None:
    """See the module."""
    number, calls, *command = sys.argv[1:]
    steps = [(LOAD, 0, 0, 0)]
    for call in calls.split(","):
        steps += [(IF_EQUAL, 0, 1, int(call)), (RETURN, 0, 0, ERROR | int(number))]
    steps.append((RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "no seccomp filter can be set")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
