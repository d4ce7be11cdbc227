"""The control directory MOUNT/.mlfs: there for whoever names it, in no listing of the root.

control          write one JSON object a line; read the answer: on the descriptor that wrote, the answer to its own
                 line, from where it stands or from the beginning; on a new one, the last answer that anybody got
lifecycle        the same, for `mlfs unmount`; in no listing
changes          changes whenever something was noticed that an overlay on top (`mlfs run`) does not see by itself; in
                 no listing
commands/in/     these two once more; in no listing. `commands` is mounted elsewhere to be written
                 (mountd.commands_mount) if the mount is read-only for the kernel, and the two above are links that
                 lead there. (The directory between has them lead nowhere, and to no place for a file, where that is
                 not mounted.)
                 A process that does not see that mount, in a container, may open one here for reading and give the
                 line by ioctl(2), in parts (mountd.wire); `mlfs` does
status           JSON        metrics   Prometheus text
audit            JSON: what the reads so far show of the scripts that read (mlfs.audit)
jobs/NAME.json   the specification as understood, with its state and how many samples the data set has
order/NAME/EPOCH/RANK            the predicted order, or the one that mlfs serves: a path a line
order/NAME/EPOCH/RANK.indices    the same as dataset indices, as a sampler gives them

Names below a directory are shown only to those who may list it (mountd.onlookers).

In: lookups, opens, reads and writes from the handlers. Out: text made when a file is opened, by the functions of
mountd.control. Virtual inodes are given out on lookup and taken back when the kernel forgets them.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

from mountd.inodes import FIRST_VIRTUAL, FIRST_VIRTUAL_HANDLE, inode_of_virtual
from mountd.onlookers import Reader

CONTROL_DIRECTORY = b".mlfs"
Path = tuple[bytes, ...]
COMMANDS: Path = (b"commands", b"in")
WRITABLE: frozenset[Path] = frozenset({(b"control",), (b"lifecycle",)})
# A served job with tens of thousands of nodes in it. A line takes thirty times as much at the most once JSON is made of
# it.
LONGEST_LINE_BYTES = 4 << 20
# Inodes, and handles, that one process may give out.
NUMBERS_A_LIFE = 1 << 32
# The bytes of lines that are not whole yet, through all descriptors together.
MOST_PENDING_BYTES = 4 * LONGEST_LINE_BYTES
# Texts that are kept of files which are opened without a request: who reads on in an older one gets it made anew.
MOST_UNTOLD = 64
_DIRECTORY = stat.S_IFDIR | 0o555
_FILE = stat.S_IFREG | 0o444
_CONTROL = stat.S_IFREG | 0o644
_LINK = stat.S_IFLNK | 0o777


class CommandAnswer(NamedTuple):
    """The result of a line written to control: what the file then says, and whether the line was carried out."""

    text: bytes
    accepted: bool


class Contents(Protocol):
    """The content of the control directory: that of mountd.control, which knows this module."""

    def is_directory(self, path: Path) -> bool:
        """Whether the path is a directory. Asked at each look-up, where no list of a million epochs is to be made."""

    def listing(self, path: Path) -> list[bytes]:
        """Names in a directory."""

    def has_file(self, path: Path) -> bool:
        """Whether the path is a file."""

    async def text(self, path: Path, reader: Reader | None) -> bytes:
        """A file's content now, as this reader may see it; None: who may see all."""

    async def command(self, line: bytes) -> CommandAnswer:
        """Carry out a line written to control."""


class VirtualNode(NamedTuple):
    """A path below the control directory and its mode."""

    path: Path
    mode: int


class Handle:
    """An open virtual file: what it read when it was opened, what was written and is not a whole line yet.

    After a write the text is the answer, and `start` is where the descriptor stands: `echo ... >&3; read answer <&3`
    reads on from there. Whoever goes back to the beginning instead, by seeking or pread, finds the answer there. (But
    in a file that is opened without a request, whose pages the kernel has: there he finds what was written.)
    """

    __slots__ = ("pending", "start", "takes_commands", "text")

    def __init__(self, text: bytes, takes_commands: bool) -> None:
        self.text = text
        self.takes_commands = takes_commands
        self.pending = b""
        self.start = 0


class UntoldHandle(Handle):
    """The same of a file that was opened without a request; its text has changed at `changed_ns`."""

    __slots__ = ("changed_ns",)

    def __init__(self, text: bytes, takes_commands: bool) -> None:
        super().__init__(text, takes_commands)
        self.changed_ns = time.time_ns()


