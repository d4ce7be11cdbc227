"""Commands by ioctl(2): the way in where the control file cannot be written, as the kernel lets ioctl(2) through.

In: a line, a descriptor of a control file that is open for reading, in the process that gives the command. Out: calls
that `mountd.requests` takes, a part of the line each. Called through `mountd.interface` by commands; the daemon uses it
too.
"""

from __future__ import annotations

import fcntl

# _IOC(_IOC_WRITE, 'm', 1, size): the size of a part stands in the bits that the mask leaves out.
COMMAND_CALL = 1 << 30 | ord("m") << 8 | 1
COMMAND_MASK = 0xC000FFFF
_LONGEST_PART_BYTES = (1 << 14) - 1


def tell_in_parts(fd: int, line: bytes) -> None:
    """Give a line, which ends with a newline. Raises: OSError, EINVAL for one that is refused."""
    for start in range(0, len(line), _LONGEST_PART_BYTES):
        part = bytearray(line[start : start + _LONGEST_PART_BYTES])
        fcntl.ioctl(fd, COMMAND_CALL | len(part) << 16, part)
