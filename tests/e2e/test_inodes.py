"""Each content is an inode of its own, as at the source: files that are replaced while they are open, file handles that
outlive a mount, holes, hard links.

What a reader finds is compared with what the same calls find at the source.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fuse import wait_until
from support.mounts import MlfsMount
from support.trees import content, make_tree

SMALL, LARGE = 150_001, 9_000_001  # the second: above what a demand read fetches whole
SEEDS = range(4)
_libc = ctypes.CDLL(None, use_errno=True)


def make_sparse(path: Path, chance: random.Random) -> None:
    """Data and holes in turn; some files end with a hole, some have none, some have nothing else."""
    with open(path, "wb") as file:
        for _ in range(chance.randrange(5)):
            file.seek(chance.choice([0, 1, 65_536, 300_000]), os.SEEK_CUR)
            file.write(chance.randbytes(chance.choice([1, 4096, 70_000])))
        file.truncate(file.tell() + chance.choice([0, 0, 5000, 2_000_000]))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"small": SMALL, "large": LARGE}
    tree = {f"{size}{seed}": length for size, length in sizes.items() for seed in (*SEEDS, "handle", " written")}
    tree |= {"linked/one": 40_000, "linked/other": 40_000, "linked/big": LARGE, "linked/alone": 300}
    root = make_tree(tmp_path_factory.mktemp("inodes") / "source", tree)
    (root / "sparse").mkdir()
    for number in range(12):
        make_sparse(root / "sparse" / f"{number:02d}", random.Random(number))
    (root / "elsewhere").mkdir()
    for name in ("one", "other", "big"):
        for link in range(2):
            (root / "elsewhere" / f"{name}{link}").hardlink_to(root / "linked" / name)
    return root


@pytest.fixture(scope="module")
def mount(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlfsMount]:
    view = tmp_path_factory.mktemp("view")
    with MlfsMount(source, "--ram", "0", "--staging", "64M", mountpoint=view) as mounted:
        yield mounted


class Reader:
    """An open file, read in drawn ways. It never delivers anything but what it has been opened with."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self.fd).st_size
        self.mapped = mmap.mmap(self.fd, 0, prot=mmap.PROT_READ)

    def read(self, offset: int, size: int, how: str) -> bytes:
        """OSError as the calls raise it; EFAULT where a page of a mapping cannot be had."""
        if how == "pread":
            return os.pread(self.fd, size, offset)
        into = os.memfd_create("mapped")
        try:
            done = os.write(into, memoryview(self.mapped)[offset : offset + size])
            if done < min(size, self.size - offset):
                raise OSError(errno.EFAULT, "a page of the mapping cannot be had")
            return os.pread(into, size, 0)
        finally:
            os.close(into)

    def close(self) -> None:
        self.mapped.close()
        os.close(self.fd)


def replace(path: Path, new: bytes) -> None:
    (path.parent / "incoming").write_bytes(new)
    os.rename(path.parent / "incoming", path)


@pytest.mark.promise("change-inode", "change-whole", "change-renamed")
@pytest.mark.parametrize("seed", SEEDS)
def test_large_files_that_are_replaced_while_they_are_open(source: Path, mount: MlfsMount, seed: int) -> None:
    """Every reader has what one has who did the same at the source."""
    chance = random.Random(seed)
    name = f"large{seed}"
    open_now: list[tuple[Reader, Reader]] = []
    for step in range(60):
        do = chance.choice(["replace", "open", "read", "read", "read", "stat", "close"]) if step else "open"
        if do == "replace":
            same = chance.random() < 0.3
            replace(source / name, content(f"{seed} {step}", LARGE if same else chance.randrange(5 << 20, LARGE)))
        elif do == "open":
            open_now.append((Reader(mount.path / name), Reader(source / name)))
            if chance.random() < 0.5:  # what is left of the pages must not be filled with another content
                os.posix_fadvise(open_now[-1][0].fd, 0, 0, os.POSIX_FADV_DONTNEED)
        elif open_now and do == "close":
            for reader in open_now.pop(chance.randrange(len(open_now))):
                reader.close()
        for ours, theirs in open_now if do == "stat" else []:
            here, there = os.fstat(ours.fd), os.fstat(theirs.fd)
            assert (here.st_size, here.st_mtime_ns, here.st_blocks) == (
                there.st_size, there.st_mtime_ns, there.st_blocks
            )  # fmt: skip
        if open_now and do == "read":
            ours, theirs = chance.choice(open_now)
            offset, size = chance.randrange(theirs.size), chance.choice([1, 5000, 300_000])
            how = chance.choice(["pread", "mmap"])
            assert ours.read(offset, size, how) == theirs.read(offset, size, how), (step, how)
    numbers = {os.fstat(ours.fd).st_ino for ours, _ in open_now}
    contents = {os.fstat(theirs.fd).st_ino for _, theirs in open_now}
    assert len(numbers) == len(contents)
    for pair in open_now:
        for reader in pair:
            reader.close()


