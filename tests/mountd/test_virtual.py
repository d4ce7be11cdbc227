"""The control directory's inodes: what a look-up asks for, and what it does not."""

from __future__ import annotations

import errno
import stat

import pytest
import trio
from support.held import held_bytes

from mountd.onlookers import Reader
from mountd.virtual import LONGEST_LINE_BYTES, MOST_PENDING_BYTES, CommandAnswer, Path, VirtualFiles


class Orders:
    """A job's order: the directory order/train/0 with the file 1.indices, which nobody has listed yet."""

    def __init__(self) -> None:
        self.listed: list[Path] = []

    def is_directory(self, path: Path) -> bool:
        return path in ((), (b"order",), (b"order", b"train"), (b"order", b"train", b"0"))

    def has_file(self, path: Path) -> bool:
        return path == (b"order", b"train", b"0", b"1.indices")

    def listing(self, path: Path) -> list[bytes]:
        self.listed.append(path)
        return [b"1.indices"]

    async def text(self, path: Path, reader: Reader | None) -> bytes:
        return b""

    async def command(self, line: bytes) -> CommandAnswer:
        return CommandAnswer(b"", True)


def test_a_look_up_lists_no_directory_as_a_job_has_a_million_epochs_and_as_many_ranks() -> None:
    orders = Orders()
    files = VirtualFiles(orders, 0, 0)
    inode = files.root
    for name in (b"order", b"train", b"0"):
        inode = files.lookup(inode, name)
        assert stat.S_ISDIR(files.node(inode).mode)
    assert files.lookup(inode, b"2.indices") == 0
    file = files.lookup(inode, b"1.indices")
    assert stat.S_ISREG(files.node(file).mode)
    assert not orders.listed
    assert files.children(inode) == [(b"1.indices", file)]
    assert orders.listed == [(b"order", b"train", b"0")]


class Control(Orders):
    """The control file; it remembers the longest line that it was given."""

    longest = 0

    def has_file(self, path: Path) -> bool:
        return path == (b"control",)

    async def command(self, line: bytes) -> CommandAnswer:
        self.longest = max(self.longest, len(line))
        return CommandAnswer(b"", True)


@pytest.mark.promise("input-bounded")
def test_what_is_written_is_kept_up_to_a_bound_only_through_however_many_descriptors() -> None:
    """Lines without end, in parts that a writer's buffer may have cut, each through a descriptor of its own."""
    control = Control()
    files = VirtualFiles(control, 0, 0)
    part = bytes(LONGEST_LINE_BYTES // 4)  # a multiple of 4096, as a buffer is

    async def main() -> None:
        refused, handles, empty_bytes = 0, [], held_bytes(files)
        for _ in range(10):
            handles.append(await files.open(files.lookup(files.root, b"control"), True, Reader(0, 0, 0)))
        for _ in range(6):
            for handle in handles:
                try:
                    await files.write(handle, part, 0)
                except OSError as error:
                    assert error.errno == errno.E2BIG  # noqa: PT017
                    refused += 1
                assert held_bytes(files) - empty_bytes <= MOST_PENDING_BYTES + 4096  # and the handles themselves
        assert refused
        for handle in handles:
            files.release(handle)
        handle = await files.open(files.lookup(files.root, b"control"), True, Reader(0, 0, 0))
        line = b"x" * (LONGEST_LINE_BYTES - 2) + b"}\n"
        for start in range(0, len(line), len(part)):
            await files.write(handle, line[start : start + len(part)], start)

    trio.run(main)
    assert control.longest == LONGEST_LINE_BYTES - 1
