"""The lock of an index: who holds it, who waits, and what becomes of the locks of the dead."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

from mlfs.tree.scan_lock import Holder, ScanLock, stamp_of


def never(_: object) -> bool:
    return False


def go_on() -> None:
    """Does not stop the waiting."""


def elsewhere(index: Path, host: str) -> Path:
    """A lock of another machine."""
    lock = index.with_name(index.name + ".lock")
    lock.write_text(json.dumps(Holder("theirs", host, 1, "another machine", 1, 0.0)._asdict()))
    return lock


def test_a_lock_of_another_machine_that_shows_no_life_is_taken_over(tmp_path: Path) -> None:
    index = tmp_path / "i"
    path = elsewhere(index, "node7")
    waited: list[Holder] = []
    lock = ScanLock(index, heartbeat_s=0.05, stale_s=0.4)
    assert lock.take(never, waited.append, go_on) is None
    assert {holder.host for holder in waited} == {"node7"}
    assert json.loads(path.read_bytes())["pid"] == os.getpid()
    lock.release()
    assert not list(tmp_path.iterdir())


def test_a_lock_whose_stamp_moves_is_waited_for_and_its_index_will_do(tmp_path: Path) -> None:
    index = tmp_path / "i"
    path = elsewhere(index, "node7")
    before = stamp_of(index)

    def live() -> None:
        for _ in range(12):
            time.sleep(0.1)
            os.utime(path)
        index.write_text("a list")
        path.unlink()

    owner = threading.Thread(target=live)
    owner.start()
    began_s = time.monotonic()
    other = ScanLock(index, heartbeat_s=0.1, stale_s=0.5).take(lambda now: now != before, None, go_on)
    assert time.monotonic() - began_s > 1.0
    assert other is not None
    assert other.host == "node7"
    owner.join()
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


def test_an_owner_shows_life_and_removes_no_lock_but_its_own(tmp_path: Path) -> None:
    index = tmp_path / "i"
    lock = ScanLock(index, heartbeat_s=0.05)
    assert lock.take(never, None, go_on) is None
    path = index.with_name("i.lock")
    first = stamp_of(path)
    time.sleep(0.3)
    assert stamp_of(path) != first
    elsewhere(index, "node7")  # it was taken for dead, and another has it now
    lock.release()
    assert path.exists()


def test_of_many_who_take_a_dead_lock_over_each_has_it_for_itself(tmp_path: Path) -> None:
    index = tmp_path / "i"
    elsewhere(index, "node7")
    inside, most = [], []

    def scan() -> None:
        lock = ScanLock(index, heartbeat_s=0.02, stale_s=1.0)
        assert lock.take(never, None, go_on) is None
        inside.append(lock)
        most.append(len(inside))
        time.sleep(0.02)
        inside.remove(lock)
        lock.release()

    threads = [threading.Thread(target=scan) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 6
