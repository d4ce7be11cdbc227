"""How a mount begins and ends, by whatever hand: nothing of it is left, and what lies below it stays."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.fuse import PATIENCE_S, happened, kill, mounts_at, wait_until
from support.mounts import FSTYPE, MlfsMount
from support.slow import FSTYPE as SLOW_FSTYPE
from support.slow import SlowSource
from support.trees import content, image_folder, make_tree

SOURCE, MOUNT_POINT, BUSY = 3, 4, 7  # docs/exit-codes.md
DEAD = (errno.ENOTCONN, errno.ECONNABORTED)
FILES = image_folder(classes=4, files=25, size=20_000)
NAME = "class01/img_00003.jpg"
BYTES = content(NAME, FILES[NAME])


pytestmark = pytest.mark.usefixtures("own_interpreter")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowSource]:
    """A source that is a FUSE mount itself: whatever ends mlfs must not take it along."""
    backing = make_tree(tmp_path_factory.mktemp("lifecycle") / "backing", FILES)
    with SlowSource(backing, open_latency="1ms", bandwidth="1G") as source:
        yield source


class Foreground:
    """`mlfs mount --foreground`: a process whose exit code a test can see."""

    def __init__(self, mount: MlfsMount) -> None:
        self.mount = mount
        self.lines: list[str] = []
        self.log = mount.state / "stderr"

    def __enter__(self) -> Foreground:
        env = self.mount.env  # makes the state directory
        command = [sys.executable, "-m", "mlfs.cli.main", "mount", str(self.mount.source), "--foreground"]
        with open(self.log, "wb") as stderr:
            self.process = subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("then: "):
                return self
        pytest.fail(f"it did not serve: {self.log.read_text()}")

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.mount.clean_up()


def left_over(mount: MlfsMount) -> list[str]:
    """The mount, its processes, records of them, and files half written, as far as they are there."""
    files = [path for path in mount.state.rglob("*") if path.is_file()]
    unfinished = [str(path) for path in files if path.name.startswith(".") or path.suffix in (".new", ".tmp")]
    records = [str(path) for path in files if path.is_relative_to(mount.state / "run")]
    processes = [" ".join(words) for words in mount.pids().values()]
    return ["the mount"] * mount.is_mounted + processes + records + unfinished


def still_there(slow: SlowSource) -> bool:
    """Whether the slow source is what is mounted there, once, and answers."""
    return mounts_at(slow.path, SLOW_FSTYPE) == 1 and (slow.path / NAME).read_bytes() == BYTES


@contextlib.contextmanager
def held_open(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


# -- beginnings


def test_beside_the_source_a_second_mount_is_refused_and_the_end_is_clean(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", FILES)
    (tmp_path / "view").mkdir()
    with MlfsMount(source, mountpoint=tmp_path / "view", state=tmp_path / "state") as mount:
        assert (mount.path / NAME).read_bytes() == BYTES
        before = mount.status()
        read_status_and_control_in_threads(mount)
        for words in ([str(source), str(mount.path)], [str(mount.path)]):
            refused = mount.run("mount", *words, check=False)
            assert refused.returncode == MOUNT_POINT
            assert refused.stderr.count("\n") == 1
            assert f"already mounted by mlfs by process {mount.pid}" in refused.stderr
        after = mount.status()
        assert after["pid"] == before["pid"]
        assert after["memory"]["rss_bytes"] - before["memory"]["rss_bytes"] < 16 << 20
        mount.unmount()
        assert left_over(mount) == []
    assert os.listdir(tmp_path / "view") == []
    assert (source / NAME).read_bytes() == BYTES


def read_status_and_control_in_threads(mount: MlfsMount) -> None:
    failed: list[Exception] = []

    def read() -> None:
        try:
            for _ in range(150):
                assert mount.status()["state"] == "serving"
                (mount.path / ".mlfs/control").read_text()
                (mount.path / ".mlfs/metrics").read_text()
                with pytest.raises(OSError, match="Invalid argument"):
                    mount.control({"op": "nothing"})
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_source_without_any_file_is_refused(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", {"a/b": None, "c": None})
    mount = MlfsMount(source, state=tmp_path / "state")
    refused = mount.run("mount", str(source), check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (SOURCE, 1)
    assert "holds no files" in refused.stderr
    assert left_over(mount) == []


def start_and_stop_the_source(mount: MlfsMount, slow: SlowSource) -> tuple[subprocess.Popen[str], int] | None:
    """A mount command whose daemon's scan cannot get on, and the daemon; None when the daemon was faster than we."""
    words = [sys.executable, "-m", "mlfs.cli.main", "mount", str(slow.path)]
    command = subprocess.Popen(words, env=mount.env, stderr=subprocess.PIPE, text=True)

    def daemons() -> list[int]:
        return [pid for pid, words in mount.pids().items() if "mountd" in words]

    wait_until(lambda: bool(daemons()))
    os.kill(slow.pid, signal.SIGSTOP)
    if not mount.is_mounted:
        return command, daemons()[0]
    os.kill(slow.pid, signal.SIGCONT)
    command.communicate(timeout=PATIENCE_S)
    mount.unmount()
    return None


