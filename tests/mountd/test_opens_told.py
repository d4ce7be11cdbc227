"""What the kernel tells of opens, as the silent channel understands it: merged events, lost ones, its own."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import pytest
from support.fanotify import BOTH, CLOSE, LOST, OPEN
from support.fanotify import event as written

from mlfs.tree.manifest import Manifest
from mountd.inodes import FIRST_VIRTUAL, entry_of, inode_of
from mountd.silent import ChannelStatistics, Silence

# More than any process of Linux has: one of these would be the test itself, in a namespace with few others.
READER, FORMER, OTHER, THIRD = range(1 << 22, (1 << 22) + 4)


def event(mask: int, inode: int = 7, pid: int = READER) -> bytes:
    return written(mask, inode, pid)


class Heard:
    """Notes what is told."""

    def __init__(self) -> None:
        self.all: list[tuple[object, ...]] = []
        self.met: set[int] = set()

    most_untold = 0

    def meets(self, pids: Collection[int]) -> None:
        self.met.update(pids)

    def told(self, entries: Any, pids: Any, closed: Sequence[int], free: Sequence[int]) -> None:
        self.all += [("opened", entry, pid) for entry, pid in zip(entries.tolist(), pids.tolist(), strict=True)]
        self.all += [("closed", entry) for entry in closed]
        self.all += [("free", entry_of(inode)) for inode in free]


class Mount:
    """A silence whose kernel is the other end of a pipe, as a server has it that takes a mount over."""

    def __init__(self) -> None:
        ours, self._kernel = os.pipe2(os.O_NONBLOCK)
        self.heard = Heard()
        self.silence = Silence(cast(Manifest, None), b"/mount", ours, ChannelStatistics("silent"), [FORMER])
        self.silence.is_told(self.heard)

    def tells(self, *events: bytes) -> list[tuple[object, ...]]:
        os.write(self._kernel, b"".join(events))
        self.silence.take_in()
        heard, self.heard.all = self.heard.all, []
        return heard

    def close(self) -> None:
        self.silence.close()
        os.close(self._kernel)


@pytest.fixture
def mount() -> Iterator[Mount]:
    made = Mount()
    made.silence.jobs_go_on()
    yield made
    made.close()


def test_opens_are_told_in_their_order_with_their_process_and_then_closes(mount: Mount) -> None:
    changed = inode_of(5, 3)
    assert mount.tells(event(OPEN), event(BOTH, changed, OTHER), event(CLOSE)) == [
        ("opened", 6, READER), ("opened", 5, OTHER), ("closed", 5), ("closed", 6), ("free", 5), ("free", 6),
    ]  # fmt: skip


def test_what_happens_before_jobs_go_on_is_told_then_but_who_reads_is_looked_up_while_he_lives() -> None:
    mount = Mount()
    assert mount.tells(event(OPEN), event(LOST), event(OPEN, 8)) == []
    assert mount.heard.met == {READER}
    mount.silence.jobs_go_on()
    assert mount.tells(event(CLOSE, 8)) == [
        ("opened", 6, READER), ("closed", 6), ("free", 6), ("opened", 7, READER), ("closed", 7), ("free", 7),
    ]  # fmt: skip
    mount.close()


def test_a_file_is_free_when_its_last_reader_closes_it(mount: Mount) -> None:
    mount.tells(event(OPEN), event(OPEN, pid=OTHER))
    assert mount.tells(event(BOTH, pid=THIRD), event(CLOSE)) == [("opened", 6, THIRD), ("closed", 6), ("closed", 6)]
    assert mount.tells(event(CLOSE, pid=OTHER)) == [("closed", 6), ("free", 6)]


def test_a_close_whose_open_was_merged_with_another_one_closes_nothing(mount: Mount) -> None:
    """Opened twice by one process within one event, and closed twice, one after the other."""
    mount.tells(event(OPEN))
    assert mount.tells(event(CLOSE)) == [("closed", 6), ("free", 6)]
    assert mount.tells(event(CLOSE)) == []


def test_what_the_daemon_opens_and_virtual_files_are_nobodys_reads(mount: Mount) -> None:
    assert mount.tells(event(BOTH, pid=os.getpid()), event(BOTH, FIRST_VIRTUAL)) == []


def test_what_a_former_server_has_opened_is_nobodys_read_but_its_number_may_be_a_readers_later(mount: Mount) -> None:
    assert mount.tells(event(BOTH, pid=FORMER)) == []
    assert mount.tells(event(OPEN, pid=FORMER)) == [("opened", 6, FORMER)]


def test_lost_events_close_all_files_and_are_counted(mount: Mount) -> None:
    mount.tells(event(OPEN), event(OPEN))
    heard = mount.tells(event(OPEN, 8), event(LOST), event(OPEN, 9))
    assert heard == [
        ("opened", 7, READER), ("closed", 6), ("closed", 6), ("closed", 7), ("free", 6), ("free", 7),
        ("opened", 8, READER),
    ]  # fmt: skip
    assert mount.silence.statistics().lost == 1
    assert mount.tells(event(CLOSE, 8)) == []