@pytest.mark.promise("change-inode", "change-whole")
@pytest.mark.parametrize("seed", SEEDS)
def test_small_files_that_are_replaced_while_they_are_open(source: Path, mount: MlfsMount, seed: int) -> None:
    """Every reader has one content, to which its size belongs; what cannot be had of it any more is an error."""
    chance = random.Random(seed)
    name = f"small{seed}"
    contents = {SMALL: content(name, SMALL)}
    open_now: list[Reader] = []
    delivered = 0
    for step in range(80):
        do = chance.choice(["replace", "open", "read", "read", "read", "forget", "touch"]) if step else "open"
        if do == "replace":
            size = SMALL + 1 + step
            contents[size] = content(f"{seed} {step}", size)
            replace(source / name, contents[size])
        elif do == "open":
            open_now.append(Reader(mount.path / name))
        elif do == "touch":
            os.utime(source / name)
        elif do == "forget":  # the mount fetches it anew with the next open, as after a drop under pressure
            os.posix_fadvise(chance.choice(open_now).fd, 0, 0, os.POSIX_FADV_DONTNEED)
            mount.settle()
        else:
            reader = chance.choice(open_now)
            offset, size, how = chance.randrange(reader.size), chance.choice([1, 5000, SMALL]), "pread"
            assert os.fstat(reader.fd).st_size == reader.size
            try:
                assert reader.read(offset, size, how) == contents[reader.size][offset : offset + size]
                delivered += 1
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
    for reader in open_now:
        reader.close()
    assert delivered


@pytest.mark.promise("change-noticed")
def test_a_large_file_that_changes_all_the_time_can_be_opened(source: Path, mount: MlfsMount) -> None:
    """Each open finds that it has, and comes a second time: which does not look whether it has again."""
    over = threading.Event()

    def write() -> None:
        with open(source / "large written", "ab", buffering=0) as file:
            while not over.is_set():
                file.write(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: (source / "large written").stat().st_size > LARGE)
        for _ in range(12):
            with open(mount.path / "large written", "rb", buffering=0) as file:
                assert os.fstat(file.fileno()).st_size > LARGE
    finally:
        over.set()
        writer.join()


# -- file handles