@pytest.fixture
def scanning(slow: SlowSource, tmp_path: Path) -> Iterator[tuple[MlfsMount, subprocess.Popen[str], int]]:
    """A mount that is being started, its command, and its daemon, whose scan cannot get on. It ends with the test."""
    mount, started = MlfsMount(slow.path, state=tmp_path / "state"), None
    try:
        while started is None:
            started = start_and_stop_the_source(mount, slow)
        yield mount, *started
    finally:
        os.kill(slow.pid, signal.SIGCONT)
        for pid in mount.pids():
            kill(pid)
    assert still_there(slow)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_killed_while_it_scans_is_reported(
    scanning: tuple[MlfsMount, subprocess.Popen[str], int], slow: SlowSource, number: signal.Signals
) -> None:
    mount, command, daemon = scanning
    os.kill(daemon, number)
    _, stderr = command.communicate(timeout=PATIENCE_S)
    os.kill(slow.pid, signal.SIGCONT)
    assert command.returncode == 1
    assert f"was killed by {number.name} before it served" in stderr
    assert happened(lambda: not left_over(mount)), left_over(mount)


def test_what_a_killed_command_has_started_mounts_nothing(
    scanning: tuple[MlfsMount, subprocess.Popen[str], int], slow: SlowSource
) -> None:
    """The next one would be mounted on top of it, and `mlfs unmount` would take away one of two."""
    mount, command, _ = scanning
    command.kill()
    command.communicate(timeout=PATIENCE_S)
    os.kill(slow.pid, signal.SIGCONT)
    assert happened(lambda: not mount.pids()), mount.pids()
    assert not mount.is_mounted


