"""Fixtures of all tests, the check that a session leaves no mount and no process behind, and who has a second try.

The classes behind them are in tests/support: `from support.mounts import MlfsMount`.

A test that waits for time to pass (a source that hangs until its time-out, a loop that computes for a while, a process
that says each second that it is still there) can fail because the machine stood still for a moment: it is marked
`wall_clock`. A module that counts how often the source or a tier gave what can fail because the machine took pages
back, which are then fetched once more: it is marked `page_counts`. Both are run once more when they fail, and the end
of a run says how many were: whoever reads that looks for the cause. All others have one try
(docs/decisions/second-try.md).
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # for `support`, from any directory below

from support import mounts, spent
from support.forks import ForkServer, forks
from support.fuse import PATIENCE_S, TOKEN, Mounted, detach, fuse_mounts, happened, kill, processes_with
from support.slow import SlowSource
from support.trees import image_folder, make_tree

from mlfs.places.on_disk import DISK_RESERVE

# Whoever starts us may ignore Ctrl-C (a shell does for what it starts in the background), and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the same after nohup

gc.disable()  # until all tests are collected: see pytest_runtestloop

ROOM_BYTES = 3_000_000_000  # what a run of all tests writes at once, and some more

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18  # linux/sched.h, linux/mount.h


def _own_mount_namespace() -> None:
    """Tests that run beside each other see no mounts of each other, and what they mount hangs nobody else.

    Whoever may not have a namespace of its own (no root) tests in the one that is there.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "the mounts of the tests' own namespace cannot be made private")


_own_mount_namespace()

settings.register_profile("mlfs", deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
settings.load_profile("mlfs")


def _ours(words: list[str]) -> bool:
    """Whether a command line is a daemon's or a command's, not, say, multiprocessing's resource tracker."""
    names = ("mlfs", "slow_source.py", "tiny_fs.py")
    return any(os.path.basename(word) in names or word.startswith(("mlfs.", "mountd")) for word in words)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(mark) is not None for mark in ("wall_clock", "page_counts")):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    token = uuid.uuid4().hex
    os.environ[TOKEN] = token
    before = fuse_mounts()
    yield
    for server in ForkServer.started:
        server.end()

    def processes() -> dict[int, list[str]]:
        return {pid: words for pid, words in processes_with(TOKEN, token).items() if _ours(words)}

    def dead_mounts() -> list[Mounted]:
        """Those that came while we ran and whose server is gone. Sessions beside ours clean theirs up in a moment."""
        return [mounted for mounted in fuse_mounts() if mounted not in before and _is_dead(mounted)]

    happened(lambda: not processes())
    left = processes()
    for pid in left:
        kill(pid)
    happened(lambda: not dead_mounts(), PATIENCE_S if not left else 0.5)
    mounts = dead_mounts()
    for mounted in mounts:
        detach(Path(mounted.path), mounted.fstype)
    assert not left, f"processes that the tests left running: {left}"
    assert not mounts, f"mounts that the tests left behind: {mounts}"


def _is_dead(mounted: Mounted) -> bool:
    """Transport endpoint is not connected. Asked in a process of its own: a server that hangs would hang us, too."""
    if mounted.fstype not in ("fuse.mlfs", "fuse.slow_source"):
        return False
    try:
        asked = subprocess.run(["stat", mounted.path], check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return False
    return "not connected" in asked.stderr


@pytest.fixture(params=["open", "silent"])
def channel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The channel of the test's mounts, for what both promise: jobs are followed on either."""
    name: str = request.param
    monkeypatch.setattr(mounts, "CHANNEL", name)
    return name


@pytest.fixture
def own_interpreter() -> Iterator[None]:
    """Each command and daemon of the test has an interpreter of its own, which imports what it needs."""
    with forks.off():
        yield


@pytest.fixture
def slow_source(tmp_path: Path) -> Iterator[SlowSource]:
    """A slow source (2 ms an open, 100 MB/s) over a small tree in ImageFolder's layout."""
    with SlowSource(make_tree(tmp_path / "backing", image_folder())) as slow:
        yield slow


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Nobody looks for garbage among what is there before the first test: thousands of tests, and the modules of all.

    It stays until the end, and to look there again and again took a fifth of the time of tests that compute.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count what the test costs, its fixtures included."""
    before_s = spent.now_s()
    try:
        return (yield)
    finally:
        spent.by_part[spent.part_of(item.nodeid)] += spent.now_s() - before_s


def pytest_sessionstart() -> None:
    """A disk that is nearly full has no room for the tiers that tests make there: tests of all kinds would fail."""
    directory = tempfile.gettempdir()
    disk = os.statvfs(directory)
    free_bytes, reserve_bytes = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize // DISK_RESERVE
    if free_bytes < reserve_bytes + ROOM_BYTES:
        wanted = f"{(reserve_bytes + ROOM_BYTES) / 1e9:.1f} GB"
        pytest.exit(f"{directory} has {free_bytes / 1e9:.1f} GB free, and the tests need {wanted}: free some, or name "
                    "another directory with TMPDIR", pytest.ExitCode.USAGE_ERROR)  # fmt: skip


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells whoever has started it what its tests have cost.

    pytest looks for garbage six times as it ends, so that what is wrong in a destructor is told: once is enough.
    """
    gc.collect()
    gc.freeze()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["spent"] = dict(spent.by_part)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    spent.by_part.update(getattr(node, "workeroutput", {}).get("spent", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What reads and what tests cost, and how many tests had a second try. tests/engine/test_costs.py counts reads."""
    again = terminalreporter.stats.get("rerun", [])
    terminalreporter.write_line(f"tests that were run a second time: {len(again)}")
    for report in again:
        message = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        terminalreporter.write_line(f"  {report.nodeid}: {' '.join(message.split())[:600]}")
    terminalreporter.write_line(spent.in_words())
    reports = [report for found in terminalreporter.stats.values() for report in found]
    calls = [report for report in reports if getattr(report, "when", "") == "call"]
    costs = [str(value) for report in calls for name, value in report.user_properties if name == "cost"]
    if costs:
        terminalreporter.section("what a read costs")
        terminalreporter.write_line("\n".join(costs))
