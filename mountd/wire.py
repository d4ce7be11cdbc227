"""The kernel's side of a FUSE mount, in bytes: the requests that mlfs answers and the structures of their replies.

In: numbers and attributes. Out: bytes for /dev/fuse, and the other way round. Pure. Source: linux/fuse.h, protocol
7.31 and later (Linux 5.4), whose structures only ever grew at their ends; in the machine's byte order. Called by
mountd.requests.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from struct import Struct
from typing import Final

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK = 1, 2, 3, 4, 5, 6
MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK = 8, 9, 10, 11, 12, 13
OPEN, READ, WRITE, STATFS, RELEASE = 14, 15, 16, 17, 18
SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR = 21, 22, 23, 24
OPENDIR, READDIR, RELEASEDIR, CREATE, INTERRUPT, DESTROY, IOCTL = 27, 28, 29, 35, 36, 38, 39
BATCH_FORGET, READDIRPLUS, RENAME2, LSEEK, TMPFILE = 42, 44, 45, 46, 51

DIRECT_IO, KEEP_CACHE = 1, 2  # FOPEN_*
GETATTR_FH: Final = 1  # in struct fuse_getattr_in's flags: who asks has the file open

# A request is read in one go: the longest is a WRITE of 256 pages, which is the most that libfuse agrees to.
LONGEST_REQUEST_BYTES: Final = 256 * mmap.PAGESIZE + 4096

# struct fuse_in_header: len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding; one word of what follows,
# where a request's handle or flags stand. It takes of these: opcode, unique, nodeid, uid, pid and that word.
REQUEST: Final = Struct("=4xIQQI4xI4xQ")
GID: Final = 28  # where the group stands, which is seldom asked for
BODY: Final = 40
NUMBERED: Final = Struct("=IIQ")  # its first words: len, opcode, unique
UNIQUE: Final = 8  # where the last of them stands
NAMES: Final = {LOOKUP: "lookup", GETATTR: "getattr", OPEN: "open", READ: "read", READDIRPLUS: "readdir"}
UNANSWERED: Final = frozenset({FORGET, BATCH_FORGET, INTERRUPT})
REPLY: Final = Struct("=IiQ")  # len, error, unique
OPENED: Final = Struct("=IiQQII")  # the same, fh, open_flags, backing_id
_WRITTEN: Final = Struct("=IiQII")  # the same, size, padding
U32: Final = Struct("=I")
U64: Final = Struct("=Q")
PAIR: Final = Struct("=QQ")  # fuse_forget_one
_INVALIDATION: Final = Struct("=IiQQqq")  # a reply's head, with the kind for its error; ino, off, len
_NAME_FORGOTTEN: Final = Struct("=IiQQII")  # the same; parent, namelen, flags; then the name, and a zero
_STORED: Final = Struct("=IiQQQII")  # the same; nodeid, offset, size, padding; then the data
_INVAL_INODE, _INVAL_ENTRY, _STORE, _RESEND = 2, 3, 4, 7  # FUSE_NOTIFY_*
READ_IN: Final = Struct("=QQI")  # fh, offset, size: of READ, READDIR and WRITE; with `whence` for the size of LSEEK
XATTR_NAME: Final = BODY + 8  # struct fuse_getxattr_in: size, padding; then the name
_XATTR_SIZE: Final = Struct("=II")  # fuse_getxattr_out: size, padding
WRITE_DATA: Final = BODY + 40  # struct fuse_write_in
IOCTL_IN: Final = Struct("=QIIQII")  # fh, flags, cmd, arg, in_size, out_size
IOCTL_DATA: Final = BODY + IOCTL_IN.size
_IOCTL_DONE: Final = Struct("=IiQiIII")  # a reply's head; result, flags, in_iovs, out_iovs
# ino, size, blocks, atime, mtime, ctime, the three's ns, mode, nlink, uid, gid, rdev, blksize, flags
_ATTR: Final = Struct("=QQQqqqIIIIIIIIII")
_ENTRY: Final = Struct("=QQQQII")  # nodeid, generation, entry_valid, attr_valid, their ns
_ATTR_HEAD: Final = Struct("=QII")  # attr_valid, its ns, dummy
_STATFS: Final = Struct("=QQQQQIIII24x")  # blocks, bfree, bavail, files, ffree, bsize, namelen, frsize, padding
_DIRENT: Final = Struct("=QQII")  # ino, off, namelen, type
_BLOCK_BYTES: Final = 4096
_NS: Final = 1_000_000_000
_U32_MASK: Final = 0xFFFFFFFF


def answered(number: int) -> int:
    """The errno to answer where the source fails in that way: ENOSYS the kernel takes for the whole mount, for good."""
    return errno.EOPNOTSUPP if number == errno.ENOSYS else number


def error(unique: int, number: int) -> bytes:
    """A reply without content: an errno, or 0 for done."""
    return REPLY.pack(REPLY.size, -number, unique)


def reply(unique: int, *parts: bytes | bytearray | memoryview) -> bytes:
    body = b"".join(parts)
    return REPLY.pack(REPLY.size + len(body), 0, unique) + body


def invalidation(inode: int, offset: int, size: int) -> bytes:
    """A notification: the kernel shall forget the attributes of an inode, and pages of a range: with size 0 all from
    there on, with offset -1 none."""
    return _INVALIDATION.pack(_INVALIDATION.size, _INVAL_INODE, 0, inode, offset, size)


def name_forgotten(directory: int, name: bytes) -> bytes:
    """A notification: the kernel shall look a name up anew."""
    head = _NAME_FORGOTTEN.pack(_NAME_FORGOTTEN.size + len(name) + 1, _INVAL_ENTRY, 0, directory, len(name), 0)
    return head + name + b"\0"


def stored_head(inode: int, offset: int, size: int) -> bytes:
    """The head of a notification: so many bytes, which follow, are those of an inode from an offset on."""
    return _STORED.pack(_STORED.size + size, _STORE, 0, inode, offset, size, 0)


RESEND: Final = REPLY.pack(REPLY.size, _RESEND, 0)
"""A notification: the kernel shall give all requests again that were read and not answered (Linux 6.9)."""
GIVEN_AGAIN: Final = 1 << 63
"""A bit in the number of a request that is given again: the answer has it, too."""


def attr(
    number: int, mode: int, nlink: int, uid: int, gid: int, rdev: int, size: int, blocks: int, mtime_ns: int,
    ctime_ns: int,
) -> bytes:  # fmt: skip
    """struct fuse_attr; the access time is the time of modification. `number`: the inode number that users see."""
    mtime_s, mtime_part = divmod(mtime_ns, _NS)
    ctime_s, ctime_part = divmod(ctime_ns, _NS)
    return _ATTR.pack(
        number, size, blocks, mtime_s, mtime_s, ctime_s, mtime_part, mtime_part, ctime_part,
        mode, nlink, uid & _U32_MASK, gid & _U32_MASK, rdev & _U32_MASK, _BLOCK_BYTES, 0,
    )  # fmt: skip


def entry(inode: int, generation: int, valid_s: int, attributes: bytes) -> bytes:
    """struct fuse_entry_out: inode 0 for a name that is not there, which the kernel may remember, too.

    The generation tells inodes of this mount from those of another one: a file handle has both. The root's is 0.
    """
    return _ENTRY.pack(inode, generation if inode > 1 else 0, valid_s, valid_s, 0, 0) + attributes


def attributes_reply(unique: int, valid_s: int, attributes: bytes) -> bytes:
    """The reply to GETATTR and SETATTR."""
    return reply(unique, _ATTR_HEAD.pack(valid_s, 0, 0), attributes)


NO_ATTRIBUTES: Final = bytes(_ATTR.size)
UNTOLD: Final = bytes(_ENTRY.size) + NO_ATTRIBUTES
"""Instead of an entry, in a listing: the kernel learns name and type only."""


def statfs_reply(unique: int, below: os.statvfs_result | None) -> bytes:
    """The reply to STATFS: zeros when nothing is known."""
    if below is None:
        return reply(unique, bytes(_STATFS.size))
    return reply(
        unique,
        _STATFS.pack(
            below.f_blocks, below.f_bfree, below.f_bavail, below.f_files, below.f_ffree,
            below.f_bsize, below.f_namemax, below.f_frsize, 0,
        ),
    )  # fmt: skip


def written(unique: int, size: int) -> bytes:
    """The reply to WRITE."""
    return _WRITTEN.pack(_WRITTEN.size, 0, unique, size, 0)


def ioctl_done(unique: int) -> bytes:
    """The reply to IOCTL that is 0 and brings nothing."""
    return _IOCTL_DONE.pack(_IOCTL_DONE.size, 0, unique, 0, 0, 0, 0)


def xattr_reply(unique: int, value: bytes, room_bytes: int) -> bytes:
    """The reply to GETXATTR and LISTXATTR: the value, or how long it is to somebody who has no room and only asks."""
    if not room_bytes:
        return reply(unique, _XATTR_SIZE.pack(len(value), 0))
    return reply(unique, value) if len(value) <= room_bytes else error(unique, errno.ERANGE)


def direntplus(name: bytes, following: int, number: int, mode: int, entry_out: bytes) -> bytes:
    """struct fuse_direntplus, padded to 8 bytes."""
    head = _DIRENT.pack(number, following, len(name), mode >> 12 & 15)
    return entry_out + head + name + bytes(-len(name) % 8)


# -- commands by ioctl(2): the way in where the control file cannot be written, as the kernel lets ioctl(2) through
#
# In: a line, a descriptor of a control file that is open for reading, in the process that gives the command. Out: calls
# that `mountd.requests` takes, a part of the line each.

# _IOC(_IOC_WRITE, 'm', 1, size): the size of a part stands in the bits that the mask leaves out.
COMMAND_CALL = 1 << 30 | ord("m") << 8 | 1
COMMAND_MASK = 0xC000FFFF
_LONGEST_PART_BYTES = (1 << 14) - 1


def tell_in_parts(fd: int, line: bytes) -> None:
    """Give a line, which ends with a newline. Raises: OSError, EINVAL for one that is refused."""
    for start in range(0, len(line), _LONGEST_PART_BYTES):
        part = bytearray(line[start : start + _LONGEST_PART_BYTES])
        fcntl.ioctl(fd, COMMAND_CALL | len(part) << 16, part)
