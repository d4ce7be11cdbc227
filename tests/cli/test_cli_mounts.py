"""What is mounted, what is dead or hung, who uses a mount: mountinfo with odd bytes, and real FUSE mounts."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_support import Mounts, wait_for

from mlfs.errors import ExitCode, MlfsError
from mountd import holders, mounts
from mountd.mounts import Health

MOUNTINFO = (
    rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
30 27 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw
40 30 0:50 / /data/with\040space\134and\012newline rw - fuse.mlfs mlfs:/data/a\040b rw,user_id=0
41 40 0:51 / /data/with\040space\134and\012newline rw - fuse.mlfs mlfs:again rw
42 30 0:52 / /raw/"""
    + b"\xff\xfe\r\x0bx rw - tmpfs  rw\nrubbish\n43 30 0:53 / /short - x\n"
)


def test_mountinfo_with_any_bytes_in_names() -> None:
    entries = mounts.parse_mountinfo(MOUNTINFO)
    assert [entry.mount_id for entry in entries] == [22, 30, 40, 41, 42]
    odd = entries[2]
    assert odd.mountpoint == "/data/with space\\and\nnewline"
    assert (odd.source, odd.is_mlfs, odd.device) == ("mlfs:/data/a b", True, "0:50")
    assert os.fsencode(entries[4].mountpoint) == b"/raw/\xff\xfe\r\x0bx"
    assert not entries[1].is_mlfs


def test_the_mount_for_commands_is_no_mount_of_a_data_set_and_a_mount_is_known_whatever_its_options() -> None:
    lines = [b"50 40 0:50 %s /m rw - fuse.mlfs mlfs:/data ro,user_id=0" % root for root in (b"/", b"/.mlfs/commands")]
    data, commands = mounts.parse_mountinfo(b"\n".join(lines))
    assert (data.is_mlfs, data.takes_commands, data.root) == (True, False, "/")
    assert (commands.is_mlfs, commands.takes_commands) == (False, True)
    assert data.is_among([data._replace(options=frozenset({"rw"}))])
    assert not data.is_same(data._replace(mount_id=51))


def test_of_stacked_mounts_the_topmost_is_found_in_any_order() -> None:
    entries = mounts.parse_mountinfo(MOUNTINFO)
    path = "/data/with space\\and\nnewline"
    for table in (entries, entries[::-1]):
        found = mounts.topmost(table, path)
        assert found is not None
        assert found.mount_id == 41
    assert mounts.topmost(entries, "/data") is None


def test_resolve_is_realpath_where_nothing_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "up").symlink_to("a/b/../..")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("link/b", "up/link/b/..", "missing/x", "./a//b/"):
        path = f"{tmp_path}/{name}"
        assert mounts.resolve(path) == os.path.realpath(path)
    assert mounts.resolve(f"{tmp_path}/loop").endswith("loop")