def test_with_a_full_disk_for_index_and_log_it_serves(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", FILES)
    state = tmp_path / "state"
    cache = state / "cache"
    cache.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", cache], check=True)
    try:
        (cache / "mlfs/log").mkdir(parents=True)
        log = cache / "mlfs/log/mount.log"
        log.write_text("# Log of an mlfs mount.\n")
        with open(cache / "full", "wb", buffering=0) as full, contextlib.suppress(OSError):
            while full.write(bytes(512)):
                pass
        with MlfsMount(source, "--log-file", str(log), state=state) as mount:
            assert (mount.path / NAME).read_bytes() == BYTES
            assert mount.register(seed=0, epochs=1)["ok"]
            mount.unmount()
            assert left_over(mount) == []
    finally:
        # What a process had open that has just ended keeps the file system busy for a moment.
        assert wait_until(lambda: not subprocess.run(["umount", cache], check=False).returncode)


# -- ends


@pytest.mark.promise("killed")
def test_killed_and_mounted_again_killed_and_unmounted(slow: SlowSource, tmp_path: Path) -> None:
    with MlfsMount(slow.path, state=tmp_path / "state") as mount:
        mount.kill()
        with pytest.raises(OSError, match="onnect") as dead:
            os.stat(mount.path / NAME)
        assert dead.value.errno in DEAD
        again = mount.run("mount", str(slow.path))
        assert "cleaned up a dead mount" in again.stderr
        assert mounts_at(mount.path, FSTYPE) == 1
        assert (mount.path / NAME).read_bytes() == BYTES
        mount.kill()
        mount.unmount()
        for note in (mount.state / "run").glob("*.life"):  # which tells the next mount that this daemon died
            note.unlink()
        assert left_over(mount) == []
        assert still_there(slow)


def signal_twice(number: signal.Signals) -> Callable[[Foreground], None]:
    def end(served: Foreground) -> None:
        served.process.send_signal(number)
        wait_until(lambda: "in use by" in served.log.read_text())
        assert (served.mount.path / NAME).read_bytes() == BYTES  # readers finish as long as we wait for them
        served.process.send_signal(number)

    return end


def abort(served: Foreground) -> None:
    """The kernel cuts the connection, and the mount stays, since a file is open."""
    subprocess.run(["umount", "--force", served.mount.path], check=False, capture_output=True)


def detach_and_terminate(served: Foreground) -> None:
    subprocess.run(["fusermount3", "-u", "-z", served.mount.path], check=True)
    served.process.terminate()


@pytest.mark.promise("end-signals", "end-elsewhere", "end-own", "end-clean")
@pytest.mark.parametrize(
    "end",
    [
        signal_twice(signal.SIGTERM),
        signal_twice(signal.SIGINT),
        signal_twice(signal.SIGHUP),
        abort,
        detach_and_terminate,
    ],
)
def test_ends_with_a_file_held_open_leave_nothing_but_what_was_below(
    slow: SlowSource, tmp_path: Path, end: Callable[[Foreground], None]
) -> None:
    mount = MlfsMount(slow.path, state=tmp_path / "state")
    with Foreground(mount) as served:
        assert served.lines[0].startswith(f"mounted {mount.path} over itself, read-only, served by process")
        assert [line.split()[0] for line in served.lines[1:4]] == ["data", "caches", "ahead"]
        with held_open(mount.path / NAME):
            end(served)
            assert served.process.wait(PATIENCE_S) == 0
            assert nothing_left_but_stderr(mount)
            assert still_there(slow)
        log = served.log.read_text()
        assert "serving" in log
        assert "unmounted" in log
        assert "Traceback" not in log


def nothing_left_but_stderr(mount: MlfsMount) -> bool:
    return happened(lambda: not left_over(mount))


def let_go(served: Foreground, fd: int) -> None:
    served.process.terminate()
    wait_until(lambda: "in use by" in served.log.read_text())
    os.close(fd)


def unmount_by_hand(served: Foreground, fd: int) -> None:
    os.close(fd)
    subprocess.run(["fusermount3", "-u", served.mount.path], check=True)


@pytest.mark.promise("end-signals", "end-elsewhere", "end-clean")
@pytest.mark.parametrize("end", [let_go, unmount_by_hand])
def test_quiet_ends(slow: SlowSource, tmp_path: Path, end: Callable[[Foreground, int], None]) -> None:
    mount = MlfsMount(slow.path, state=tmp_path / "state")
    with Foreground(mount) as served:
        end(served, os.open(mount.path / NAME, os.O_RDONLY))
        assert served.process.wait(PATIENCE_S) == 0
        assert left_over(mount) == []
        assert still_there(slow)
        assert "Traceback" not in served.log.read_text()
        assert "detaching" not in served.log.read_text()


@pytest.mark.promise("end-busy")
def test_busy_says_who_and_goes_on_and_force_does_not_wait(slow: SlowSource, tmp_path: Path) -> None:
    with MlfsMount(slow.path, state=tmp_path / "state") as mount, held_open(mount.path / NAME) as fd:
        busy = mount.run("unmount", str(mount.path), "--timeout", "300ms", check=False)
        assert busy.returncode == BUSY
        assert f"(pid {os.getpid()}, open: {NAME})" in busy.stderr
        assert mount.status()["state"] == "serving"
        mount.register(seed=0, epochs=2, batch_size=8)
        wait_until(lambda: mount.status()["jobs"][0]["ranks"][0]["ahead"]["samples"] >= len(FILES))
        assert os.pread(fd, 100, 0) == BYTES[:100]
        mount.unmount("--force")
        assert left_over(mount) == []
        assert still_there(slow)


@pytest.mark.promise("end-own")
def test_unmount_and_a_signal_at_once_leave_the_source_mounted(slow: SlowSource, tmp_path: Path) -> None:
    """Two hands that both unmount: the second must not take away what the first uncovered."""
    with MlfsMount(slow.path, state=tmp_path / "state") as mount, held_open(mount.path / NAME) as fd:
        unmounting = subprocess.Popen(
            [sys.executable, "-m", "mlfs.cli.main", "unmount", str(mount.path)],
            env=mount.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert unmounting.stdout is not None
        assert "in use by" in unmounting.stdout.readline()
        for pid, words in mount.pids().items():
            if "mountd" in words:
                with contextlib.suppress(ProcessLookupError):  # one that stands by has ended with the first of them
                    os.kill(pid, signal.SIGTERM)
                    os.kill(pid, signal.SIGINT)  # another one: two of a kind may arrive as one
        said, _ = unmounting.communicate(timeout=PATIENCE_S)
        assert unmounting.returncode == 0, said
        assert left_over(mount) == []
        assert still_there(slow)
        with pytest.raises(OSError, match="onnect") as dead:
            os.fstatvfs(fd)
        assert dead.value.errno in DEAD


@pytest.mark.promise("hang-unmount", "end-clean")
@pytest.mark.wall_clock
def test_in_the_middle_of_a_prefetch_and_while_the_source_hangs(tmp_path: Path) -> None:
    backing = make_tree(tmp_path / "backing", image_folder(classes=4, files=100, size=100_000))
    with SlowSource(backing, open_latency="2ms", bandwidth="5M") as slow:
        with MlfsMount(slow.path, state=tmp_path / "state1") as mount:
            mount.register(seed=0, epochs=1)
            wait_until(lambda: slow.counts()["opens"] > 20)
            unmount_cleanly(mount, slow)
        slow.control(bandwidth_bytes_s=1e9)
        with MlfsMount(slow.path, "--pfs-threads", "4", state=tmp_path / "state2") as mount:
            slow.control(hang={"path": "*"})
            mount.register(seed=0, epochs=1)
            wait_until(lambda: slow.counts()["waiting"] > 0)
            unmount_cleanly(mount, slow)
            slow.control(release={"path": "*"})


def unmount_cleanly(mount: MlfsMount, slow: SlowSource) -> None:
    mount.unmount()
    assert left_over(mount) == []
    assert mounts_at(slow.path, SLOW_FSTYPE) == 1


@pytest.mark.wall_clock
def test_a_reader_that_hangs_with_the_source_is_let_go_by_force(slow: SlowSource, tmp_path: Path) -> None:
    with MlfsMount(slow.path, state=tmp_path / "state") as mount:
        slow.control(hang={"path": NAME})
        script = "import sys\ntry: open(sys.argv[1], 'rb')\nexcept OSError as error: print(error.errno)"
        reader = subprocess.Popen([sys.executable, "-c", script, mount.path / NAME], stdout=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: slow.counts()["waiting"] > 0)
            mount.unmount("--force")
            assert left_over(mount) == []
            said, _ = reader.communicate(timeout=PATIENCE_S)
            assert int(said) in DEAD
        finally:
            slow.control(release={"path": NAME})
            reader.kill()
            reader.wait()
        assert still_there(slow)
