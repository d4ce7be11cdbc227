"""Checks the structure of an LMDB data file with plain reads, before LMDB maps it, and lists what it holds.

In: a descriptor of `data.mdb`. Out: (key, value length) of every record, or BadEnvironment. Called by `lmdb_store` at
start and by `cache_admin`.

LMDB trusts its file. A truncated one ends the process with SIGBUS when a page behind the end is touched, and a damaged
page can make it read or write anywhere. So the structure is checked when a mount starts, without LMDB. The samples are
not checked here, as each has a checksum. The format is that of LMDB 0.9 (data version 1, 64 bits, this machine's byte
order). A file of any other format is refused, which costs the cache and nothing more.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_MAGIC, _DATA_VERSION = 0xBEEFC0DE, 1
_PAGE_HEAD = struct.Struct("=QHHHH")  # page number, pad, flags, lower, upper
_OVERFLOW_HEAD = struct.Struct("=QHHI")  # page number, pad, flags, number of pages
_NODE_HEAD = struct.Struct("=HHHH")  # low and high half of the value length (of the page number), flags, key length
_META = struct.Struct("=IIQQ")  # magic, version, address, map size; two _DB and _META_END follow
_DB = struct.Struct("=IHHQQQQQ")  # pad, flags, depth, branch, leaf and overflow pages, entries, root
_META_END = struct.Struct("=QQ")  # last page, transaction
_PAGENO = struct.Struct("=Q")
_BRANCH, _LEAF, _OVERFLOW, _META_FLAG = 0x01, 0x02, 0x04, 0x08
_BIG = 0x01  # node flag: the value lies in overflow pages
_NO_ROOT = 2**64 - 1
_MAX_DEPTH = 32  # LMDB's cursors hold this many pages, unchecked
_INTEGER_KEYS = 0x08
KEY_BYTES = 16


class BadEnvironment(Exception):
    """The file cannot be given to LMDB; the message says why."""


class _Tree(NamedTuple):
    flags: int
    depth: int
    entries: int
    root: int


class Meta(NamedTuple):
    """The last committed state of the file."""

    page_bytes: int
    free: _Tree
    main: _Tree
    last_page: int
    transaction: int


class _Node(NamedTuple):
    key: bytes
    value_bytes: int
    value_at: int  # offset of an inline value within its page; page number of a big one
    big: bool


def read_meta(fd: int) -> Meta:
    """Return the newer of the two meta pages. Raises BadEnvironment, OSError."""
    first = _parse_meta(os.pread(fd, 4096, 0), 0)
    if first.page_bytes not in (4096, 8192, 16384, 32768):
        raise BadEnvironment(f"page size {first.page_bytes}")
    second = _parse_meta(os.pread(fd, 4096, first.page_bytes), 1)
    if second.page_bytes != first.page_bytes:
        raise BadEnvironment("meta pages disagree")
    # Each commit writes the page that the last one did not; the initial state counts as commit 0 on both.
    if abs(second.transaction - first.transaction) != (1 if second.transaction else 0):
        raise BadEnvironment("meta pages do not follow each other")
    meta = second if second.transaction > first.transaction else first
    if meta.main.flags != 0 or meta.free.flags != _INTEGER_KEYS:
        raise BadEnvironment("unknown kind of tree")
    return meta


def _parse_meta(page: bytes, number: int) -> Meta:
    at = _PAGE_HEAD.size
    if len(page) < at + _META.size + 2 * _DB.size + _META_END.size:
        raise BadEnvironment("truncated meta page")
    found_number, _, flags, _, _ = _PAGE_HEAD.unpack_from(page)
    magic, version, _, _ = _META.unpack_from(page, at)
    if (magic, version, found_number, flags) != (_MAGIC, _DATA_VERSION, number, _META_FLAG):
        raise BadEnvironment(f"meta page {number} is not one")
    at += _META.size
    trees = [_DB.unpack_from(page, at), _DB.unpack_from(page, at + _DB.size)]
    last_page, transaction = _META_END.unpack_from(page, at + 2 * _DB.size)
    # Transaction n is committed to meta page n % 2.
    if transaction and transaction % 2 != number:
        raise BadEnvironment(f"meta page {number} of transaction {transaction}")
    free, main = (_Tree(tree[1], tree[2], tree[6], tree[7]) for tree in trees)
    return Meta(trees[0][0], free, main, last_page, transaction)


def read_entries(fd: int, *, overflow_heads: bool = False) -> list[tuple[bytes, int]]:
    """Check the structure and return (key, value length) of all records, in key order.

    With `overflow_heads` the head of every value outside the tree is read too (one read a sample).
    Raises BadEnvironment when LMDB must not open the file, OSError when it cannot be read.
    """
    return StructureCheck(fd, overflow_heads).run()


class StructureCheck:
    """One pass over all pages that the last commit can reach."""

    def __init__(self, fd: int, overflow_heads: bool) -> None:
        self._fd = fd
        self._overflow_heads = overflow_heads
        self.meta = read_meta(fd)
        self._page_bytes = self.meta.page_bytes
        self._file_pages = os.fstat(fd).st_size // self._page_bytes
        if not 1 <= self.meta.last_page < max(2, 2 * self._file_pages):
            raise BadEnvironment("truncated, or the last page number is wrong")
        # Invariant: a page is marked once; a second way to it is damage.
        self._seen = np.zeros(self.meta.last_page + 1, dtype=np.bool_)
        self._seen[:2] = True

    def run(self) -> list[tuple[bytes, int]]:
        entries = []
        last_key = b""
        for _, node in self.nodes(self.meta.main):
            if len(node.key) != KEY_BYTES or node.key <= last_key:
                raise BadEnvironment("keys out of order")
            last_key = node.key
            entries.append((node.key, node.value_bytes))
        if len(entries) != self.meta.main.entries:
            raise BadEnvironment("wrong number of records")
        free = [self._value(page, node) for page, node in self.nodes(self.meta.free)]
        if len(free) != self.meta.free.entries:
            raise BadEnvironment("wrong number of free lists")
        for value in free:
            self._check_free_list(value)
        return entries

    def nodes(self, tree: _Tree) -> Iterator[tuple[bytes, _Node]]:
        """All leaf nodes of a tree in the order of their keys, each with the page that it lies in."""
        if tree.root == _NO_ROOT:
            return
        if not 1 <= tree.depth <= _MAX_DEPTH:
            raise BadEnvironment("wrong depth")
        todo = [(tree.root, tree.depth)]
        while todo:
            number, height = todo.pop()
            page = self._page(number, _LEAF if height == 1 else _BRANCH)
            if height == 1:
                for node in self._leaf(page):
                    yield page, node
            else:
                todo.extend((child, height - 1) for child in reversed(self._branch(page)))

    def _page(self, number: int, kind: int) -> bytes:
        self._mark(number, 1)
        page = os.pread(self._fd, self._page_bytes, number * self._page_bytes)
        found_number, _, flags, lower, upper = _PAGE_HEAD.unpack_from(page)
        if found_number != number or flags != kind:
            raise BadEnvironment(f"page {number} is not the page that belongs there")
        if not _PAGE_HEAD.size < lower <= upper <= self._page_bytes or lower % 2:
            raise BadEnvironment(f"page {number} has wrong bounds")
        return page

    def _mark(self, number: int, count: int) -> None:
        if not 2 <= number <= number + count - 1 <= min(self.meta.last_page, self._file_pages - 1):
            raise BadEnvironment(f"page {number} lies outside of the file")
        if self._seen[number : number + count].any():
            raise BadEnvironment(f"page {number} is used twice")
        self._seen[number : number + count] = True

    def _slots(self, page: bytes) -> list[tuple[int, int, int, int, int]]:
        """(offset, low, high, flags, key length) of each node; all heads and keys lie within the page."""
        _, _, _, lower, upper = _PAGE_HEAD.unpack_from(page)
        count = (lower - _PAGE_HEAD.size) // 2
        slots = []
        for offset in struct.unpack_from(f"={count}H", page, _PAGE_HEAD.size):
            if not upper <= offset <= self._page_bytes - _NODE_HEAD.size or offset % 2:
                raise BadEnvironment("a node lies outside of its page")
            low, high, flags, key_bytes = _NODE_HEAD.unpack_from(page, offset)
            if offset + _NODE_HEAD.size + key_bytes > self._page_bytes:
                raise BadEnvironment("a key lies outside of its page")
            slots.append((offset, low, high, flags, key_bytes))
        return slots

    def _branch(self, page: bytes) -> list[int]:
        slots = self._slots(page)
        if len(slots) < 2:
            raise BadEnvironment("a branch page with one child")
        return [low | high << 16 | flags << 32 for _, low, high, flags, _ in slots]

    def _leaf(self, page: bytes) -> Iterator[_Node]:
        for offset, low, high, flags, key_bytes in self._slots(page):
            key_at = offset + _NODE_HEAD.size
            value_at = key_at + key_bytes
            key, value_bytes = page[key_at:value_at], low | high << 16
            if flags == 0 and value_at + value_bytes <= self._page_bytes:
                yield _Node(key, value_bytes, value_at, False)
            elif flags == _BIG and value_at + _PAGENO.size <= self._page_bytes:
                (number,) = _PAGENO.unpack_from(page, value_at)
                self._check_overflow(number, value_bytes)
                yield _Node(key, value_bytes, number, True)
            else:
                raise BadEnvironment("a node of an unknown kind or beyond its page")

    def _check_overflow(self, number: int, value_bytes: int) -> None:
        count = -(-(_PAGE_HEAD.size + value_bytes) // self._page_bytes)
        self._mark(number, count)
        if self._overflow_heads:
            head = os.pread(self._fd, _OVERFLOW_HEAD.size, number * self._page_bytes)
            found_number, _, flags, found_count = _OVERFLOW_HEAD.unpack(head)
            if (found_number, flags, found_count) != (number, _OVERFLOW, count):
                raise BadEnvironment(f"page {number} is not the value that belongs there")

    def _value(self, page: bytes, node: _Node) -> bytes:
        if node.big:
            return os.pread(self._fd, node.value_bytes, node.value_at * self._page_bytes + _PAGE_HEAD.size)
        return page[node.value_at : node.value_at + node.value_bytes]

    def _check_free_list(self, value: bytes) -> None:
        """A free list is a count and that many page numbers, falling; a page in use must not be in it."""
        numbers = np.frombuffer(value[: len(value) // 8 * 8], dtype=np.uint64)
        if not len(numbers) or numbers[0] > len(numbers) - 1:
            raise BadEnvironment("a free list is too short")
        pages = numbers[1 : 1 + int(numbers[0])]
        if len(pages) and (pages.max() > self.meta.last_page or (pages[1:] >= pages[:-1]).any()):
            raise BadEnvironment("a free list is out of order")
        if self._seen[pages].any():
            raise BadEnvironment("a page is free and in use")
        self._seen[pages] = True