def test_a_call_that_hangs_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        mounts.call_with_timeout(threading.Event().wait, 0.05)
    assert mounts.call_with_timeout(lambda: 7, 60) == 7
    with pytest.raises(ZeroDivisionError):
        mounts.call_with_timeout(lambda: 1 // 0, 60)


def test_a_killed_server_leaves_a_dead_mount_even_with_cached_attributes(open_dir: Path, tiny: Mounts) -> None:
    path = os.path.join(open_dir, os.fsdecode(b"odd \n\xff name"))
    os.mkdir(path)
    server = tiny.start(path)
    entry = mounts.mount_at(path)
    assert entry is not None
    assert (entry.is_mlfs, entry.source) == (True, "mlfs:tiny")
    os.stat(path)
    assert mounts.probe(path) is Health.OK
    tiny.kill(server)
    assert mounts.is_dead(path)
    mounts.detach(path)
    assert mounts.mount_at(path) is None
    assert not mounts.is_dead(path)
    with pytest.raises(MlfsError) as error:
        mounts.unmount(path)
    assert error.value.exit_code == ExitCode.NOT_MOUNTED


def test_a_stopped_server_is_hung_and_does_not_hang_us(open_dir: Path, tiny: Mounts) -> None:
    (open_dir / "m").mkdir()
    (open_dir / "link").symlink_to("m/data.bin")
    server = tiny.start(open_dir / "m")
    server.send_signal(signal.SIGSTOP)
    rescue = threading.Timer(60, server.send_signal, (signal.SIGCONT,))
    rescue.start()  # or a call that hangs would do so for ever
    assert mounts.probe(str(open_dir / "m"), 0.2) is Health.HUNG
    assert mounts.mount_at(str(open_dir / "m")) is not None
    assert mounts.resolve(f"{open_dir}/link/x") == f"{open_dir}/m/data.bin/x"
    assert [e.mountpoint for e in mounts.enclosing_mlfs(f"{open_dir}/m/deep/er")] == [f"{open_dir}/m"]
    assert holders.users_of(str(open_dir / "m"), exclude={os.getpid()}) == []
    assert rescue.is_alive()
    rescue.cancel()


def test_the_connection_of_a_mount_is_ended_and_none_that_has_its_number_later(open_dir: Path, tiny: Mounts) -> None:
    path = str(open_dir / "m")
    os.mkdir(path)
    server = tiny.start(path)
    server.send_signal(signal.SIGSTOP)
    rescue = threading.Timer(60, server.send_signal, (signal.SIGCONT,))
    rescue.start()  # or a call that hangs would do so for ever
    entry = mounts.mount_at(path)
    assert entry is not None
    held = mounts.hold(entry)
    assert held is not None
    mounts.detach(path)
    assert mounts.is_there(entry.device)  # so nobody else gets the number
    mounts.abort(entry, held)
    wait_for(lambda: not mounts.is_there(entry.device))
    assert rescue.is_alive()
    rescue.cancel()

    tiny.start(path)
    other = mounts.mount_at(path)
    assert other is not None
    assert mounts.hold(other._replace(mount_id=0)) is None  # it is another one by now
    mounts.abort(other, None)
    assert mounts.probe(path) is Health.OK


def test_what_is_missing_is_no_dead_mount(tmp_path: Path) -> None:
    assert mounts.probe(str(tmp_path / "none")) is Health.MISSING
    assert mounts.probe(str(tmp_path)) is Health.OK
    assert mounts.mount_at(str(tmp_path)) is None


HOLD_CWD = "import os, sys, time; os.chdir(sys.argv[1]); print(flush=True); time.sleep(60)"
HOLD_OPEN = "import sys, time; f = open(sys.argv[1] + '/data.bin', 'rb'); print(flush=True); time.sleep(60)"
HOLD_MAP = """import mmap, os, sys, time
fd = os.open(sys.argv[1] + '/data.bin', os.O_RDONLY)
m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
os.closerange(3, 100)
print(flush=True); time.sleep(60)"""


def hold(code: str, path: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


def test_users_of_a_mount_are_named_and_keep_it_busy(open_dir: Path, tiny: Mounts) -> None:
    path = os.path.join(open_dir, os.fsdecode(b"odd \n\xff name"))
    os.mkdir(path)
    # This one stands in the directory below the mount: the same path, but no user of the mount.
    below = hold(HOLD_CWD, path)
    tiny.start(path)
    held = [hold(code, path) for code in (HOLD_CWD, HOLD_OPEN, HOLD_MAP)]
    try:
        users = {user.pid: user.what for user in holders.users_of(path)}
        assert users == {
            held[0].pid: "working directory",
            held[1].pid: "open: data.bin",
            held[2].pid: "mapped file",
        }
        names = {user.name for user in holders.users_of(path)}
        assert all(name.startswith("python") for name in names)
        assert held[0].pid not in {u.pid for u in holders.users_of(path, exclude={held[0].pid})}
        assert mounts.unmount(path) is False
    finally:
        for process in (*held, below):
            process.kill()
            process.communicate()
    wait_for(lambda: mounts.unmount(path))
    assert mounts.mount_at(path) is None


def test_users_below_a_plain_directory(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"x" * mmap.PAGESIZE)
    process = hold(HOLD_MAP, str(tmp_path))
    try:
        assert [(u.pid, u.what) for u in holders.users_of(str(tmp_path))] == [(process.pid, "mapped file")]
        # A sibling whose name begins alike is not below.
        assert holders.users_of(str(tmp_path)[:-1]) == []
    finally:
        process.kill()
        process.communicate()


def test_fusermount_serves_users_without_umount_rights(
    open_dir: Path, tiny: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of everybody but root; root in a container without CAP_SYS_ADMIN falls back to it."""
    path = str(open_dir / "a b")
    os.mkdir(path)
    monkeypatch.setattr(mounts, "umount2", lambda path, flags: errno.EPERM)
    tiny.start(path)
    process = hold(HOLD_OPEN, path)
    assert mounts.unmount(path) is False
    process.kill()
    process.communicate()
    wait_for(lambda: mounts.unmount(path))
    server = tiny.start(path)
    tiny.kill(server)
    mounts.detach(path)
    assert mounts.mount_at(path) is None
    with pytest.raises(MlfsError) as error:
        mounts.unmount(path)
    assert error.value.exit_code in (ExitCode.NOT_MOUNTED, ExitCode.NOT_PERMITTED)