class FileHandle(ctypes.Structure):
    """struct file_handle."""

    _fields_ = (("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * 128))


def handle_of(path: Path) -> FileHandle:
    handle, mount_id = FileHandle(bytes=128), ctypes.c_int()
    if _libc.name_to_handle_at(-100, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return handle


def number_it(handle: FileHandle, inode: int) -> None:
    """Have it name another inode of the same mount."""
    handle.handle[:8] = list(struct.pack("=II", inode >> 32, inode & 0xFFFFFFFF))


def open_handle(mountpoint: Path, handle: FileHandle) -> int:
    at = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd: int = _libc.open_by_handle_at(at, ctypes.byref(handle), os.O_RDONLY)
    finally:
        os.close(at)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd


def refused_with(mountpoint: Path, handle: FileHandle) -> int:
    """The errno that opening it fails with, 0 where it does not."""
    try:
        os.close(open_handle(mountpoint, handle))
    except OSError as error:
        return error.errno or -1
    return 0


@pytest.mark.promise("handles")
def test_file_handles(source: Path, tmp_path: Path) -> None:
    """They are good for one mount and one content; in the next mount another file may have the number."""
    tree = make_tree(tmp_path / "tree", {f"{n:02d}/{n}": 1000 + n for n in range(6)})
    view = tmp_path / "view"
    view.mkdir()
    with MlfsMount(tree, mountpoint=view) as mount:
        handles = {path.name: handle_of(path) for path in sorted(view.glob("*/*"))}
        directory = handle_of(view / "00")
        for name in "01245":
            with open(open_handle(view, handles[name]), "rb") as file:
                assert file.read() == content(f"0{name}/{name}", 1000 + int(name))
        os.close(open_handle(view, directory))
        replace(tree / "03" / "3", b"other")
        assert (view / "03" / "3").read_bytes() == b"other"
        assert refused_with(view, handles.pop("3")) == errno.ESTALE
        mount.unmount()
        make_tree(tree, {"00/another first": b"x"})
        mount.mount()
        made_up, number = handle_of(view / "01" / "1"), os.stat(view / "01" / "1").st_ino
        number_it(made_up, number + 1)  # of a file that the kernel has not heard of, or has forgotten
        with open(open_handle(view, made_up), "rb") as file:
            assert file.read() == content("02/2", 1002)
        number_it(made_up, os.stat(view / "01").st_ino + 3)
        directory_fd = open_handle(view, made_up)
        assert os.listdir(directory_fd) == ["4"]
        os.close(directory_fd)
        assert len(list(view.glob("*/*"))) == 7  # the kernel knows them all
        for handle in (*handles.values(), directory):
            assert refused_with(view, handle) == errno.ESTALE
        for number in (0, 1 << 20, (1 << 32) - 1, 1 << 33 | 3, (1 << 48) + 999, 1 << 60):
            number_it(made_up, number)
            assert refused_with(view, made_up) == errno.ESTALE


# -- sparse files


def segments(path: Path) -> list[int]:
    """Where data and holes begin, in turn."""
    found: list[int] = []
    with open(path, "rb", buffering=0) as file:
        whence, at = os.SEEK_DATA, 0
        while True:
            try:
                at = os.lseek(file.fileno(), at, whence)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return found
            found.append(at)
            whence = os.SEEK_HOLE if whence == os.SEEK_DATA else os.SEEK_DATA


@pytest.mark.promise("sparse")
def test_sparse_files(source: Path, mount: MlfsMount, tmp_path: Path) -> None:
    ours, theirs = mount.path / "sparse", source / "sparse"
    for name in sorted(os.listdir(ours)):
        assert os.stat(ours / name).st_blocks == os.stat(theirs / name).st_blocks, name
        assert segments(ours / name) == segments(theirs / name), name
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
        assert segments(ours / name) == segments(theirs / name), name

    def output(*command: str | Path) -> bytes:
        return subprocess.run(command, check=True, capture_output=True).stdout

    files = sorted(os.listdir(theirs))
    sizes = [output("du", "-k", *(directory / name for name in files)) for directory in (ours, theirs)]
    assert sizes[0].replace(os.fsencode(ours), os.fsencode(theirs)) == sizes[1]
    archives = [len(output("tar", "-S", "-C", directory, "-cf", "-", ".")) for directory in (ours, theirs)]
    assert archives[0] == archives[1]
    subprocess.run(["cp", "-r", "--sparse=auto", ours, tmp_path / "copy"], check=True)
    copied = sum(os.stat(path).st_blocks for path in (tmp_path / "copy").iterdir())
    assert copied <= sum(os.stat(path).st_blocks for path in theirs.iterdir()) + 8 * 12


@pytest.mark.promise("sparse")
def test_a_file_that_becomes_sparse(source: Path, mount: MlfsMount) -> None:
    """What is found with a change are its holes, too; who has it open as it was is told what is true of that."""
    name = "large" + "handle"
    with open(mount.path / name, "rb", buffering=0) as before:
        with open(source / "incoming", "wb") as file:
            file.write(b"data")
            file.truncate(LARGE)
        os.rename(source / "incoming", source / name)
        with open(mount.path / name, "rb", buffering=0) as after:
            assert os.fstat(after.fileno()).st_blocks == os.stat(source / name).st_blocks
            assert os.lseek(after.fileno(), 0, os.SEEK_HOLE) == 4096
            assert os.lseek(before.fileno(), 0, os.SEEK_HOLE) == LARGE
        before.seek(0)
        assert before.read() == content(name, LARGE)


# -- hard links


def linked(root: Path) -> list[list[str]]:
    """The names of each file, as readers find them who go by device and inode number."""
    files: dict[tuple[int, int], list[str]] = {}
    for directory in ("elsewhere", "linked"):
        for entry in sorted(os.scandir(root / directory), key=lambda entry: entry.name):
            status = entry.stat(follow_symlinks=False)
            assert entry.inode() == status.st_ino
            files.setdefault((status.st_dev, status.st_ino), []).append(f"{directory}/{entry.name}")
    return sorted(files.values())


@pytest.mark.promise("hard-links")
def test_hard_links(source: Path, mount: MlfsMount, tmp_path: Path) -> None:
    assert linked(mount.path) == linked(source)
    subprocess.run(["cp", "-a", mount.path / "linked", mount.path / "elsewhere", tmp_path], check=True)
    assert linked(tmp_path) == linked(source)


@pytest.mark.promise("hard-links")
def test_hard_links_that_change(tmp_path: Path) -> None:
    """In a mount that knows them from the saved index. What is noticed under one name is seen under all."""
    tree = make_tree(tmp_path / "tree", {"linked/one": 3000, "linked/other": 4000, "elsewhere/alone": 10})
    for name in ("one", "other"):
        for number in range(2):
            (tree / "elsewhere" / f"{name}{number}").hardlink_to(tree / "linked" / name)
    view = tmp_path / "view"
    view.mkdir()
    with MlfsMount(tree, mountpoint=view) as mount:
        assert linked(view) == linked(tree)
        mount.unmount()
        mount.mount()
        assert mount.status()["manifest"]["how"].startswith("saved index")
        assert linked(view) == linked(tree)
        for name in ("one0", "one1", "other0"):  # these are in place from now on
            assert len((view / "elsewhere" / name).read_bytes()) in (3000, 4000)
        with open(tree / "linked" / "one", "r+b") as file:  # written over: under all names
            file.write(b"new beginning")
            file.truncate(2000)
        new = (tree / "linked" / "one").read_bytes()
        for name in ("linked/one", "elsewhere/one1", "elsewhere/one0"):
            assert (view / name).read_bytes() == new, name
            assert os.stat(view / name).st_size == 2000
        assert linked(view) == linked(tree)
        replace(tree / "elsewhere" / "other1", b"another file")  # one of the names leads elsewhere
        assert (view / "elsewhere" / "other1").read_bytes() == b"another file"
        assert linked(view) == linked(tree)
        for name in ("linked/other", "elsewhere/other0", "elsewhere/other1"):
            assert os.stat(view / name).st_nlink == os.stat(tree / name).st_nlink, name
            assert (view / name).read_bytes() == (tree / name).read_bytes()


# -- what is counted


@pytest.mark.promise("told-bytes")
def test_a_file_that_turns_out_to_have_changed_counts_as_read_once(tmp_path: Path) -> None:
    """All of them have, since the index was saved: no directory's time tells. The kernel opens each a second time."""
    small, large = 40, 2
    spec = {f"{n % 4}/{n:02d}": 2000 + n for n in range(small)} | {f"large/{n}": LARGE for n in range(large)}
    tree = make_tree(tmp_path / "tree", spec)
    view, out = tmp_path / "view", tmp_path / "run.opens"
    view.mkdir()
    with MlfsMount(tree, mountpoint=view) as mount:
        assert len(list(view.glob("*/*"))) == small + large
        mount.unmount()
        for name in spec:
            os.utime(tree / name)
        mount.mount()
        recording = subprocess.Popen(
            [sys.executable, "-m", "mlfs.cli.main", "record", str(view), str(out)],
            env=mount.env, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert recording.stderr is not None
        assert "recording" in recording.stderr.readline()
        names = random.Random(5).sample(sorted(spec), len(spec))
        for name in names:
            assert (view / name).read_bytes() == content(name, spec[name])
        mount.settle()
        status = mount.status()
        assert sum(tally["reads"] for tally in status["reads"]["all"].values()) == small + large
        assert status["manifest"]["changed"] == small + large
        recording.send_signal(signal.SIGINT)
        recording.communicate(timeout=60)
        opened = [json.loads(line) for line in out.read_text().splitlines()]
        assert [line[3] for line in opened if isinstance(line, list)] == names