class VirtualFiles:
    """Inodes and handles of the control directory.

    Args:
        owner_uid, owner_gid: who mounted; besides root the only one who may write.
        elsewhere: the directory where commands go in; None for here.
        lives: how many processes have served this mount before. Numbers that they gave out are not given out again.
        untold: whether files are opened without a request. Then each look-up of one has an inode of its own, as an open
            has a text of its own; the text is made, and the file has a size, when somebody reads.
    """

    def __init__(
        self,
        contents: Contents,
        owner_uid: int,
        owner_gid: int,
        elsewhere: Callable[[], bytes | None] = lambda: None,
        lives: int = 0,
        untold: Callable[[], bool] = lambda: False,
    ) -> None:
        self.contents = contents
        self._untold = untold
        # By inode, the texts of files that are opened without a request.
        self._shown: OrderedDict[int, UntoldHandle] = OrderedDict()
        self._elsewhere = elsewhere
        self.owner_uid = owner_uid
        self.owner_gid = owner_gid
        self.started_ns = time.time_ns()
        self.root = FIRST_VIRTUAL
        # These two have the same number in each process that serves the mount: the kernel may begin with them.
        self._inodes: dict[Path, int] = {(): self.root, COMMANDS[:1]: self.root + 1}
        self._nodes = {inode: VirtualNode(path, _DIRECTORY) for path, inode in self._inodes.items()}
        self._lasting = frozenset(self._nodes)
        self._looked_up: dict[int, int] = {}
        self._next = itertools.count(FIRST_VIRTUAL + len(self._lasting) + lives * NUMBERS_A_LIFE)
        self._handles: dict[int, Handle] = {}
        self._next_handle = itertools.count(FIRST_VIRTUAL_HANDLE + lives * NUMBERS_A_LIFE)

    def node(self, inode: int) -> VirtualNode:
        """Raises ESTALE for an inode that was forgotten."""
        try:
            return self._nodes[inode]
        except KeyError:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None

    def lookup(self, parent: int, name: bytes) -> int:
        """The inode of a name, 0 when there is none. Counts as one look-up by the kernel."""
        path = (*self.node(parent).path, name)
        mode = self._mode(path)
        if mode == 0:
            return 0
        inode = self._inodes.get(path)
        # The kernel lets one write to a file wait for the other, and a registration may take long: whoever looks the
        # file up gets one of his own. And what was a file may be a link by now.
        is_untold = stat.S_ISREG(mode) and self._untold()
        if inode is None or mode == _CONTROL or is_untold or self._nodes[inode].mode != mode:
            inode = self._inodes[path] = next(self._next)
            self._nodes[inode] = VirtualNode(path, mode)
        self._looked_up[inode] = self._looked_up.get(inode, 0) + 1
        return inode

    def forget(self, inode: int, count: int) -> None:
        """The kernel forgot `count` look-ups."""
        left = self._looked_up.get(inode, 0) - count
        if left > 0:
            self._looked_up[inode] = left
            return
        self._looked_up.pop(inode, None)
        if inode in self._shown:
            del self._shown[inode]
        if inode not in self._lasting and inode in self._nodes:
            path = self._nodes.pop(inode).path
            if self._inodes.get(path) == inode:
                del self._inodes[path]

    def children(self, inode: int) -> list[tuple[bytes, int]]:
        """Names and inodes of a directory; each counts as looked up."""
        path = self.node(inode).path
        if path and path == COMMANDS[: len(path)]:
            names = [COMMANDS[1]] if len(path) == 1 else [name for (name,) in sorted(WRITABLE)]
        else:
            names = self.contents.listing(path)
        return [(name, self.lookup(inode, name)) for name in names]

    def target(self, inode: int) -> bytes:
        """The path to which a link leads."""
        node, elsewhere = self.node(inode), self._elsewhere()
        if not stat.S_ISLNK(node.mode) or elsewhere is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return b"/".join((elsewhere, *COMMANDS[1:], *node.path))

    def _mode(self, path: Path) -> int:
        if path in WRITABLE:
            return _CONTROL if self._elsewhere() is None else _LINK
        if path[0] == COMMANDS[0]:
            return _DIRECTORY if path == COMMANDS[: len(path)] else _CONTROL if path[2:] in WRITABLE else 0
        if self.contents.is_directory(path):
            return _DIRECTORY
        if not self.contents.has_file(path):
            return 0
        return _FILE

    # -- open files

    async def open(self, inode: int, writing: bool, reader: Reader) -> int:
        """A handle. Raises EACCES for writing to any other than these two, and by others than root and the owner."""
        node = self.node(inode)
        sees_all = reader.uid in (0, self.owner_uid)
        if writing and (node.mode != _CONTROL or not sees_all):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        path = node.path[-1:] if node.mode == _CONTROL else node.path
        text = await self.contents.text(path, None if sees_all else reader)
        handle = next(self._next_handle)
        self._handles[handle] = Handle(text, node.mode == _CONTROL)
        return handle

    async def open_untold(self, inode: int, reader: Reader) -> None:
        """Have the text of a file that was opened without a request, unless it is there. Raises: as `open`."""
        if inode in self._shown:
            self._shown.move_to_end(inode)
            return
        node = self.node(inode)
        if stat.S_ISREG(node.mode):
            path = node.path[-1:] if node.mode == _CONTROL else node.path
            text = await self.contents.text(path, None if reader.uid in (0, self.owner_uid) else reader)
            if inode not in self._shown:
                self._show(inode, UntoldHandle(text, node.mode == _CONTROL))

    def _show(self, inode: int, state: UntoldHandle) -> UntoldHandle:
        self._shown[inode] = state
        if len(self._shown) > MOST_UNTOLD:
            self._shown.popitem(last=False)
        return state

    def shown(self, inode: int) -> tuple[int, int]:
        """The size of a virtual file, and when it changed: 0 and the start of the mount where it has no text here."""
        state = self._shown.get(inode)
        return (len(state.text), state.changed_ns) if state is not None else (0, self.started_ns)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """A part of what the file held when it was opened, or of the answer to what was written through this handle."""
        state = self._opened(handle)
        if offset < state.start:
            state.start = 0
        offset -= state.start
        return state.text[offset : offset + size]

    def _opened(self, handle: int) -> Handle:
        """Raises ESTALE for a handle of a process that served this mount before, and has died."""
        state = self._handles.get(handle)
        if state is None and self._untold():
            state = self._shown.get(inode_of_virtual(handle))
        if state is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return state

    def release(self, handle: int) -> None:
        self._handles.pop(handle, None)

    async def write(self, handle: int, data: bytes, offset: int) -> int:
        """Carry out the whole lines written so far. A last line without newline counts as whole if it parses.

        Raises: EINVAL for a line that is refused (the handle's answer says why).
        """
        if self._untold():
            return await self._write_untold(inode_of_virtual(handle), data, offset)
        state = self._opened(handle)
        state.start = offset  # where the descriptor stands after a write that fails
        await self._take_in(state, data)
        state.start = offset + len(data)
        return len(data)

    async def _write_untold(self, inode: int, data: bytes, offset: int) -> int:
        """The same in a file that was opened without a request: it has what stood before, what is written, the answer.
        A descriptor finds the answer from where it stands. After a write that fails it stands where it stood."""
        node = self.node(inode)
        if node.mode != _CONTROL:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        state = self._shown.get(inode) or self._show(inode, UntoldHandle(b"", takes_commands=True))
        before, written, state.text = state.text[:offset].ljust(offset), b"", b""
        try:
            await self._take_in(state, data)
            written = data
        finally:
            state.text = before + written + state.text
            state.changed_ns = time.time_ns()
        return len(data)

    async def _take_in(self, state: Handle, data: bytes) -> None:
        """Carry out what is whole of what was written."""
        *lines, rest = self._with_pending(state, data).split(b"\n")
        for line in lines:
            if line.strip():
                await self._carry_out(state, line)
        if rest.strip():
            if len(data) % 4096 == 0 and not _closes(rest):
                state.pending = rest  # a long line that was cut by the writer's buffer or the kernel
            else:
                await self._carry_out(state, rest)

    def _with_pending(self, state: Handle, part: bytes) -> bytes:
        """The part that was written before and this one together; nothing is pending any more. Raises: E2BIG, and
        nothing is kept."""
        line, state.pending = state.pending + part, b""
        pending = sum(len(handle.pending) for handle in (*self._handles.values(), *self._shown.values()))
        if len(line) > LONGEST_LINE_BYTES or pending + len(line) > MOST_PENDING_BYTES:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        return line

    async def take(self, handle: int, uid: int, part: bytes) -> None:
        """Take a part of a line without a write; carry it out when it is whole.

        Raises: EACCES as `open`, EINVAL as `write`.
        """
        if self._untold() and inode_of_virtual(handle) not in self._shown:
            inode = inode_of_virtual(handle)
            self._show(inode, UntoldHandle(b"", takes_commands=self.node(inode).mode == _CONTROL))
        state = self._opened(handle)
        if not state.takes_commands or uid not in (0, self.owner_uid):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        line = self._with_pending(state, part)
        if not part.endswith(b"\n"):
            state.pending = line
            return
        try:
            await self._take_in(state, line)
        finally:
            if isinstance(state, UntoldHandle):
                state.changed_ns = time.time_ns()  # or the kernel would go on with the pages that it has

    async def _carry_out(self, state: Handle, line: bytes) -> None:
        answer = await self.contents.command(line)
        state.text = answer.text
        if not answer.accepted:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _closes(line: bytes) -> bool:
    return line.rstrip().endswith(b"}")
