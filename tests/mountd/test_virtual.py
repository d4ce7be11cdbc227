"""The control directory's inodes: what a look-up asks for, and what it does not."""

from __future__ import annotations

import stat

from mountd.onlookers import Reader
from mountd.virtual import Answer, Path, VirtualFiles


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

    async def command(self, line: bytes) -> Answer:
        return Answer(b"", True)


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
